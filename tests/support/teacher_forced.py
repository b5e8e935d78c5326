"""Teacher-forced logits of a backend's layers, and the distance between two of them."""

from __future__ import annotations

import torch
from torch import Tensor

from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.layers.frame import KvPositions
from vivace.backends.cuda_graph.layers.fused import FusedLayers
from vivace.model.cache import KeyValueCache


def talker_states(backend: CudaGraphBackend, rows: Tensor, first: int = 0) -> Tensor:
    """Rows [T, hidden], one after another from position `first` of slot 0 on, to hidden states."""
    slot = torch.zeros(1, dtype=torch.int64, device=rows.device)
    states = [
        backend._layers.read(row[None], KvPositions(slot, slot + i, slot + i + 1, span=1024))
        for i, row in enumerate(rows, start=first)
    ]
    return torch.cat(states)


def predictor_logits(backend: CudaGraphBackend, hidden: Tensor, codes: Tensor) -> Tensor:
    """Hidden states [B, hidden] and codes [B, books] to logits [B, books - 1, codes]."""
    talker, layers = backend.model.talker, backend._layers
    predictor, tables = talker.code_predictor, talker.code_tables
    cache = KeyValueCache(predictor.config.num_hidden_layers, codes.shape[1])
    logits = []
    for book in range(1, codes.shape[1]):
        x = tables[book - 1](codes[:, book - 1])[:, None]
        x = torch.cat((hidden[:, None], x), dim=1) if book == 1 else x
        if isinstance(layers, FusedLayers):
            logits.append(layers.predict(x, book))
        else:
            out = predictor(x, cache.length, cache)
            logits.append(predictor.lm_head[book - 1](out[:, -1]))
    return torch.stack(logits, dim=1)


def distance(found: Tensor, expected: Tensor) -> float:
    """Distance relative to the size of the expected values."""
    expected = expected.to(found.device).float()
    return float((found.float() - expected).norm() / expected.norm())


def share_within(found: Tensor, expected: Tensor, ulps: int) -> float:
    """Share of bfloat16 values within some units in the last place of the expected ones."""

    def ordinal(x: Tensor) -> Tensor:
        bits = x.contiguous().view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return float(((ordinal(found) - ordinal(expected)).abs() <= ulps).float().mean())
