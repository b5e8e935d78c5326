"""Changes the speed of a stream at constant pitch: WSOLA (waveform-similarity overlap-add).

Segments of the input overlap in the output at a different spacing. Each segment is taken where it
is most similar to the continuation of the previous segment.
"""

from __future__ import annotations

from functools import cached_property
from numbers import Real

import numpy as np

from vivace.audio.wav import Samples
from vivace.errors import RequestError

MIN_SPEED, MAX_SPEED = 0.25, 4.0
OVERLAP_S = 0.015  # of two segments; longer than one period of a low voice
REACH_S = 0.010  # maximum distance of a segment from its nominal position


class SpeedChanger:
    """Stretches a stream: `process` for each chunk, then `finish`.

    The output has round(num_samples / speed) samples and does not depend on the chunk sizes.
    """

    def __init__(self, speed: float, sample_rate: int) -> None:
        self.speed = check_speed(speed)
        self._overlap = max(1, round(OVERLAP_S * sample_rate))
        self._reach = round(REACH_S * sample_rate)
        self._input = np.zeros(0, np.float32)  # from sample `_start` on
        self._start = 0
        self._num_in = self._num_pieces = self._num_out = 0
        self._tail: Samples | None = None  # input that continues the previous segment
        self._is_finished = False

    @cached_property
    def _fade_in(self) -> Samples:
        return make_fade(self._overlap)

    def process(self, samples: Samples) -> Samples:
        """Add samples [n] and return the output that is final."""
        if self._is_finished:
            raise RequestError("the speed changer is finished; create a new one")
        samples = np.asarray(samples, np.float32)
        if self.speed == 1:
            return samples
        self._input = np.concatenate([self._input, samples])
        self._num_in += len(samples)
        pieces = []
        while self._is_next_certain():
            pieces.append(self._next_piece(self._due() + self._reach))
        return self._emit(pieces)

    def finish(self) -> Samples:
        """Return the rest of the output and end the stream."""
        if self._is_finished or self.speed == 1:
            self._is_finished = True
            return np.zeros(0, np.float32)
        self._is_finished = True
        num_left = round(self._num_in / self.speed) - self._num_out
        num_pieces = -(-num_left // self._overlap)
        padding = np.zeros(2 * self._overlap, np.float32)  # the input may be shorter
        self._input = np.concatenate([self._input, padding])
        pieces = []
        for num_after in reversed(range(num_pieces)):
            # Every segment but the last needs its continuation in the input.
            reserved = 2 * self._overlap if num_after else self._overlap
            last = max(0, self._num_in - reserved)
            pieces.append(self._next_piece(min(self._due() + self._reach, last)))
        return self._emit(pieces)[:num_left]

    def _is_next_certain(self) -> bool:
        """Whether the input holds the next segment's whole search range."""
        is_complete = self._due() + self._reach + 2 * self._overlap <= self._num_in
        end = (self._num_pieces + 1) * self._overlap
        return is_complete and end <= round(self._num_in / self.speed)

    def _due(self) -> int:
        """The nominal position of the next segment in the input."""
        return round(self._num_pieces * self._overlap * self.speed)

    def _next_piece(self, last: int) -> Samples:
        """The next `_overlap` samples of output, from a segment at position `last` or before."""
        first = max(0, min(self._due(), last) - self._reach)
        start, length = first - self._start, self._overlap
        area: Samples = self._input[start : start + last - first + 2 * length].copy()
        self._num_pieces += 1
        if self._tail is None:
            self._tail = area[length : 2 * length]
            return area[:length]
        output, self._tail = overlap_add(area, self._tail, self._fade_in)
        return output

    def _emit(self, pieces: list[Samples]) -> Samples:
        kept = min(self._due(), self._num_in - 2 * self._overlap) - self._reach
        if kept > self._start:
            self._input = self._input[kept - self._start :].copy()
            self._start = kept
        output = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
        self._num_out += len(output)
        return output


def check_speed(speed: float) -> float:
    """The speed as a float, or a RequestError."""
    is_number = isinstance(speed, Real) and not isinstance(speed, bool)
    if not is_number or not MIN_SPEED <= speed <= MAX_SPEED:
        raise RequestError(f"speed must be {MIN_SPEED:g} to {MAX_SPEED:g}, not {speed!r}")
    return float(speed)


def make_fade(length: int) -> Samples:
    """The weights of a segment that begins."""
    phase = (np.arange(length) + 0.5) / length
    fade: Samples = np.sin(phase * np.pi / 2).astype(np.float32) ** 2
    return fade


def overlap_add(area: Samples, tail: Samples, fade: Samples) -> tuple[Samples, Samples]:
    """Fade from `tail` to the segment of `area` that is most similar to it.

    Returns the overlap, and the samples that continue the segment.
    """
    length = len(tail)
    start = _best_match(area[:-length], tail)
    segment = area[start : start + 2 * length]
    return tail + fade * (segment[:length] - tail), segment[length:]


def _best_match(area: Samples, tail: Samples) -> int:
    """The offset in `area` with the highest normalised correlation with `tail`."""
    correlation = np.correlate(area, tail, mode="valid")
    sums = np.concatenate([[0.0], np.cumsum(np.square(area, dtype=np.float64))])
    energy = sums[len(tail) :] - sums[: -len(tail)]
    return int(np.argmax(correlation / np.sqrt(np.maximum(energy, 1e-9))))
