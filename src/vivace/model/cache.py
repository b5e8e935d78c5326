"""KV caches. Each class implements `Attend`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vivace.model import ops
from vivace.model.config import Head
from vivace.model.layers import Attend

NO_PLACE = (-1, 0.0)  # no watched row was attended to


def attend_causally(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention within one call, without a cache."""
    return ops.attention(q, k, v, is_causal=q.shape[2] > 1)


class KeyValueCache:
    """Keys and values of a batch of equally long sequences; capacity doubles when it is full."""

    def __init__(self, num_layers: int, capacity: int = 64) -> None:
        self._keys: list[Tensor | None] = [None] * num_layers
        self._values: list[Tensor | None] = [None] * num_layers
        self._lengths = [0] * num_layers
        self._capacity = capacity

    @property
    def length(self) -> int:
        """Number of cached positions. Read it between steps, when all layers agree."""
        return self._lengths[0]

    def keys(self, layer: int) -> Tensor:
        """Cached keys of a layer: [B, kv_heads, length, head_dim]."""
        keys = self._keys[layer]
        assert keys is not None
        return keys.narrow(2, 0, self._lengths[layer])

    def clear(self) -> None:
        self._lengths = [0] * len(self._lengths)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        start = self._lengths[layer]
        keys, values = self._append(layer, k, v)
        if start == 0:
            return ops.attention(q, keys, values, is_causal=q.shape[2] > 1)
        if q.shape[2] == 1:
            return ops.attention(q, keys, values)
        seen = torch.ones(q.shape[2], keys.shape[2], dtype=torch.bool, device=q.device)
        return ops.attention(q, keys, values, mask=seen.tril(start))

    def _append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        start = self._lengths[layer]
        end = start + k.shape[2]
        keys, values = self._keys[layer], self._values[layer]
        if keys is None or values is None or keys.shape[2] < end:
            keys = self._keys[layer] = self._grow(keys, k, start, end)
            values = self._values[layer] = self._grow(values, v, start, end)
        length = end - start
        keys.narrow(2, start, length).copy_(k)
        values.narrow(2, start, length).copy_(v)
        self._lengths[layer] = end
        return keys.narrow(2, 0, end), values.narrow(2, 0, end)

    def _grow(self, old: Tensor | None, like: Tensor, start: int, end: int) -> Tensor:
        capacity = max(self._capacity, 1 << (end - 1).bit_length())
        grown = like.new_empty(like.shape[0], like.shape[1], capacity, like.shape[3])
        if old is not None:
            grown[:, :, :start] = old[:, :, :start]
        return grown


class WatchedCache:
    """An `Attend` over one cache that also reports where one head attends in a range of rows."""

    def __init__(self, cache: KeyValueCache, head: Head, rows: range) -> None:
        self._cache, self._head, self._rows = cache, head, rows
        self.place = NO_PLACE

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attended = self._cache(layer, q, k, v)
        if layer == self._head.layer:
            self._look(q, k.shape[1])
        return attended

    def _look(self, q: Tensor, num_kv_heads: int) -> None:
        """Compute the last query's attention and store the watched row with the most of it."""
        head = self._head
        keys = self._cache.keys(head.layer)[0, head.index * num_kv_heads // q.shape[1]]
        query = q[0, head.index, -1].float() * keys.shape[1] ** -0.5
        found = torch.mv(keys.float(), query).softmax(0)[self._rows.start : self._rows.stop]
        if len(found):
            self.place = int(found.argmax()), float(found.sum())


class RaggedCaches:
    """One cache per batch row, of any length; rows do not attend to each other.

    Rows past the last cache are padding and attend to nothing.
    """

    def __init__(self, caches: Sequence[Attend]) -> None:
        self._caches = caches
        self._padding: list[Tensor] | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.shape[0] == 1:
            return self._caches[0](layer, q, k, v)
        if self._padding is None:
            missing = q.shape[0] - len(self._caches)
            self._padding = [torch.zeros_like(q[:missing])] if missing else []
        rows = zip(self._caches, q.split(1), k.split(1), v.split(1), strict=False)
        return torch.cat([cache(layer, *row) for cache, *row in rows] + self._padding)
