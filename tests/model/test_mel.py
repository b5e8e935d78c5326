"""The mel front end equals librosa's filters and the official spectrogram."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vivace.errors import AudioError
from vivace.model.mel import MelConfig, log_mel, mel_filter_bank

GOLDEN = Path(__file__).parents[1] / "golden" / "mel.json"  # scripts/official/make_mel_golden.py


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text())


def golden_signal() -> torch.Tensor:
    index = torch.arange(4096)
    signal = (index * index * 7 % 20011) / 20011 - 0.5
    signal[2048:3072] = 0
    return signal[None]


def test_filter_bank_equals_librosa(golden: dict[str, Any]) -> None:
    bank, expected = mel_filter_bank(), golden["filter_bank"]
    assert bank.dtype == np.float32
    assert list(bank.shape) == expected["shape"]
    np.testing.assert_allclose(
        bank.sum(1, dtype=np.float64), expected["row_sums"], rtol=0, atol=1e-7
    )
    for row, part in expected["rows"].items():
        wanted = np.zeros(bank.shape[1])
        wanted[part["start"] : part["start"] + len(part["values"])] = part["values"]
        np.testing.assert_allclose(bank[int(row)], wanted, rtol=0, atol=1e-7)


def test_spectrogram_equals_official_one(golden: dict[str, Any]) -> None:
    mel = log_mel(golden_signal())
    assert mel.shape == (1, golden["log_mel"]["num_frames"], 128)
    for frame, values in golden["log_mel"]["frames"].items():
        torch.testing.assert_close(mel[0, int(frame)], torch.tensor(values), rtol=0, atol=1e-4)


def test_other_mel_scale_fails_the_official_comparison(golden: dict[str, Any]) -> None:
    """Control: a slightly wrong upper frequency exceeds the tolerance."""
    mel = log_mel(golden_signal(), MelConfig(fmax=11_900.0))
    wanted = torch.tensor(golden["log_mel"]["frames"]["9"])
    assert (mel[0, 9] - wanted).abs().max() > 0.01


@pytest.mark.parametrize("num_samples", [385, 511, 512, 24_000, 24_255])
def test_log_mel_makes_one_frame_per_hop(num_samples: int) -> None:
    assert log_mel(torch.zeros(1, num_samples)).shape == (1, num_samples // 256, 128)


def test_log_mel_of_silence_is_finite() -> None:
    assert torch.isfinite(log_mel(torch.zeros(1, 1024))).all()


def test_batch_equals_single_slots() -> None:
    pair = torch.stack([golden_signal()[0], golden_signal()[0].flip(0)])
    torch.testing.assert_close(log_mel(pair)[1:], log_mel(pair[1:]))


def test_log_mel_converts_half_precision_samples_to_float32() -> None:
    assert log_mel(golden_signal().to(torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize("num_samples", [0, 1, 384])
def test_too_short_recording_is_refused(num_samples: int) -> None:
    with pytest.raises(AudioError, match=f"{num_samples} samples are too few.*384"):
        log_mel(torch.zeros(1, num_samples))
