"""Tests of resampling: equal to soxr HQ with the lengths of librosa, at once and streamed."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import soxr

from vivace.audio.resample import StreamResampler, resample
from vivace.errors import AudioError


def tone(rate: int, seconds: float = 1.0) -> np.ndarray:
    time = np.arange(int(rate * seconds)) / rate
    return (0.5 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)


def test_resample_at_equal_rates_returns_input() -> None:
    samples = tone(24_000)
    assert resample(samples, 24_000, 24_000) is samples


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000, 192_000])
def test_resampled_tone_keeps_frequency_and_level(rate: int) -> None:
    output, wanted = resample(tone(rate), rate, 24_000), tone(24_000)
    assert output.dtype == np.float32
    middle = slice(2_000, 22_000)  # the filter rings at both ends
    np.testing.assert_allclose(output[middle], wanted[middle], atol=1e-4)


@pytest.mark.parametrize("rate", [16_000, 44_100, 48_000])
def test_resample_equals_soxr_hq(rate: int) -> None:
    wanted = soxr.resample(tone(rate), rate, 24_000, quality="HQ")
    output = resample(tone(rate), rate, 24_000)
    np.testing.assert_array_equal(output[: len(wanted)], wanted)
    assert not output[len(wanted) :].any()


@pytest.mark.parametrize(
    ("rate", "num_samples", "expected"),
    [  # librosa 0.11.0
        (44_100, 44_100, 24_001),
        (44_100, 14_700, 8_001),
        (44_100, 12_345, 6_719),
        (22_050, 22_050, 24_001),
        (16_000, 7, 11),
        (48_000, 1, 1),
        (48_000, 48_000, 24_000),
    ],
)
def test_resample_length_equals_librosa(rate: int, num_samples: int, expected: int) -> None:
    assert len(resample(np.zeros(num_samples, np.float32), rate, 24_000)) == expected


def test_resample_of_empty_input_is_empty() -> None:
    assert len(resample(np.zeros(0, np.float32), 16_000, 24_000)) == 0


def test_missing_soxr_raises_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(AudioError, match=r"package soxr.*pip install soxr"):
        resample(tone(16_000), 16_000, 24_000)


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("step", [500, 1_920, 24_000])
def test_stream_resampler_equals_resample(rate: int, step: int) -> None:
    stream, samples = StreamResampler(24_000, rate), tone(24_000)
    parts = [stream.process(samples[i : i + step]) for i in range(0, len(samples), step)]
    output = np.concatenate([*parts, stream.finish()])
    whole = resample(samples, 24_000, rate)
    assert len(whole) - len(output) in (0, 1)
    np.testing.assert_array_equal(output, whole[: len(output)])


def test_stream_resampler_returns_audio_for_first_frame() -> None:
    assert len(StreamResampler(24_000, 16_000).process(tone(24_000, 0.08))) > 0


def test_stream_resampler_at_equal_rates_returns_input() -> None:
    stream, samples = StreamResampler(24_000, 24_000), tone(24_000)
    assert stream.process(samples) is samples
    assert len(stream.finish()) == 0


def test_stream_resampler_without_input_is_empty() -> None:
    assert len(StreamResampler(24_000, 16_000).finish()) == 0
