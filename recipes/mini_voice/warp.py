"""Dynamic time warping of log-mels: maps the columns of one recording to those of another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

POOL = 8  # mel bands averaged, which hides the pitch
FLOOR = -7.0  # log-mels below are silence
REACH, CHANGE_WEIGHT = 2, 2.0  # of the change from 20 ms before a column to 20 ms after it
STEPS = 4  # a step forward skips at most STEPS - 1 columns of the source
SKIP_COST = 0.05  # of a step other than 1, relative to the mean distance
SLACK = 30  # columns that may be left out at both ends of the source
BATCH = 32  # pairs that are aligned together


def align(sources: list[Tensor], targets: list[Tensor]) -> list[Tensor]:
    """For each pair of log-mels [mels, columns], the source column of each target column.

    Bands are normalized over all recordings of a side, so that two speakers can be compared.
    """
    features = list(zip(_features(sources), _features(targets), strict=True))
    order = sorted(range(len(features)), key=lambda one: features[one][1].shape[1])
    paths: dict[int, Tensor] = {}
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        paths |= zip(chosen, warp([features[one] for one in chosen]), strict=True)
    return [paths[number] for number in range(len(features))]


def warp(pairs: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """For each target column of features [bands, columns], the source column on the cheapest
    monotonic path."""
    sources, targets = (
        pad_sequence([pair[side].T for pair in pairs], batch_first=True) for side in (0, 1)
    )
    distances = torch.cdist(targets, sources)  # [B, targets, sources]
    lengths = torch.tensor([pair[1].shape[1] for pair in pairs], device=distances.device)
    num_sources = torch.tensor([pair[0].shape[1] for pair in pairs], device=distances.device)
    mean = torch.stack(
        [
            one[:rows, :columns].mean()
            for one, rows, columns in zip(distances, lengths, num_sources, strict=True)
        ]
    )
    totals, choices = _cheapest(distances, SKIP_COST * mean)
    ends = totals.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, totals.shape[2]))[:, 0]
    place = torch.arange(totals.shape[2], device=ends.device)
    is_end = (place >= num_sources[:, None] - SLACK - 1) & (place < num_sources[:, None])
    path = _trace(choices, torch.where(is_end, ends, torch.inf).argmin(1), lengths)
    return [one[: pair[1].shape[1]] for one, pair in zip(path, pairs, strict=True)]


def _cheapest(distances: Tensor, skip_cost: Tensor) -> tuple[Tensor, Tensor]:
    """Costs of the cheapest paths to [B, target, source], and the last step of each."""
    costs = skip_cost[:, None, None].repeat(1, STEPS, 1)
    costs[:, 1] = 0
    total = distances[:, 0].clone()
    total[:, SLACK + 1 :] = torch.inf
    totals, choices = [total], [torch.zeros_like(total, dtype=torch.int64)]
    for row in distances.unbind(1)[1:]:
        padded = F.pad(total, (STEPS - 1, 0), value=torch.inf)
        best = (padded.unfold(1, total.shape[1], 1).flip(1) + costs).min(1)
        total = row + best.values
        totals.append(total)
        choices.append(best.indices)
    return torch.stack(totals, 1), torch.stack(choices, 1)


def _trace(choices: Tensor, place: Tensor, lengths: Tensor) -> Tensor:
    """The paths [B, targets] that end at `place` in the last row of each item."""
    path = []
    for row in reversed(range(choices.shape[1])):
        path.append(place)
        step = choices[:, row].gather(1, place[:, None])[:, 0]
        place = torch.where(row < lengths, place - step, place)
    return torch.stack(path[::-1], 1)


def _features(mels: list[Tensor]) -> list[Tensor]:
    """Normalized levels and their changes: [bands, columns]. Changes show where a sound begins."""
    pooled = [F.avg_pool1d(one.clamp(min=FLOOR).T, POOL).T for one in mels]
    whole = torch.cat(pooled, 1)
    mean, std = whole.mean(1, keepdim=True), whole.std(1, keepdim=True) + 1e-3
    levels = [(one - mean) / std for one in pooled]
    return [torch.cat((one, CHANGE_WEIGHT * _changes(one))) for one in levels]


def _changes(levels: Tensor) -> Tensor:
    padded = F.pad(levels[None], (REACH, REACH), mode="replicate")[0]
    return padded[:, 2 * REACH :] - padded[:, : -2 * REACH]
