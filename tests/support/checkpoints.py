"""Changes to copies of tiny checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vivace import TTS

CPU = torch.device("cpu")
MODEL = "model.safetensors"
CODEC = "speech_tokenizer/model.safetensors"
NORM = "talker.model.norm.weight"
HEAD = "talker.codec_head.weight"

Tensors = dict[str, Tensor]


def load(folder: Path) -> TTS:
    return TTS.load(folder, device="cpu")


def edit_json(path: Path, *keys: str, value: Any = ...) -> None:
    """Set or delete the value under these keys."""
    content = json.loads(path.read_text())
    section = content
    for key in keys[:-1]:
        section = section[key]
    if value is ...:
        del section[keys[-1]]
    else:
        section[keys[-1]] = value
    path.write_text(json.dumps(content))


def edit_tensors(path: Path, change: Callable[[Tensors], Any]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def shard(folder: Path, num_shards: int = 3) -> Tensors:
    """Replace model.safetensors by shards and an index; return its tensors."""
    tensors = load_file(folder / MODEL)
    (folder / MODEL).unlink()
    weight_map: dict[str, str] = {}
    for number in range(num_shards):
        shard_name = f"model-{number + 1:05d}-of-{num_shards:05d}.safetensors"
        part = dict(list(tensors.items())[number::num_shards])
        save_file(part, folder / shard_name)
        weight_map |= dict.fromkeys(part, shard_name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / f"{MODEL}.index.json").write_text(json.dumps(index))
    return tensors
