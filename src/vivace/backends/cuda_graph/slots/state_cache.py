"""LRU cache of per-voice device state (KV cache rows, codec state), keyed by content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from torch import Tensor

State = tuple[Tensor, ...]


class StateCache:
    def __init__(self, max_bytes: int) -> None:
        self._states: OrderedDict[Hashable, State] = OrderedDict()  # least recently used first
        self._max_bytes = max_bytes
        self.num_bytes = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._states

    def __len__(self) -> int:
        return len(self._states)

    def get(self, key: Hashable) -> State | None:
        if key in self._states:
            self._states.move_to_end(key)
        return self._states.get(key)

    def put(self, key: Hashable, state: State) -> None:
        """Store a state and evict the least recently used; one over `max_bytes` is not stored."""
        self._evict(key)
        if state_bytes(state) > self._max_bytes:
            return
        self._states[key] = state
        self.num_bytes += state_bytes(state)
        while self.num_bytes > self._max_bytes:
            self._evict(next(iter(self._states)))

    def _evict(self, key: Hashable) -> None:
        self.num_bytes -= state_bytes(self._states.pop(key, ()))


def state_bytes(state: State) -> int:
    return sum(tensor.nbytes for tensor in state)
