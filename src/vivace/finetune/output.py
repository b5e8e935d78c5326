"""Writes the result of training: an adapter, or a merged checkpoint in the released layout."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vivace.adapter import Adapter, AdapterInfo, lora_weight
from vivace.checkpoint import Checkpoint
from vivace.checkpoint_files import SPEAKER_ENCODER, WEIGHTS, read_json
from vivace.errors import CheckpointError
from vivace.finetune.trainable import Trainables
from vivace.hub import shard_paths
from vivace.model.config_file import SPEAKER_FLAG, SPEAKER_SECTION
from vivace.speaker_notes import FINETUNED

EMBEDDING = "talker.model.codec_embedding.weight"


def make_adapter(trainables: Trainables, info: AdapterInfo) -> Adapter:
    """A copy of the trained values."""
    return Adapter(
        info=info,
        pairs={name: (_copy(one.a), _copy(one.b)) for name, one in trainables.pairs.items()},
        vectors={name: _copy(one) for name, one in trainables.vectors.items()},
        weights={name: _copy(one.master) for name, one in trainables.masters.items()},
    )


def today() -> str:
    return date.today().isoformat()


def write_merged(checkpoint: Checkpoint, adapter: Adapter, folder: Path) -> None:
    """Write the checkpoint with the adapter merged, in the layout of the released ones.

    The folder appears when it is complete. Tensors keep the dtype of their file.
    """
    if folder.exists():
        raise CheckpointError(f"{folder} exists; choose another name, or remove it first")
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        shards = {path.name for path in shard_paths(checkpoint.folder)}
        left_out = shutil.ignore_patterns(*shards, "*.safetensors.index.json", "config.json")
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(checkpoint.folder, unfinished, ignore=_at_top(checkpoint.folder, left_out))
        tensors = _merge(checkpoint, adapter)
        save_file(tensors, unfinished / WEIGHTS, {"format": "pt"})
        _write_json(unfinished / "config.json", merged_config(checkpoint.folder, adapter.info))
        _write_json(unfinished / FINETUNED, dataclasses.asdict(adapter.info))
        shutil.copymode(unfinished / "config.json", unfinished / WEIGHTS)  # it is private
        unfinished.rename(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        reason = getattr(error, "strerror", None) or _first_reason(error)
        raise CheckpointError(f"cannot write {folder}: {reason}") from error


def _first_reason(error: Exception) -> str:
    """The reason of an error without `strerror`; shutil.Error has a list of failed copies."""
    if isinstance(error, shutil.Error) and error.args and error.args[0]:
        return str(error.args[0][0][-1])
    return str(error)


def merged_config(base: Path, info: AdapterInfo) -> dict[str, Any]:
    """config.json with the new speakers, as the official script writes it."""
    config = read_json(base / "config.json")
    if info.speakers:
        talker = config["talker_config"]
        config["tts_model_type"] = "custom_voice"
        for name in (SPEAKER_FLAG, SPEAKER_SECTION):
            config.pop(name, None)
        talker["spk_id"] = {**info.speakers, **talker.get("spk_id", {})}
        dialects = talker.get("spk_is_dialect", {})
        talker["spk_is_dialect"] = {**dict.fromkeys(info.speakers, False), **dialects}
    return config


def _merge(checkpoint: Checkpoint, adapter: Adapter) -> dict[str, Tensor]:
    drops_encoder = bool(adapter.info.speakers)
    tensors: dict[str, Tensor] = {}
    for path in shard_paths(checkpoint.folder):
        with safe_open(path, framework="pt") as file:
            for name in list(file.keys()):
                if drops_encoder and name.startswith(SPEAKER_ENCODER):
                    continue
                tensors[name] = _merged(name, file.get_tensor(name), adapter)
    return tensors


def _merged(name: str, tensor: Tensor, adapter: Adapter) -> Tensor:
    if name in adapter.weights:
        tensor = adapter.weights[name].to(tensor.dtype)
    if name in adapter.pairs:
        tensor = lora_weight(tensor, *adapter.pairs[name], adapter.info.scale)
    if name == EMBEDDING and adapter.vectors:
        tensor = tensor.clone()
        for speaker, vector in adapter.vectors.items():
            tensor[adapter.info.speakers[speaker]] = vector.to(tensor.dtype)
    return tensor.contiguous()


def _at_top(root: Path, ignore: Any) -> Any:
    """Leave files out of the top folder only: the codec has files of the same names."""

    def choose(folder: str, names: list[str]) -> set[str]:
        found: set[str] = ignore(folder, names) if Path(folder) == root else set()
        return found

    return choose


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32).clone()
