"""Dynamic time warping of log-mels: maps the columns of one recording to those of another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

POOL = 4  # mel bands averaged, which hides the pitch
HOP = 2  # mel columns averaged, 20 ms
FLOOR = -7.0  # log-mels below are silence
STEPS = 4  # a step forward skips at most STEPS - 1 columns of the source
SKIP_COST = 0.1  # of a step other than 1, relative to the mean distance
SLACK = 15  # columns that may be left out at both ends of the source


def align(sources: list[Tensor], targets: list[Tensor]) -> list[Tensor]:
    """For each pair of log-mels [mels, columns], the source column of each target column.

    Bands are normalized over all recordings of a side, so that two speakers can be compared.
    """
    source_features, target_features = _features(sources), _features(targets)
    paths = []
    for source, target, (mels, goal) in zip(
        source_features, target_features, zip(sources, targets, strict=True), strict=True
    ):
        path = warp(torch.cdist(target.T[None], source.T[None])[0])
        place = HOP * path.repeat_interleave(HOP) + torch.arange(HOP).repeat(len(path))
        place = F.pad(place, (0, max(0, goal.shape[1] - len(place))), value=mels.shape[1] - 1)
        paths.append(place[: goal.shape[1]].clamp(max=mels.shape[1] - 1))
    return paths


def warp(distances: Tensor) -> Tensor:
    """For each target, the source on the cheapest monotonic path through [target, source]."""
    num_sources = distances.shape[1]
    costs = torch.full((STEPS,), SKIP_COST * float(distances.mean()))
    costs[1] = 0
    total = distances[0].clone()
    total[SLACK + 1 :] = torch.inf
    choices = []
    for row in distances[1:]:
        padded = F.pad(total, (STEPS - 1, 0), value=torch.inf)
        options = torch.stack(
            [padded[STEPS - 1 - step :][:num_sources] + costs[step] for step in range(STEPS)]
        )
        best = options.min(0)
        total = row + best.values
        choices.append(best.indices)
    end = total[-SLACK - 1 :]
    place = num_sources - len(end) + int(end.argmin())
    path = [place]
    for choice in reversed(choices):
        place -= int(choice[place])
        path.append(place)
    return torch.tensor(path[::-1])


def _features(mels: list[Tensor]) -> list[Tensor]:
    pooled = [F.avg_pool2d(one.clamp(min=FLOOR)[None], (POOL, HOP))[0] for one in mels]
    whole = torch.cat(pooled, 1)
    mean, std = whole.mean(1, keepdim=True), whole.std(1, keepdim=True) + 1e-3
    return [(one - mean) / std for one in pooled]
