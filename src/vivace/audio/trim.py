"""Finds and trims silence around speech."""

from __future__ import annotations

import numpy as np

from vivace.audio.wav import Samples

WINDOW_S = 0.01
AUDIBLE = 10 ** (-45 / 20)  # root mean square of a window
AUDIBLE_SAMPLE = 10 ** (-50 / 20)  # absolute value
KEPT_S = 0.02  # of the silence before the first audible sample
MAX_SEARCHED = 500  # samples at once; for more, numpy releases the GIL and waits to get it back


class StartTrimmer:
    """Removes the samples before the first audible one, except for `KEPT_S`.

    Samples are buffered until then. Audio without sound is returned unchanged with the last chunk.
    The result does not depend on the chunk sizes.
    """

    def __init__(self, sample_rate: int) -> None:
        self._num_kept = round(KEPT_S * sample_rate)
        self._held = np.empty(0, dtype=np.float32)
        self.is_open = False  # whether the first audible sample was found

    def trim(self, samples: Samples, *, is_last: bool = False) -> Samples:
        """Add samples and return the samples that are final."""
        if self.is_open:
            return samples
        first = first_audible(samples)
        held = np.concatenate((self._held, samples)) if len(self._held) else samples
        if first is None and not is_last:
            self._held = held
            return held[:0]
        start = 0 if first is None else len(self._held) + first - self._num_kept
        self.is_open, self._held = True, held[:0]
        return held[max(0, start) :]


def first_audible(samples: Samples) -> int | None:
    """The number of the first sample above `AUDIBLE_SAMPLE`, or None."""
    for start in range(0, len(samples), MAX_SEARCHED):
        is_audible = np.abs(samples[start : start + MAX_SEARCHED]) > AUDIBLE_SAMPLE
        if (first := is_audible.tobytes().find(1)) >= 0:
            return start + first
    return None


def sound_span(samples: Samples, sample_rate: int) -> tuple[int, int]:
    """Start and end of the sound, rounded to `WINDOW_S`. Silence is returned in full."""
    found, _ = find_sound(samples, sample_rate)
    return found or (0, len(samples))


def find_sound(samples: Samples, sample_rate: int) -> tuple[tuple[int, int] | None, int]:
    """Start and end of the sound, or None, and the number of searched samples (whole windows)."""
    window = round(WINDOW_S * sample_rate)
    num_searched = len(samples) // window * window
    windows = samples[:num_searched].reshape(-1, window)
    audible = np.flatnonzero(np.sqrt(np.square(windows).mean(axis=1)) > AUDIBLE)
    span = (int(audible[0]) * window, (int(audible[-1]) + 1) * window) if len(audible) else None
    return span, num_searched
