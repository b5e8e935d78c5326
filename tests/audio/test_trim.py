"""Silence around speech: the trimmed start, and the span of the sound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.audio.trim import (
    AUDIBLE_SAMPLE,
    KEPT_S,
    StartTrimmer,
    find_sound,
    first_audible,
    sound_span,
)
from vivace.audio.wav import Samples

RATE = 24_000
KEPT = round(KEPT_S * RATE)


def speech(num_silent: int, num_loud: int = 960) -> Samples:
    """Noise below the threshold, then a sound."""
    noise = np.full(num_silent, 0.9 * AUDIBLE_SAMPLE, np.float32)
    return np.concatenate([noise, np.full(num_loud, -0.1, np.float32)])


def trimmed(samples: Samples, sizes: list[int]) -> Samples:
    """The output of a trimmer that is given chunks of these sizes, then the rest."""
    trimmer, parts, at = StartTrimmer(RATE), [], 0
    for size in sizes:
        parts.append(trimmer.trim(samples[at : at + size]))
        at += size
    return np.concatenate([*parts, trimmer.trim(samples[at:], is_last=True)])


def test_first_audible_is_the_first_sample_above_minus_50_dbfs() -> None:
    for num_silent in (0, 100, 499, 500, 501, 1_500, 1_919):
        assert first_audible(speech(num_silent)) == num_silent
        assert first_audible(speech(num_silent, 1)) == num_silent
    assert first_audible(speech(1_920, 0)) is None
    assert first_audible(np.zeros(10, np.float32)) is None
    assert first_audible(np.empty(0, np.float32)) is None
    assert pytest.approx(0.00316, abs=1e-5) == AUDIBLE_SAMPLE


def test_trimmer_keeps_20_ms_before_the_first_sound() -> None:
    assert KEPT == 480
    assert np.array_equal(trimmed(speech(2_400), []), speech(KEPT))


def test_trimmer_returns_sound_in_the_chunk_that_has_it() -> None:
    trimmer, samples = StartTrimmer(RATE), speech(1_920, 3_840)
    assert len(trimmer.trim(samples[:1_920])) == 0
    assert not trimmer.is_open
    assert len(trimmer.trim(samples[1_920:1_921])) == KEPT + 1
    assert trimmer.is_open
    assert len(trimmer.trim(samples[1_921:])) == 3_839


def test_trimmer_returns_audio_without_sound_unchanged() -> None:
    silence = speech(5_000, 0)
    assert np.array_equal(trimmed(silence, [100, 1_920]), silence)


@given(st.integers(0, 4_000), st.lists(st.integers(0, 1_000), max_size=6))
def test_trimmer_result_is_the_same_for_all_chunk_sizes(num_silent: int, sizes: list[int]) -> None:
    samples = speech(num_silent)
    expected = samples[max(0, num_silent - KEPT) :]
    assert np.array_equal(trimmed(samples, sizes), expected)


def test_sound_span_is_the_windows_of_10_ms_with_sound() -> None:
    samples = np.zeros(10 * 240 + 100, np.float32)
    samples[700:1_000] = 0.1  # in the windows 2 to 4
    assert sound_span(samples, RATE) == (480, 1_200)
    assert find_sound(samples, RATE) == ((480, 1_200), 2_400)


def test_sound_span_of_silence_is_everything() -> None:
    samples = np.zeros(500, np.float32)
    assert sound_span(samples, RATE) == (0, 500)
    assert find_sound(samples, RATE) == (None, 480)
