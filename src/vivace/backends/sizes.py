"""How many bytes a module holds."""

from __future__ import annotations

from torch import nn


def module_bytes(module: nn.Module) -> int:
    """Of parameters and buffers, shared memory counted once."""
    storages = {}
    for tensor in (*module.parameters(), *module.buffers()):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
