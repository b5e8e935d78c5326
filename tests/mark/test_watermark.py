"""Marks of streams and their detection, without the extra `mark`, whose networks are replaced."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from vivace.audio.wav import Samples
from vivace.errors import AudioError
from vivace.mark import watermark, watermark_network
from vivace.mark.watermark import CERTAIN, THRESHOLD, Watermark
from vivace.mark.watermark_network import NUM_BINS, WatermarkNetwork

RATES = (8_000, 22_050, 24_000, 48_000)
LOUD_BIN = 64  # 1 kHz


class FakeNetwork(WatermarkNetwork):
    """Gains of ±2 dB in a fixed order. The level of 1 kHz, 0 to 1, is the score."""

    def __init__(self, gain_db: float = 2.0) -> None:
        super().__init__({})
        self.gain_db, self.num_scored = gain_db, 0

    def gains_db(self) -> NDArray[np.float64]:
        return self.gain_db * np.random.default_rng(5).choice([-1.0, 1.0], NUM_BINS)

    def score(self, levels: Tensor) -> float:
        self.num_scored += 1
        middle = levels[LOUD_BIN, levels.shape[1] // 2]
        return 10 ** (float(middle) * 195 / 20 - 9) / 512  # the amplitude of the tone


@pytest.fixture
def mark() -> Watermark:
    return Watermark(FakeNetwork())


def speech_like(num_samples: int, seed: int = 0) -> Samples:
    """Noise whose level changes, at most 0.5."""
    rng = np.random.default_rng(seed)
    noise = rng.uniform(-0.5, 0.5, num_samples) * np.sin(np.arange(num_samples) / 900)
    return noise.astype(np.float32)


def tone(amplitude: float, seconds: float, rate: int = 24_000) -> Samples:
    samples = amplitude * np.sin(2 * np.pi * 1_000 * np.arange(round(seconds * rate)) / rate)
    return samples.astype(np.float32)


def mark_whole(mark: Watermark, samples: Samples, rate: int = 24_000) -> Samples:
    stream = mark.stream(rate)
    return np.concatenate((stream.feed(samples), stream.finish()))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("seed", range(3))
def test_output_does_not_depend_on_division_into_calls(
    mark: Watermark, rate: int, seed: int
) -> None:
    samples, rng = speech_like(rate), np.random.default_rng(seed)
    sizes = rng.choice([0, 1, 2, 3, 7, 100, 767, 768, 769, 1_920, 5_001], 400)
    parts = np.split(samples, np.minimum(np.cumsum(sizes), len(samples)))
    stream = mark.stream(rate)
    outputs = [stream.feed(part) for part in parts]
    assert [len(output) for output in outputs] == [len(part) for part in parts]
    divided = np.concatenate((*outputs, stream.finish()))
    assert np.array_equal(divided, mark_whole(mark, samples, rate))


def test_mark_has_no_delay(mark: Watermark) -> None:
    click = np.zeros(2_000, np.float32)
    click[1_000] = 0.5
    marked = mark_whole(mark, click)
    assert not marked[:1_000].any()
    assert marked[1_000] == pytest.approx(0.5, abs=0.1)
    assert mark.stream(24_000).delay_s == 0


@pytest.mark.parametrize("num_samples", [0, 1, 240])
def test_short_clips_keep_their_length(mark: Watermark, num_samples: int) -> None:
    samples = speech_like(num_samples)
    marked = mark_whole(mark, samples)
    assert len(marked) == num_samples
    assert marked.dtype == np.float32


def test_mark_changes_speech_but_not_silence(mark: Watermark) -> None:
    assert not mark_whole(mark, np.zeros(24_000, np.float32)).any()
    samples = speech_like(24_000)
    error = mark_whole(mark, samples) - samples
    ratio_db = 10 * np.log10(np.sum(samples**2) / np.sum(error**2))
    assert 10 < ratio_db < 30  # the band below 2 kHz has a sixth of the energy of noise


def test_output_stays_within_full_scale(mark: Watermark) -> None:
    square = np.sign(speech_like(24_000)).astype(np.float32)
    marked = mark_whole(mark, square)
    assert np.abs(marked).max() == 1.0


def test_non_finite_samples_do_not_reach_the_output(mark: Watermark) -> None:
    samples = speech_like(24_000)
    replaced = samples.copy()
    samples[100], samples[200], samples[300] = np.nan, np.inf, -np.inf
    replaced[100], replaced[200], replaced[300] = 0, 1, -1
    assert np.array_equal(mark_whole(mark, samples), mark_whole(mark, replaced))


def test_input_is_not_written(mark: Watermark) -> None:
    samples = speech_like(5_000)
    samples[7] = np.nan
    samples.setflags(write=False)
    marked = mark.stream(24_000).feed(samples)
    assert np.isnan(samples[7])
    assert not np.shares_memory(marked, samples)


def test_streams_of_many_threads_are_independent(mark: Watermark) -> None:
    clips = [speech_like(12_000, seed) for seed in range(8)]

    def mark_in_parts(clip: Samples) -> Samples:
        stream = mark.stream(24_000)
        return np.concatenate([stream.feed(part) for part in np.array_split(clip, 50)])

    with ThreadPoolExecutor(4) as pool:
        marked = list(pool.map(mark_in_parts, clips))
    for clip, found in zip(clips, marked, strict=True):
        assert np.array_equal(found, mark_whole(mark, clip))


@pytest.mark.parametrize("rate", [0, -1, 3_999, 10_000_000])
def test_rate_out_of_range_is_rejected(mark: Watermark, rate: int) -> None:
    with pytest.raises(AudioError, match="rate"):
        mark.stream(rate)
    with pytest.raises(AudioError, match="rate"):
        mark.detect(speech_like(100), rate)


def test_stereo_is_rejected(mark: Watermark) -> None:
    with pytest.raises(AudioError, match="shape"):
        mark.stream(24_000).feed(np.zeros((2, 100), np.float32))
    with pytest.raises(AudioError, match="shape"):
        mark.detect(np.zeros((2, 100), np.float32), 24_000)


# --- Detection --------------------------------------------------------------------------------


@pytest.fixture
def without_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """The score alone decides."""
    monkeypatch.setattr(watermark, "shows_pattern", lambda *_: True)


def test_score_counts_only_with_the_pattern_of_the_mark(
    mark: Watermark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeNetwork, "score", lambda *_: 0.9)
    samples = speech_like(48_000)
    assert mark.detect(samples, 24_000).confidence == 0.0
    assert mark.detect(mark_whole(mark, samples), 24_000).confidence == 0.9
    other = Watermark(FakeNetwork(gain_db=-2.0))
    assert other.detect(mark_whole(mark, samples), 24_000).confidence == 0.0


@pytest.mark.parametrize("rate", RATES)
def test_pattern_is_found_at_every_rate(
    mark: Watermark, monkeypatch: pytest.MonkeyPatch, rate: int
) -> None:
    monkeypatch.setattr(FakeNetwork, "score", lambda *_: 0.9)
    samples = speech_like(rate)
    assert mark.detect(mark_whole(mark, samples, rate), rate).is_marked
    assert not mark.detect(samples, rate).is_marked


@pytest.mark.parametrize(("num_samples", "confidence"), [(7_199, 0.0), (7_200, 0.9)])
def test_short_audio_has_no_confidence(
    mark: Watermark, monkeypatch: pytest.MonkeyPatch, num_samples: int, confidence: float
) -> None:
    monkeypatch.setattr(FakeNetwork, "score", lambda *_: 0.9)
    monkeypatch.setattr(watermark, "shows_pattern", lambda *_: True)
    assert mark.detect(speech_like(num_samples), 24_000).confidence == confidence


@pytest.mark.usefixtures("without_pattern")
def test_threshold_decides(mark: Watermark, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = tone(0.5, 2.0)
    for score, is_marked in ((THRESHOLD, True), (THRESHOLD - 1e-6, False), (1.7, True)):
        monkeypatch.setattr(FakeNetwork, "score", lambda *_, score=score: score)
        result = mark.detect(samples, 24_000)
        assert result.is_marked is is_marked
        assert result.confidence == min(1.0, score)


@pytest.mark.usefixtures("without_pattern")
def test_confidence_is_never_negative(mark: Watermark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeNetwork, "score", lambda *_: -0.2)
    assert mark.detect(tone(0.5, 2.0), 24_000).confidence == 0.0


@pytest.mark.usefixtures("without_pattern")
def test_mark_in_a_part_of_long_audio_is_found(mark: Watermark) -> None:
    samples = np.concatenate((tone(0.1, 31.0), tone(0.8, 10.0), tone(0.2, 20.0)))
    result = mark.detect(samples, 24_000)
    assert result.confidence == pytest.approx(0.8, abs=0.02)
    assert mark.detect(samples[: 30 * 24_000], 24_000).confidence == pytest.approx(0.1, abs=0.02)


@pytest.mark.usefixtures("without_pattern")
def test_detection_ends_at_a_certain_window() -> None:
    network = FakeNetwork()
    samples = np.concatenate((tone(0.1, 20.0), tone(CERTAIN + 0.02, 60.0)))
    assert Watermark(network).detect(samples, 24_000).confidence > CERTAIN
    assert network.num_scored == 3


@pytest.mark.usefixtures("without_pattern")
def test_windows_have_similar_lengths(mark: Watermark, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []

    def to_levels(samples: Samples, rate: int) -> object:
        lengths.append(len(samples) / rate)
        return watermark_network.to_levels(samples, rate)

    monkeypatch.setattr(watermark, "to_levels", to_levels)
    for seconds in (0.3, 1.0, 14.9, 15.1, 44.0):
        lengths.clear()
        mark.detect(tone(0.1, seconds), 24_000)
        assert sum(lengths) == pytest.approx(seconds)
        assert max(lengths) <= 15.0
        assert min(lengths) >= min(seconds, 7.5) - 1e-3


@pytest.mark.parametrize("num_samples", [0, 1, 240, 24_000])
def test_silence_has_no_mark(mark: Watermark, num_samples: int) -> None:
    result = mark.detect(np.zeros(num_samples, np.float32), 24_000)
    assert (result.is_marked, result.confidence) == (False, 0.0)


@pytest.mark.usefixtures("without_pattern")
def test_detection_replaces_non_finite_samples(mark: Watermark) -> None:
    samples = tone(0.5, 1.0)
    samples[50] = np.nan
    assert mark.detect(samples, 24_000).confidence == pytest.approx(0.5, abs=0.02)
