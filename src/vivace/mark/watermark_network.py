"""The networks of the watermark, with the weights of the package `resemble-perth` (MIT).

Perth describes audio by its levels: a spectrogram of windows of 64 ms, one every 10 ms, in
decibels, mapped to 0 (-180 dB) to 1 (15 dB). Only the 128 bins below 2 kHz are read. A window of
the same duration has the same bins at every sample rate, so audio is never resampled.

- The encoder returns changes of levels. They are practically the same for all audio.
- The decoder returns a score: about 0 for unmarked audio and 1 for marked audio.

Both are chains of convolutions over time. The package itself is not imported: it needs librosa,
scipy and torchaudio.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vivace.audio.wav import Samples
from vivace.checkpoint_files import checked, package_file
from vivace.errors import CheckpointError, RequestError, install_command

PACKAGE, DISTRIBUTION = "perth", "resemble-perth"
WEIGHTS = "perth_net/pretrained/implicit/perth_net_250000.pth.tar"
DIGEST = "a15bce457ebc53ce5e6c9c3f11df78cf7ee2bf9cdab0a798902135b4c4027670"

NUM_BINS = 128
BIN_HZ = 15.625
WINDOW_S, HOP_S = 1 / BIN_HZ, 0.010
TRAINED_WINDOW = 2_048  # samples; a shorter window has proportionally smaller sums
MIN_MAGNITUDE = 1e-9
MIN_DB, RANGE_DB = -180.0, 195.0

NUM_LAYERS = 7
REFERENCE_LEVEL, REFERENCE_FRAMES = 0.85, 63  # constant input; more frames than the encoder sees
BRANCHES = {"slow": 1.25, "normal": 1.0, "fast": 0.75}  # stretched time, by branch of the decoder
SILENT_SHARE = 0.05  # of the loudest frame; frames below are not scored


def find_weights() -> Path:
    """The file of weights. Raises RequestError if the extra `mark` is not installed."""
    try:
        path = package_file(PACKAGE, WEIGHTS)
    except ModuleNotFoundError as error:
        raise RequestError(
            f"a watermark needs the package {DISTRIBUTION}; install it with "
            f"{install_command('mark')}"
        ) from error
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; install {DISTRIBUTION} 1.0.1 again")
    return checked(path, DIGEST)


class WatermarkNetwork:
    """The encoder and the decoder of Perth. Calls share only weights, which are never written."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights

    @classmethod
    def load(cls) -> WatermarkNetwork:
        """Map the weights of the installed package. Raises RequestError or CheckpointError."""
        # Mapped pages are read on first use: the decoder takes no memory if nothing is detected.
        stored = torch.load(find_weights(), map_location="cpu", weights_only=True, mmap=True)
        return cls(stored["model"])

    def gains_db(self) -> NDArray[np.float64]:
        """The changes of levels that mark audio, in decibels: [128]."""
        levels = torch.full((1, NUM_BINS, REFERENCE_FRAMES), REFERENCE_LEVEL)
        with torch.inference_mode():
            changes = self._run("encoder.layers", levels)[0, :, REFERENCE_FRAMES // 2]
        return changes.numpy().astype(np.float64) * RANGE_DB

    def score(self, levels: Tensor) -> float:
        """The score of levels [128, n]; 0 for silence."""
        loudness = levels.mean(0)
        mask = (loudness > loudness.max() * SILENT_SHARE).float()[None, None]  # [1, 1, n]
        if not mask.any():
            return 0.0
        with torch.inference_mode():
            means = [self._run_branch(name, levels[None], mask) for name in BRANCHES]
            weights, scores = torch.stack(means).unbind(1)  # [3] each
            return float((weights.softmax(0) * scores).sum())

    def _run_branch(self, name: str, levels: Tensor, mask: Tensor) -> Tensor:
        """The weight and the score of a branch: means over frames that are not silent. [2]"""
        length = max(1, int(levels.shape[2] * BRANCHES[name]))
        if length != levels.shape[2]:
            levels = F.interpolate(levels, size=length, mode="linear", align_corners=True)
            mask = F.interpolate(mask, size=length, mode="nearest")
        output = self._run(f"decoder.{name}_layers", levels)  # [1, 2, n]
        return (output * mask).sum(2)[0] / mask.sum().clamp(min=1)

    def _run(self, name: str, levels: Tensor) -> Tensor:
        for number in range(NUM_LAYERS):
            weight = self._weights[f"{name}.{number}.conv.weight"]
            bias = self._weights[f"{name}.{number}.conv.bias"]
            levels = F.conv1d(levels, weight, bias, padding=weight.shape[2] // 2)
            if number < NUM_LAYERS - 1:
                levels = F.leaky_relu(levels)
        return levels


def to_levels(samples: Samples, rate: int) -> Tensor:
    """The levels of samples [n]: [128, frames]."""
    num_samples = round(rate * WINDOW_S)
    spectrum = torch.stft(
        torch.from_numpy(samples),
        n_fft=num_samples,
        hop_length=round(rate * HOP_S),
        window=torch.hann_window(num_samples),
        pad_mode="constant",
        return_complex=True,
    )[:NUM_BINS]
    magnitude = spectrum.abs() * (TRAINED_WINDOW / num_samples)
    return (20 * magnitude.clamp(min=MIN_MAGNITUDE).log10() - MIN_DB) / RANGE_DB
