"""Finds and trims silence around speech."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WINDOW_S = 0.01
AUDIBLE = 10 ** (-45 / 20)  # root mean square of a window
KEPT_S = 0.1  # of the silence before the first sound

Samples = NDArray[np.float32]


class StartTrimmer:
    """Buffers samples until the first sound, then passes on all but `KEPT_S` of silence before it.

    Audio without any sound is returned whole, at its end. The result does not depend on the chunks.
    """

    def __init__(self, sample_rate: int) -> None:
        self._window = round(WINDOW_S * sample_rate)
        self._num_kept = round(KEPT_S * sample_rate)
        self._held = np.empty(0, dtype=np.float32)
        self._num_searched = 0  # samples of `_held`, in whole windows
        self._is_open = False

    def trim(self, samples: Samples, *, is_last: bool = False) -> Samples:
        """Add samples; returns those that are final."""
        if self._is_open:
            return samples
        self._held = np.concatenate((self._held, samples))
        start = self._find_sound()
        if start is None and not is_last:
            return self._held[:0]
        self._is_open = True
        held, self._held = self._held, self._held[:0]
        return held[max(0, (start or 0) - self._num_kept) :]

    def _find_sound(self) -> int | None:
        end = len(self._held) // self._window * self._window
        heard = _audible(self._held[self._num_searched : end], self._window)
        if len(heard):
            return self._num_searched + int(heard[0]) * self._window
        self._num_searched = end
        return None


def sound_span(samples: Samples, sample_rate: int) -> tuple[int, int]:
    """Where sound begins and ends, to `WINDOW_S`; all of what has none."""
    found, _ = find_sound(samples, sample_rate)
    return found or (0, len(samples))


def find_sound(samples: Samples, sample_rate: int) -> tuple[tuple[int, int] | None, int]:
    """Where sound begins and ends, or None; and how many samples, in windows, were searched."""
    window = round(WINDOW_S * sample_rate)
    num_searched = len(samples) // window * window
    heard = _audible(samples[:num_searched], window)
    span = (int(heard[0]) * window, (int(heard[-1]) + 1) * window) if len(heard) else None
    return span, num_searched


def _audible(samples: Samples, window: int) -> NDArray[np.intp]:
    """The windows in which there is sound."""
    windows = samples.reshape(-1, window)
    return np.flatnonzero(np.sqrt(np.square(windows).mean(axis=1)) > AUDIBLE)
