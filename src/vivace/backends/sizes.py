"""The size of a module in bytes."""

from __future__ import annotations

from torch import nn


def module_bytes(module: nn.Module) -> int:
    """Bytes of parameters and buffers; shared storage counts once."""
    storages = {}
    for tensor in (*module.parameters(), *module.buffers()):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
