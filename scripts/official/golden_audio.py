"""Golden values of the codec and the speaker encoder: samples, codes, vectors and spectrograms."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import torch
from environment import Tensors, load, save, seeded
from torch import Tensor
from waves import synthetic_wave

WAVES = {"long": 3.3, "short": 0.61, "beyond_window": 13.0}  # seconds; Mimi's window is 10 s
RATES = (8000, 16000, 22050, 44100, 48000)
RESAMPLE_STRIDE = 29


def make_codec(checkpoints: Path, output: Path) -> None:
    codec = load(checkpoints / "base").model.speech_tokenizer
    tensors = {}
    codes = torch.randint(0, 64, (330, 16), generator=seeded(5))
    tensors["decode.codes"] = codes.to(torch.uint8)
    for num_frames in (1, 7, 100, 300, 330):
        [wave], _ = codec.decode([{"audio_codes": codes[:num_frames]}])
        tensors |= keep_wave(f"decode.{num_frames}", torch.tensor(wave))
    for name, seconds in WAVES.items():
        [found] = codec.encode(synthetic_wave(seconds), sr=24000).audio_codes
        tensors[f"encode.{name}"] = found.to(torch.uint8)
    check_codes_are_stable(codec, tensors)
    save(output / "codec", tensors)


def keep_wave(name: str, wave: Tensor) -> Tensors:
    """Every n-th sample, its start, its end, and the seam after chunk 1 (frame 300)."""
    seam = 300 * 1920
    kept = {"strided": wave[:: max(1, len(wave) // 1920)], "head": wave[:480], "tail": wave[-480:]}
    if len(wave) > seam:
        kept["seam"] = wave[seam - 240 : seam + 240]
    return {f"{name}.{part}": samples.clone() for part, samples in kept.items()}


def check_codes_are_stable(codec: Any, tensors: Tensors) -> None:
    """Reject codes that float64 or slight noise would change."""
    for name, seconds in WAVES.items():
        wave = synthetic_wave(seconds)
        breath = np.random.RandomState(1).uniform(-1e-6, 1e-6, len(wave)).astype(np.float32)
        [noisy] = codec.encode(wave + breath, sr=24000).audio_codes
        codec.model.double()
        [exact] = codec.encode(wave, sr=24000).audio_codes
        codec.model.float()
        assert torch.equal(noisy, tensors[f"encode.{name}"].long()), name
        assert torch.equal(exact, tensors[f"encode.{name}"].long()), name


def make_resample(checkpoints: Path, output: Path) -> None:
    tensors = {}
    for rate in RATES:
        recording = synthetic_wave(0.5, rate)
        wave = librosa.resample(y=recording, orig_sr=rate, target_sr=24000)
        tensors[f"{rate}.strided"] = torch.tensor(wave[::RESAMPLE_STRIDE])
        tensors[f"{rate}.num_samples"] = torch.tensor([len(wave)])
    save(output / "resample", tensors)


def make_speaker(checkpoints: Path, output: Path) -> None:
    """X-vectors and, of every 16th frame, the mel spectrogram in front of them."""
    tensors = {}
    for model in ("base", "base_projected"):
        for dtype in (torch.float32, torch.bfloat16):
            tts = load(checkpoints / model, dtype)
            for name, seconds in WAVES.items():
                vector = tts.model.extract_speaker_embedding(synthetic_wave(seconds), 24000)
                tensors[f"{model}.{name}.{str(dtype).removeprefix('torch.')}"] = vector
    for name, seconds in WAVES.items():
        tensors[f"mel.{name}"] = mel_of(synthetic_wave(seconds))[:: 16 if seconds < 10 else 64]
    save(output / "speaker", tensors)


def mel_of(wave: np.ndarray) -> Tensor:
    """Frames [n, 128], by the official function with the arguments of its only caller."""
    official = sys.modules["qwen_tts.core.models.modeling_qwen3_tts"].mel_spectrogram
    mel: Tensor = official(
        torch.from_numpy(wave)[None],
        n_fft=1024, num_mels=128, sampling_rate=24000, hop_size=256, win_size=1024,
        fmin=0, fmax=12000,
    )  # fmt: skip
    return mel[0].T
