"""Digests all tensors that an object holds, to find the tensors that differ between processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

PART_BYTES = 2**24  # of a tensor, at a time
STATE = {  # attributes of backends that calls write, and `_weights`: addresses in the megakernel
    *("_table", "_frame_keys", "_caches", "_histories", "_num_seen", "_tails", "_rows"),
    *("_codes", "_samples", "_copies", "_kept", "_inputs", "_graphs"),
    *("_exchange", "_control", "_partials", "_weights"),
}
MODULE_FIELDS = frozenset(vars(nn.Module()))


def digests(owner: object) -> dict[str, int]:
    """Numbers that depend on every byte of every tensor and on its place, by the tensor's path."""
    with torch.inference_mode():
        made = {path: digest(each) for path, each in find_tensors(owner) if each.numel()}
        return {path: int(each) for path, each in made.items()}


def digest(tensor: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in tensor.detach().contiguous().view(-1).view(torch.uint8).split(PART_BYTES):
        factors = torch.arange(len(part), dtype=torch.int32, device=tensor.device) % 8191 + 1
        total = 31 * total + (part.int() * factors).sum(dtype=torch.int64)
    return total


def find_tensors(
    owner: object, path: str = "", seen: set[object] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """All tensors that an object holds, each once, except those in `STATE`."""
    seen = set() if seen is None else seen
    key: object = id(owner)
    if isinstance(owner, torch.Tensor):
        key = (owner.data_ptr(), owner.shape, owner.stride())
    if key in seen:
        return
    seen.add(key)
    if isinstance(owner, torch.Tensor):
        yield path, owner
        return
    for name, part in parts_of(owner).items():
        if name not in STATE:
            yield from find_tensors(part, f"{path}.{name}" if path else str(name), seen)


def parts_of(owner: object) -> dict[Any, object]:
    """The members of modules, containers and objects of Vivace, by name, key or number."""
    if isinstance(owner, dict):
        return owner
    if isinstance(owner, (list, tuple)):
        return dict(enumerate(owner))
    if isinstance(owner, nn.Module):
        tensors = (*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False))
        own = {name: each for name, each in vars(owner).items() if name not in MODULE_FIELDS}
        return {**dict(tensors), **dict(owner.named_children()), **own}
    if isinstance(owner, type) or not type(owner).__module__.startswith("vivace."):
        return {}
    if is_dataclass(owner):
        return {name: getattr(owner, name, None) for name in owner.__dataclass_fields__}
    return getattr(owner, "__dict__", {})
