"""A second test of the detector: the spectrum must have the pattern of the mark.

The decoder of Perth gives high scores to many artificial sounds, such as tones and chords. The mark
is known: its gains, bin by bin. Their correlation with the mean spectrum of the audio is near 0 for
every unmarked sound.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vivace.mark.watermark_filter import design_filter
from vivace.mark.watermark_network import BIN_HZ, RANGE_DB

NUM_NEIGHBOURS = 9  # bins whose mean is subtracted from each bin
LIMIT_DB = 3.0  # of the difference, so that harmonics do not outweigh the mark
QUIET_DB = 40.0  # below the loudest frame; quieter frames are not read
DESIGN_RATE = 24_000  # the response below 2 kHz is the same at every rate


def mark_pattern(gains_db: tuple[float, ...]) -> Tensor:
    """What the mark adds to each bin, relative to its neighbours, in decibels: [128]."""
    taps = design_filter(gains_db, DESIGN_RATE).astype(np.float64)
    frequencies = BIN_HZ / DESIGN_RATE * np.arange(len(gains_db))
    response = np.exp(-2j * np.pi * np.outer(frequencies, np.arange(len(taps)))) @ taps
    return _subtract_neighbours(torch.from_numpy(20 * np.log10(np.abs(response)))[:, None])[:, 0]


def correlate(levels: Tensor, pattern: Tensor) -> float:
    """The correlation of levels [128, n] with a pattern, -1 to 1; 0 for silence."""
    loudness = levels.mean(0)
    is_loud = loudness > loudness.max() - QUIET_DB / RANGE_DB
    decibels = levels[:, is_loud].double() * RANGE_DB
    found = _subtract_neighbours(decibels).clamp(-LIMIT_DB, LIMIT_DB).mean(1)  # [128]
    return float(F.cosine_similarity(found, pattern, dim=0))


def _subtract_neighbours(decibels: Tensor) -> Tensor:
    means = F.avg_pool1d(
        decibels.T[:, None],  # [n, 1, 128]
        NUM_NEIGHBOURS,
        stride=1,
        padding=NUM_NEIGHBOURS // 2,
        count_include_pad=False,
    )
    return decibels - means[:, 0].T
