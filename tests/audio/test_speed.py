"""Tests of `SpeedChanger`: length, pitch, and independence of chunk sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.audio.speed import SpeedChanger, make_fade, overlap_add
from vivace.errors import RequestError

RATE = 24_000
SPEEDS = [0.25, 0.5, 0.8, 0.99, 1.01, 1.25, 1.5, 2.0, 3.0, 4.0]


def tone(seconds: float, pitch: float = 220.0, rate: int = RATE) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * pitch * np.arange(int(rate * seconds)) / rate)).astype(
        np.float32
    )


def voice_like(seconds: float) -> np.ndarray:
    """A harmonic sound with varying pitch and loudness, plus noise."""
    time = np.arange(int(RATE * seconds)) / RATE
    phase = 2 * np.pi * np.cumsum(140 + 40 * np.sin(2 * np.pi * 0.7 * time)) / RATE
    sound = sum(np.sin(k * phase) / k for k in range(1, 12)) * (1 + np.sin(2 * np.pi * 3 * time))
    noise = np.random.default_rng(0).normal(size=len(time)) * 0.02
    return (0.1 * sound + noise).astype(np.float32)


def change(samples: np.ndarray, speed: float, sizes: list[int] | None = None) -> np.ndarray:
    changer = SpeedChanger(speed, RATE)
    parts = np.split(samples, np.cumsum(sizes or []))
    return np.concatenate([*(changer.process(part) for part in parts), changer.finish()])


def pitch_of(samples: np.ndarray, rate: int = RATE) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), 2**19))
    return float(np.argmax(spectrum)) * rate / 2**19


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("pitch", [80.0, 220.0, 440.0, 1_000.0])
def test_length_changes_and_pitch_stays(speed: float, pitch: float) -> None:
    changed = change(tone(2.0, pitch), speed)
    assert len(changed) == round(2 * RATE / speed)
    assert pitch_of(changed) == pytest.approx(pitch, rel=0.02)
    assert np.std(changed) == pytest.approx(0.5 / 2**0.5, rel=0.05)


@given(
    num_samples=st.integers(0, 40_000),
    speed=st.floats(0.25, 4.0),
    sizes=st.lists(st.integers(0, 9_000), max_size=5),
)
@settings(deadline=None, max_examples=60)
def test_length_is_exact_for_any_input_and_chunks(
    num_samples: int, speed: float, sizes: list[int]
) -> None:
    samples = voice_like(2.0)[:num_samples]
    changed = change(samples, speed, sizes)
    assert len(changed) == round(num_samples / speed)
    assert np.array_equal(changed, change(samples, speed))


def test_pitch_of_resampled_tone_differs() -> None:
    assert pitch_of(tone(2.0)[::2]) != pytest.approx(220, rel=0.02)


@pytest.mark.parametrize("speed", SPEEDS)
def test_output_has_no_clicks(speed: float) -> None:
    """A click is a step larger than the steps of the tone."""
    changed = change(tone(2.0), speed)
    assert np.abs(np.diff(changed)).max() < 1.3 * np.abs(np.diff(tone(2.0))).max()


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.25, 4.0),
    st.lists(st.integers(0, 5_000), max_size=30),
)
def test_output_does_not_depend_on_chunk_sizes(speed: float, sizes: list[int]) -> None:
    samples = voice_like(2.0)
    np.testing.assert_array_equal(change(samples, speed, sizes), change(samples, speed))


@pytest.mark.parametrize("speed", SPEEDS)
def test_output_of_single_samples_is_equal(speed: float) -> None:
    samples = voice_like(0.1)
    np.testing.assert_array_equal(
        change(samples, speed, [1] * len(samples)), change(samples, speed)
    )


@pytest.mark.parametrize("speed", [0.25, 0.7, 1.3, 4.0])
@pytest.mark.parametrize("num_samples", [0, 1, 100, 359, 361, 719, 721, 1_200, 2_000])
def test_length_of_short_audio_is_exact(speed: float, num_samples: int) -> None:
    changed = change(voice_like(1.0)[:num_samples], speed)
    assert len(changed) == round(num_samples / speed)
    assert np.isfinite(changed).all()


def test_speed_1_returns_input_unchanged() -> None:
    samples = voice_like(1.0)
    assert change(samples, 1.0, [7, 100, 3_000]).tobytes() == samples.tobytes()


def test_silence_stays_silent() -> None:
    assert not change(np.zeros(RATE, np.float32), 1.5).any()


@pytest.mark.parametrize("speed", [0.25, 1.5, 4.0])
def test_sounds_move_to_scaled_positions(speed: float) -> None:
    """Bursts at 0.5, 1.0 … s are found at those times divided by the speed."""
    samples = np.zeros(4 * RATE, np.float32)
    starts = np.arange(1, 7) / 2
    for start in starts:
        samples[int(start * RATE) : int((start + 0.2) * RATE)] = tone(0.2)
    changed = change(samples, speed)
    for start in starts:
        middle = int((start + 0.1) / speed * RATE)
        pause = int((start + 0.35) / speed * RATE)
        assert np.abs(changed[middle - 200 : middle + 200]).max() > 0.3
        assert np.abs(changed[pause - 100 : pause + 100]).max() < 0.1


def test_segment_is_chosen_by_its_shape_not_by_its_loudness() -> None:
    tail = tone(0.015, 250.0)
    louder = 4 * tone(0.015, 280.0)
    after = tone(0.015, 125.0)
    output, next_tail = overlap_add(
        np.concatenate([louder, tail, after]), tail, make_fade(len(tail))
    )
    np.testing.assert_allclose(output, tail, atol=1e-6)
    assert np.array_equal(next_tail, after)


def test_end_of_input_is_kept() -> None:
    samples = np.concatenate([np.zeros(RATE, np.float32), tone(0.1)])
    for speed in (0.25, 0.5, 1.5, 2.0):
        assert np.std(change(samples, speed)[-600:]) > 0.2, speed


@pytest.mark.parametrize("speed", [0.25, 1.1, 4.0])
def test_output_is_early_and_buffer_small(speed: float) -> None:
    changer = SpeedChanger(speed, RATE)
    num_out = 0
    for num_steps in range(1, 51):
        num_out += len(changer.process(tone(0.08)))
        assert num_out >= (num_steps * 0.08 - 0.06) * RATE / speed
        assert len(changer._input) <= 0.2 * RATE


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 48_000])
def test_other_sample_rates_are_supported(rate: int) -> None:
    changer = SpeedChanger(1.5, rate)
    changed = np.concatenate([changer.process(tone(2.0, rate=rate)), changer.finish()])
    assert len(changed) == round(2 * rate / 1.5)
    assert pitch_of(changed, rate) == pytest.approx(220, rel=0.02)


@pytest.mark.parametrize("speed", [0, 0.2499, 4.01, -1, np.nan, np.inf, "2", None, True])
def test_speed_out_of_range_raises_request_error(speed: Any) -> None:
    with pytest.raises(RequestError, match=r"speed must be 0\.25 to 4, not"):
        SpeedChanger(speed, RATE)


@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_process_after_finish_raises_request_error(speed: float) -> None:
    changer = SpeedChanger(speed, RATE)
    changer.finish()
    assert len(changer.finish()) == 0
    with pytest.raises(RequestError, match="finished"):
        changer.process(tone(0.1))
