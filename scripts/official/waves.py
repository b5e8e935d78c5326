"""Synthetic recordings for the golden values, made by a formula.

`tests/golden/README.md` repeats it for the tests.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def synthetic_wave(seconds: float, sample_rate: int = 24000) -> NDArray[np.float32]:
    """Three wavering tones that swell and fade, and a little noise; peaks at 0.61."""
    num_samples = round(seconds * sample_rate)
    time = np.arange(num_samples) / sample_rate
    waver = 2 * np.sin(2 * np.pi * 1.7 * time)
    tones = [(0.3, 180.0), (0.2, 410.0), (0.1, 1330.0)]
    sound = sum(level * np.sin(2 * np.pi * pitch * time + waver) for level, pitch in tones)
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * 2.3 * time)
    noise = np.random.RandomState(7).uniform(-0.02, 0.02, num_samples)
    wave: NDArray[np.float32] = (swell * sound + noise).astype(np.float32)
    return wave
