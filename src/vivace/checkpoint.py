"""A name or a folder becomes files, and files become weights on a device.

The only reader of model safetensors. Models are built on the meta device and filled tensor by
tensor, so memory holds one copy; anything missing, unknown, mis-shaped or not finite is an error
that names it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vivace.errors import CheckpointError
from vivace.model.codec import Codec
from vivace.model.config import (
    CodecConfig,
    ModelConfig,
    load_codec_config,
    load_model_config,
    read_json,
)
from vivace.model.talker import Qwen3TTS
from vivace.speech import SamplingParams

log = logging.getLogger(__name__)

RELEASED = (
    "Qwen/Qwen3-TTS-12Hz-0.6B-Base",
    "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
    "Qwen/Qwen3-TTS-12Hz-1.7B-Base",
    "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
)
WEIGHTS = "model.safetensors"
PICKLES = ("pytorch_model.bin", "model.pt", "model.pth", "model.bin")
MAX_LISTED = 5  # names in one error message
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SHARD_NAME = re.compile(r"[\w.-]+\.safetensors")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The parsed files of a checkpoint folder, weights not yet read."""

    folder: Path
    config: ModelConfig
    codec_config: CodecConfig
    sampling: SamplingParams  # the checkpoint's own defaults

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        return cls(
            folder=folder,
            config=load_model_config(folder / "config.json"),
            codec_config=load_codec_config(folder / "speech_tokenizer" / "config.json"),
            sampling=read_sampling(folder / "generation_config.json"),
        )

    def load_model(self, device: torch.device, dtype: torch.dtype) -> Qwen3TTS:
        with torch.device("meta"):
            model = Qwen3TTS(self.config)
        fill(model, self.folder, device, dtype)
        return model

    def load_codec(self, device: torch.device) -> Codec:
        """Always float32: its exponentials and codebooks do not survive less."""
        with torch.device("meta"):
            codec = Codec(self.codec_config)
        fill(codec, self.folder / "speech_tokenizer", device, torch.float32)
        codec.fold()
        return codec


def find_folder(
    name: str | Path, *, revision: str | None, cache_dir: str | Path | None, offline: bool
) -> Path:
    """A local folder as it is; a hub id downloaded, or found in the cache when offline."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if not HUB_ID.fullmatch(str(name)) or str(name).startswith("."):
        raise CheckpointError(
            f"no folder {str(name)!r}; give a checkpoint folder or a hub id such as {RELEASED[1]}"
        )
    return _download(str(name), revision, cache_dir, offline)


def _download(name: str, revision: str | None, cache_dir: str | Path | None, offline: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                cache_dir=cache_dir,
                local_files_only=offline,
                allow_patterns=["*.json", "*.txt", "*.safetensors"],
            )
        )
    except LocalEntryNotFoundError as error:
        hint = "it was asked for offline" if offline else "the hub could not be reached"
        raise CheckpointError(
            f"{name} is not in the local cache and {hint}; download it once with a connection, "
            "or give a local folder"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"the hub has no model {name!r}; the released ones are: {', '.join(RELEASED)}"
        ) from error
    except Exception as error:  # the hub client raises a dozen kinds; all mean "no files"
        raise CheckpointError(f"{name} could not be downloaded: {error}") from error


def read_sampling(path: Path) -> SamplingParams:
    """Defaults of generation_config.json; without the file, those of the official package."""
    raw = read_json(path) if path.exists() else {}
    is_sampled = raw.get("do_sample", True)
    is_residual_sampled = raw.get("subtalker_dosample", True)
    return SamplingParams(
        temperature=raw.get("temperature", 0.9) if is_sampled else 0.0,
        top_k=raw.get("top_k", 50),
        top_p=raw.get("top_p", 1.0),
        repetition_penalty=raw.get("repetition_penalty", 1.05),
        predictor_temperature=raw.get("subtalker_temperature", 0.9) if is_residual_sampled else 0.0,
        predictor_top_k=raw.get("subtalker_top_k", 50),
        predictor_top_p=raw.get("subtalker_top_p", 1.0),
        max_frames=raw.get("max_new_tokens", 2048) - 1,  # the last token never becomes a frame
    )


def fill(module: nn.Module, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
    """Give every parameter and stored buffer of a meta module its tensor from the folder."""
    wanted = module.state_dict()
    tensors: dict[str, Tensor] = {}
    with ExitStack() as stack:
        sources = _open_shards(folder, device, stack)
        _compare_names(set(wanted), set(sources), folder)
        for name, like in wanted.items():
            tensors[name] = _read(sources[name], name, like, dtype, folder)
    module.load_state_dict(tensors, assign=True)
    module.requires_grad_(False).eval()


def _open_shards(folder: Path, device: torch.device, stack: ExitStack) -> dict[str, Any]:
    """Tensor name to the open file that holds it."""
    sources: dict[str, Any] = {}
    for path in _shard_paths(folder):
        shard = stack.enter_context(_open(path, device))
        for name in shard.keys():  # noqa: SIM118 - not a mapping
            if name in sources:
                raise CheckpointError(f"{folder}: {name} is in two files")
            sources[name] = shard
    return sources


def _shard_paths(folder: Path) -> Iterator[Path]:
    index = folder / f"{WEIGHTS}.index.json"
    if (folder / WEIGHTS).exists() or not index.exists():
        yield folder / WEIGHTS
        return
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise CheckpointError(f"{index}: no weight_map")
    for name in sorted(set(weight_map.values())):
        if not isinstance(name, str) or not SHARD_NAME.fullmatch(name):
            raise CheckpointError(f"{index}: {name!r} is not the name of a file in this folder")
        yield folder / name


def _open(path: Path, device: torch.device) -> Any:
    if not path.exists():
        pickles = [name for name in PICKLES if (path.parent / name).exists()]
        hint = f"; {pickles[0]} is a pickle, which is never loaded: convert it" if pickles else ""
        raise CheckpointError(f"{path} is missing{hint}")
    try:
        return safe_open(path, framework="pt", device=str(device))
    except (SafetensorError, OSError) as error:
        with path.open("rb") as file:
            is_pickle = file.read(2) in (b"PK", b"\x80\x02", b"\x80\x04")
        if is_pickle:
            message = f"{path} is a pickle, not safetensors; pickles are never loaded"
        else:
            message = f"{path} is damaged or not safetensors: {error}"
        raise CheckpointError(message) from error


def _compare_names(wanted: set[str], found: set[str], folder: Path) -> None:
    for what, names in (("lacks", wanted - found), ("has unknown", found - wanted)):
        if names:
            listed = ", ".join(sorted(names)[:MAX_LISTED])
            more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
            raise CheckpointError(f"{folder} {what} tensors: {listed}{more}")


def _read(source: Any, name: str, like: Tensor, dtype: torch.dtype, folder: Path) -> Tensor:
    tensor: Tensor = source.get_tensor(name)
    if tensor.shape != like.shape:
        raise CheckpointError(
            f"{folder}: {name} has shape {list(tensor.shape)}; "
            f"config.json asks for {list(like.shape)}"
        )
    tensor = tensor.to(dtype)
    if not torch.isfinite(tensor.sum(dtype=torch.float32)):
        raise CheckpointError(f"{folder}: {name} holds values that are not finite")
    return tensor
