"""Silence at the start of an utterance: how much there is, and how much is too much."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WINDOW_S = 0.01
AUDIBLE = 10 ** (-45 / 20)  # root mean square of a window
KEPT_S = 0.1  # of the silence before the first sound


def trim_start(samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.float32]:
    """The samples from a tenth of a second before the first sound; all of them if there is none."""
    window = round(WINDOW_S * sample_rate)
    num_windows = len(samples) // window
    if not num_windows:
        return samples
    level = np.sqrt(np.square(samples[: num_windows * window]).reshape(-1, window).mean(axis=1))
    heard = np.flatnonzero(level > AUDIBLE)
    if not len(heard):
        return samples
    return samples[max(0, heard[0] * window - round(KEPT_S * sample_rate)) :]
