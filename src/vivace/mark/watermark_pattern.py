"""A second test of the detector: the spectrum must have the pattern of the mark.

The decoder of Perth gives high scores to many artificial sounds, such as tones and chords. The mark
is known: its gains, bin by bin. Their correlation with the mean spectrum of unmarked speech is
near 0.

The mark is constant in time. In a sound that is constant too, such as a tone or a chord, the
spectrum of the sound cannot be distinguished from the mark. A bin therefore counts as evidence only
if its level varies, and only in frames where it is not far below the loudest bin. Speech, noise and
most music have nearly all bins as evidence; tones have few, and are never reported.

The mean spectrum of music has peaks of its own, at the notes, and can correlate with the mark by
chance. The stronger its differences between bins are, compared with those of the mark, the higher
the correlation must be. Speech and noise of more than a second have weak differences.
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
FAINT_DB = 60.0  # below the loudest bin of a frame; fainter bins are no evidence
MIN_SHARE = 0.25  # of the frames in which a bin is not faint
MIN_DEVIATION_DB = 1.0  # of a bin's level over time, relative to its neighbours; speech has 2.4
MIN_SUPPORT = 0.75  # share of the bins that are evidence
MIN_CORRELATION = 0.3  # with the pattern of the mark
STRONG, STRONG_SLOPE = 0.7, 0.5  # differences, relative to the mark's, that require more; how much
DESIGN_RATE = 24_000  # the response below 2 kHz is the same at every rate


def mark_pattern(gains_db: tuple[float, ...]) -> Tensor:
    """The gain of the mark in each bin, relative to its neighbours, in decibels: [128]."""
    taps = design_filter(gains_db, DESIGN_RATE).astype(np.float64)
    frequencies = BIN_HZ / DESIGN_RATE * np.arange(len(gains_db))
    response = np.exp(-2j * np.pi * np.outer(frequencies, np.arange(len(taps)))) @ taps
    return _subtract_neighbours(torch.from_numpy(20 * np.log10(np.abs(response)))[:, None])[:, 0]


def shows_pattern(levels: Tensor, pattern: Tensor) -> bool:
    """Whether the mean spectrum of levels [128, n] has the pattern of the mark."""
    loudness = levels.mean(0)
    is_loud = loudness > loudness.max() - QUIET_DB / RANGE_DB
    decibels = levels[:, is_loud].double() * RANGE_DB
    changes = _subtract_neighbours(decibels).clamp(-LIMIT_DB, LIMIT_DB)
    if _support(decibels, changes) < MIN_SUPPORT:
        return False
    found = changes.mean(1)
    excess = max(0.0, float(found.norm() / pattern.norm()) - STRONG)
    correlation = float(F.cosine_similarity(found, pattern, dim=0))
    return correlation >= MIN_CORRELATION + STRONG_SLOPE * excess


def _support(decibels: Tensor, changes: Tensor) -> float:
    """The share of bins [128, n] that vary in time and are not faint."""
    is_read = decibels > decibels.amax(0) - FAINT_DB
    counts = is_read.sum(1).clamp(min=1)
    means = (changes * is_read).sum(1) / counts
    variances = ((changes - means[:, None]).square() * is_read).sum(1) / counts
    is_evidence = (variances >= MIN_DEVIATION_DB**2) & (counts >= MIN_SHARE * is_read.shape[1])
    return float(is_evidence.double().mean())


def _subtract_neighbours(decibels: Tensor) -> Tensor:
    means = F.avg_pool1d(
        decibels.T[:, None],  # [n, 1, 128]
        NUM_NEIGHBOURS,
        stride=1,
        padding=NUM_NEIGHBOURS // 2,
        count_include_pad=False,
    )
    return decibels - means[:, 0].T
