"""Reads the tensors of a folder into a module on the meta device, with all checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vivace.checkpoint_files import (
    MAX_MAPPED_BYTES,
    SPEAKER_ENCODER,
    release_pages,
    truncated_tensor,
)
from vivace.errors import CheckpointError
from vivace.hub import shard_paths
from vivace.model.dimensions import TensorShapes
from vivace.model.upload import NUM_THREADS, uploader

PICKLES = ("pytorch_model.bin", "model.pt", "model.pth", "model.bin")
MAX_LISTED = 5  # names in one error message
CHECKED_AT_ONCE = 1 << 22  # numbers

OnRead = Callable[[int], None]  # called with the number of bytes

C = TypeVar("C")
M = TypeVar("M", bound=nn.Module)


def _ignore(num_bytes: int) -> None:
    pass


class PageLimit:
    """Frees pages of the mapped files of a folder after every MAX_MAPPED_BYTES that are read."""

    def __init__(self, folder: Path) -> None:
        self._paths = tuple(shard_paths(folder))
        self._num_bytes = 0

    def __call__(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes >= MAX_MAPPED_BYTES:
            release_pages(self._paths)
            self._num_bytes = 0


def load_module(
    build: Callable[[C], M],
    check: Callable[[C, TensorShapes, str], None],  # raises CheckpointError
    config: C,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype | None,  # None: the dtypes that the module declares
) -> M:
    """Build a module on the meta device and fill it with the tensors of a folder."""
    path = str(folder / "config.json")
    with ExitStack() as stack:
        sources = open_shards(folder, torch.device("cpu"), stack)
        check(config, tensor_shapes(sources, folder), path)
        module = build_on_meta(build, config, path)
        fill(module, sources, folder, dtype, device)
    return module


def fill(
    module: nn.Module,
    sources: Mapping[str, Any],  # of tensors on the CPU
    folder: Path,
    dtype: torch.dtype | None,
    device: torch.device,
) -> None:
    """Load every parameter and stored buffer of a module on the meta device."""
    wanted, upload = module.state_dict(), uploader(device)
    compare_names(set(wanted), needed_names(module, sources), folder)
    is_gpu = device.type == "cuda"
    on_read = _ignore if is_gpu else PageLimit(folder)

    def read(name: str) -> Tensor:
        like = wanted[name]
        return read_tensor(sources[name], name, like, dtype or like.dtype, folder, upload, on_read)

    if is_gpu:
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            tensors = list(pool.map(read, wanted))
    else:
        tensors = [read(name) for name in wanted]
    module.load_state_dict(dict(zip(wanted, tensors, strict=True)), assign=True)
    module.requires_grad_(False).eval()


def needed_names(module: nn.Module, sources: Mapping[str, Any]) -> set[str]:
    """The names of the sources, without those that the module may ignore."""
    if getattr(module, "speaker_encoder", module) is None:
        # A checkpoint that cannot clone may still contain the tensors of its Base.
        return {name for name in sources if not name.startswith(SPEAKER_ENCODER)}
    return set(sources)


def tensor_shapes(sources: Mapping[str, Any], folder: Path) -> TensorShapes:
    shapes = {name: source.get_slice(name).get_shape() for name, source in sources.items()}
    return TensorShapes(shapes, str(folder))


def build_on_meta(build: Callable[[C], M], config: C, path: str) -> M:
    try:
        with torch.device("meta"):
            return build(config)
    except Exception as error:  # caused by the configuration
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: no model has these dimensions: {reason}") from error


def open_shards(folder: Path, device: torch.device, stack: ExitStack) -> dict[str, Any]:
    """The open file that holds each tensor."""
    sources: dict[str, Any] = {}
    for path in shard_paths(folder):
        shard = stack.enter_context(_open(path, device))
        for name in shard.keys():  # noqa: SIM118 - not a mapping
            if name in sources:
                raise CheckpointError(f"{folder}: {name} is in two files")
            sources[name] = shard
    return sources


def _open(path: Path, device: torch.device) -> Any:
    if not path.is_file():
        pickles = [name for name in PICKLES if (path.parent / name).exists()]
        hint = f"; {pickles[0]} is a pickle, which is never loaded: convert it" if pickles else ""
        raise CheckpointError(f"{path} is missing{hint}")
    try:
        return safe_open(path, framework="pt", device=str(device))
    except (SafetensorError, OSError) as error:
        if _is_pickle(path):
            message = f"{path} is a pickle, not safetensors; pickles are never loaded"
        else:
            cut = truncated_tensor(path)
            ends = f"; it ends before the end of {cut}" if cut else ""
            message = f"{path} is damaged or not safetensors: {error}{ends}"
        raise CheckpointError(message) from error


def _is_pickle(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(9)
    except OSError:
        return False
    if head[8:] == b"{":  # safetensors: eight bytes of any size, then JSON
        return False
    return head[:2] == b"PK" or (head[:1] == b"\x80" and head[1:2] <= b"\x05")


def compare_names(wanted: set[str], found: set[str], folder: Path) -> None:
    for what, names in (("lacks", wanted - found), ("has unknown", found - wanted)):
        if names:
            listed = ", ".join(sorted(names)[:MAX_LISTED])
            more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
            raise CheckpointError(f"{folder} {what} tensors: {listed}{more}")


def read_tensor(
    source: Any,
    name: str,
    like: Tensor,
    dtype: torch.dtype | None,  # None: as in the file
    folder: Path,
    upload: Callable[[Tensor], Tensor] = lambda tensor: tensor,  # copies it to its device
    on_read: OnRead = _ignore,
) -> Tensor:
    tensor: Tensor = source.get_tensor(name)
    if tensor.shape != like.shape:
        raise CheckpointError(
            f"{folder}: {name} has shape {list(tensor.shape)}; "
            f"config.json requires {list(like.shape)}"
        )
    if not like.is_floating_point():
        if tensor.dtype != like.dtype:
            raise CheckpointError(f"{folder}: {name} is {tensor.dtype}; {like.dtype} is needed")
        return upload(tensor)
    if not tensor.is_floating_point():
        raise CheckpointError(
            f"{folder}: {name} is {tensor.dtype}; only checkpoints that vivace quantize wrote may "
            "contain integers"
        )
    tensor = upload(tensor)
    tensor = tensor if dtype is None else tensor.to(dtype)
    if not _is_finite(tensor, on_read):
        raise CheckpointError(f"{folder}: {name} contains non-finite values")
    return tensor


def _is_finite(tensor: Tensor, on_read: OnRead) -> bool:
    """On a CPU in parts: PyTorch sums half precision there through a copy in float32."""
    flat = tensor.view(-1)
    for part in flat.split(CHECKED_AT_ONCE) if flat.is_cpu else (flat,):
        if not torch.isfinite(part.sum(dtype=torch.float32)):
            return False
        on_read(part.nbytes)
    return True
