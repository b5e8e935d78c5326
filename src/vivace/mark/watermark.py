"""`Watermark`: a mark in samples, and its detector. Needs the extra `mark`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from vivace.audio.wav import Samples
from vivace.errors import AudioError
from vivace.mark.watermark_filter import design_filter
from vivace.mark.watermark_network import WatermarkNetwork, to_levels
from vivace.mark.watermark_pattern import mark_pattern, shows_pattern

THRESHOLD = 0.3  # confidence of marked audio; docs/responsible-use.md has the measurements
MIN_S = 0.3  # of audio; shorter audio has no reliable score
CERTAIN = 0.95  # the rest of the audio is not read
WINDOW_S = 10.0  # audio that is scored at once
MIN_RATE, MAX_RATE = 4_000, 768_000  # samples per second; the mark is below 2 kHz


@dataclass(frozen=True, slots=True)
class WatermarkResult:
    is_marked: bool
    confidence: float  # 0 to 1


class WatermarkStream:
    """Marks one stream. The output does not depend on how the samples are divided into calls."""

    delay_s: ClassVar[float] = 0.0  # `feed` returns as many samples as it takes

    def __init__(self, taps: Samples) -> None:
        self._taps = taps
        self._last = np.zeros(len(taps) - 1, np.float32)  # input before the next sample

    def feed(self, samples: ArrayLike) -> Samples:
        """Mark samples [n]. NaN becomes 0; the output stays within -1 and 1."""
        new = _to_samples(samples)
        if not len(new):
            return new
        joined = np.concatenate((self._last, new))
        self._last = joined[len(new) :]
        # "valid" sums the same products in the same order for every sample.
        marked: Samples = np.convolve(joined, self._taps, "valid")
        return np.clip(marked, -1.0, 1.0, out=marked)

    def finish(self) -> Samples:
        """Return the samples that were held back: none."""
        return np.zeros(0, np.float32)


class Watermark:
    """A loaded watermark. Any number of threads may use it."""

    def __init__(self, network: WatermarkNetwork) -> None:
        self._network = network
        self._gains_db = tuple(network.gains_db().tolist())
        self._pattern = mark_pattern(self._gains_db)

    @classmethod
    def load(cls) -> Watermark:
        """Load the weights of the extra `mark`. Raises RequestError or CheckpointError."""
        return cls(WatermarkNetwork.load())

    def stream(self, rate: int) -> WatermarkStream:
        """Open a stream of `rate` samples per second. Raises AudioError."""
        return WatermarkStream(design_filter(self._gains_db, _check_rate(rate)))

    def detect(self, samples: ArrayLike, rate: int) -> WatermarkResult:
        """Look for the mark in samples [n].

        The confidence is the highest score of windows of about 10 s: a mark in a part of the audio
        is found. It is 0 for audio shorter than 0.3 s.
        """
        clean, confidence = _to_samples(samples), 0.0
        num_windows = max(1, round(len(clean) / (_check_rate(rate) * WINDOW_S)))
        for window in np.array_split(clean, num_windows):
            confidence = max(confidence, self._score(window, rate))
            if confidence >= CERTAIN:
                break
        return WatermarkResult(is_marked=confidence >= THRESHOLD, confidence=confidence)

    def _score(self, window: Samples, rate: int) -> float:
        if len(window) < rate * MIN_S or not window.any():
            return 0.0
        levels = to_levels(window, rate)
        if not shows_pattern(levels, self._pattern):
            return 0.0
        return min(1.0, self._network.score(levels))


def _to_samples(samples: ArrayLike) -> Samples:
    with np.errstate(over="ignore"):  # of float64; infinite values are replaced
        signal = np.asarray(samples, dtype=np.float32)
    if signal.ndim != 1:
        raise AudioError(f"samples must have the shape [n], not {list(signal.shape)}")
    return np.nan_to_num(signal, nan=0.0, posinf=1.0, neginf=-1.0)


def _check_rate(rate: int) -> int:
    if not MIN_RATE <= rate <= MAX_RATE:
        raise AudioError(
            f"rate is {rate:,}; a watermark needs {MIN_RATE:,} to {MAX_RATE:,} samples per second"
        )
    return rate
