"""Finds and trims silence around speech."""

from __future__ import annotations

import numpy as np

from vivace.audio.wav import Samples

WINDOW_S = 0.01
AUDIBLE = 10 ** (-45 / 20)  # root mean square of a window
KEPT_S = 0.1  # of the silence before the first sound


class StartTrimmer:
    """Removes the silence before the first sound, except for `KEPT_S`.

    Samples are buffered until the first sound. Audio without sound is returned unchanged with the
    last chunk. The result does not depend on the chunk sizes.
    """

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._num_kept = round(KEPT_S * sample_rate)
        self._held = np.empty(0, dtype=np.float32)
        self._num_searched = 0  # samples of `_held`, in whole windows
        self._is_open = False

    def trim(self, samples: Samples, *, is_last: bool = False) -> Samples:
        """Add samples and return the samples that are final."""
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
        """The position of the first sound in `_held`, or None."""
        span, num_searched = find_sound(self._held[self._num_searched :], self._sample_rate)
        if span is not None:
            return self._num_searched + span[0]
        self._num_searched += num_searched
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
