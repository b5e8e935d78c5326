"""Writes a checkpoint with integer matrices, as a folder that loads like any other.

Tensors are quantized and written one by one, so memory holds a single layer. The folder gets its
name when it is complete.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from vivace.checkpoint import Checkpoint
from vivace.checkpoint.quantized import open_quantized
from vivace.checkpoint_files import WEIGHTS, read_json
from vivace.errors import CheckpointError, RequestError
from vivace.hub import CODEC, shard_paths
from vivace.hub.download import KINDS
from vivace.model.config import QUANT_METHOD, IntWeights

ALIGNMENT = 64  # bytes; of the first tensor in the file
DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
    torch.uint8: "U8",
}
OnProgress = Callable[[int, int], None]  # bytes written so far, and of the whole file


def quantize_checkpoint(
    checkpoint: Checkpoint,
    folder: Path,
    weights: IntWeights,
    on_progress: OnProgress = lambda done, total: None,
) -> None:
    """Write a quantized copy of a checkpoint to a new or empty folder.

    Raises RequestError for a quantized checkpoint or a folder with files, and CheckpointError for
    invalid tensors or a folder that cannot be written.
    """
    stored = checkpoint.config.quantization_config
    if stored is not None:
        raise RequestError(
            f"{checkpoint.folder} is already quantized to {stored.weights}; quantize the original"
        )
    try:
        with new_folder(folder) as unfinished:
            _copy_files(checkpoint.folder, unfinished)
            _write_config(checkpoint.folder / "config.json", unfinished, weights)
            with open_quantized(checkpoint.config, checkpoint.folder, weights) as (model, tensors):
                likes = model.state_dict()
                with (unfinished / WEIGHTS).open("wb") as file:
                    write_tensors(file, likes, tensors, on_progress)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error.strerror or error}") from error


def write_tensors(
    file: BinaryIO,
    likes: dict[str, Tensor],  # names, shapes and dtypes; on any device
    tensors: Iterator[tuple[str, Tensor]],  # in any order
    on_progress: OnProgress,
) -> None:
    """Write a safetensors file tensor by tensor. Numbers with more bytes come first."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    starts, end = {}, 0
    for name, like in sorted(likes.items(), key=lambda item: (-item[1].itemsize, item[0])):
        starts[name], end = end, end + like.numel() * like.itemsize
        header[name] = {
            "dtype": DTYPES[like.dtype],
            "shape": list(like.shape),
            "data_offsets": [starts[name], end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + end)
    num_done = 0
    for name, tensor in tensors:
        file.seek(8 + len(text) + starts[name])
        file.write(tensor.contiguous().view(torch.uint8).numpy().data)
        num_done += tensor.numel() * tensor.itemsize
        on_progress(num_done, end)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside the target that becomes the target at the end and is removed on errors."""
    folder = folder.expanduser().resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RequestError(f"{folder} exists and is not an empty folder; give a new one")
    if folder.is_mount():  # it cannot be replaced
        raise RequestError(f"{folder} is a mount point; give a new folder inside it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.parent / f".{folder.name}.{secrets.token_hex(4)}.unfinished"
    unfinished.mkdir()
    try:
        yield unfinished
        if folder.exists():
            folder.rmdir()
        os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _copy_files(source: Path, target: Path) -> None:
    """Copy all files that loading needs, except the weights of the model and config.json."""
    replaced = {path.name for path in shard_paths(source)}
    replaced |= {"config.json", f"{WEIGHTS}.index.json"}
    for folder in (source, source / CODEC):
        copy = target / folder.relative_to(source)
        copy.mkdir(exist_ok=True)
        for path in (path for kind in KINDS for path in folder.glob(kind)):
            if folder != source or path.name not in replaced:
                shutil.copyfile(path, copy / path.name)


def _write_config(source: Path, target: Path, weights: IntWeights) -> None:
    config = read_json(source)
    config["quantization_config"] = {"quant_method": QUANT_METHOD, "weights": weights}
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
