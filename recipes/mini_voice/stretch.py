"""Stretches a recording along a path of `warp`, at constant pitch (WSOLA)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vivace.audio.speed import make_fade, overlap_add
from vivace.audio.wav import Samples

COLUMN = 240  # samples of a mel column
OVERLAP, REACH = 240, 120  # samples: 10 ms of two segments, and 5 ms around a segment's position
SMOOTHING = 5  # columns of the path


def stretch(samples: Tensor, path: Tensor) -> Tensor:
    """The samples of the columns that `path` names, `COLUMN` for each."""
    end = np.zeros(2 * (OVERLAP + REACH), np.float32)
    source = np.concatenate([samples.cpu().numpy(), end])
    length = COLUMN * len(path)
    positions = _positions(path.cpu().numpy(), length)
    tail = source[positions[0] : positions[0] + OVERLAP]
    fade, pieces = make_fade(OVERLAP), []
    for position in positions:
        area = source[max(0, position - REACH) : position + REACH + 2 * OVERLAP]
        piece, tail = overlap_add(area, tail, fade)
        pieces.append(piece)
    return torch.from_numpy(np.concatenate(pieces)[:length]).to(samples.device)


def _positions(path: Samples, length: int) -> list[int]:
    """The samples of the source where the segments of the output are expected."""
    padded = np.pad(path.astype(np.float64), SMOOTHING // 2, mode="reflect", reflect_type="odd")
    columns = np.convolve(padded, np.full(SMOOTHING, 1 / SMOOTHING), mode="valid")
    at = np.arange(0, length, OVERLAP) / COLUMN
    found = COLUMN * np.interp(at, np.arange(len(columns)), columns)
    return [max(0, round(one)) for one in found]
