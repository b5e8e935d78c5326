"""The log mel spectrogram that the speaker encoder reads.

Bit-identical to what the official code computes with librosa.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from vivace.errors import AudioError
from vivace.speech import SAMPLE_RATE

# Slaney's scale: linear to 1 kHz, then 27 mels to every factor of 6.4.
HZ_PER_MEL = 200 / 3
BREAK_HZ = 1_000.0
BREAK_MEL = BREAK_HZ / HZ_PER_MEL
LOG_STEP = np.log(6.4) / 27


@dataclass(frozen=True, slots=True, kw_only=True)
class MelConfig:
    """The spectrogram that the released speaker encoders were trained on."""

    sample_rate: int = SAMPLE_RATE
    n_fft: int = 1024  # also the length of the window
    hop_size: int = 256
    mel_dim: int = 128
    fmin: float = 0.0  # Hz
    fmax: float = 12_000.0
    magnitude_floor: float = 1e-9  # added under the square root
    mel_floor: float = 1e-5  # before the logarithm

    @property
    def padding(self) -> int:
        return (self.n_fft - self.hop_size) // 2


DEFAULT_CONFIG = MelConfig()


def log_mel(samples: Tensor, config: MelConfig = DEFAULT_CONFIG) -> Tensor:
    """Samples [B, n] at the config's rate to [B, n // hop_size, mel_dim], in float32."""
    if samples.shape[-1] <= config.padding:
        raise AudioError(
            f"{samples.shape[-1]} samples are too few for a speaker vector; "
            f"more than {config.padding} are needed"
        )
    padded = pad(samples.float()[:, None], (config.padding, config.padding), mode="reflect")[:, 0]
    spectrum = torch.stft(
        padded,
        config.n_fft,
        hop_length=config.hop_size,
        window=torch.hann_window(config.n_fft, device=samples.device),
        center=False,
        return_complex=True,
    )  # [B, n_fft // 2 + 1, frames]
    power = torch.view_as_real(spectrum).pow(2).sum(-1)
    magnitude = torch.sqrt(power + config.magnitude_floor)
    filters = torch.from_numpy(mel_filter_bank(config)).to(samples.device)
    return torch.log((filters @ magnitude).clamp(min=config.mel_floor)).transpose(1, 2)


@lru_cache(maxsize=4)
def mel_filter_bank(config: MelConfig = DEFAULT_CONFIG) -> NDArray[np.float32]:
    """Triangles of equal area, evenly spaced in mels.  [mel_dim, n_fft // 2 + 1]"""
    bins = np.fft.rfftfreq(config.n_fft, 1 / config.sample_rate)  # Hz
    low, high = _hz_to_mel(config.fmin), _hz_to_mel(config.fmax)
    corners = _mel_to_hz(np.linspace(low, high, config.mel_dim + 2))
    widths = np.diff(corners)[:, None]
    distance = corners[:, None] - bins
    rising, falling = -distance[:-2] / widths[:-1], distance[2:] / widths[1:]
    # Rounded before the area is divided out, as librosa does: equal to the last bit.
    triangles = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    filters: NDArray[np.float32] = (triangles * (2 / (corners[2:] - corners[:-2]))[:, None]).astype(
        np.float32
    )
    return filters


def _hz_to_mel(hz: float) -> float:
    if hz < BREAK_HZ:
        return hz / HZ_PER_MEL
    return float(BREAK_MEL + np.log(hz / BREAK_HZ) / LOG_STEP)


def _mel_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    curved = BREAK_HZ * np.exp(LOG_STEP * (mel - BREAK_MEL))
    return np.where(mel < BREAK_MEL, HZ_PER_MEL * mel, curved)
