"""Loads a checkpoint folder: its configuration, and its tensors as weights on a device.

Models are built on the meta device and filled tensor by tensor, so memory holds one copy. Missing,
unknown, mis-shaped and non-finite tensors raise CheckpointError, which names them.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vivace.checkpoint_files import read_json
from vivace.errors import CheckpointError, RequestError
from vivace.hub import CODEC, EMBEDDED, RELEASED, codec_folder, find_folder, shard_paths
from vivace.model.codec import Codec
from vivace.model.config import (
    CodecConfig,
    ModelConfig,
    TalkerConfig,
    load_codec_config,
    load_model_config,
)
from vivace.model.dimensions import TensorShapes, check_codec, check_model
from vivace.model.fp8 import Weights, round_weights
from vivace.model.layers import fuse
from vivace.model.talker import Qwen3TTS
from vivace.speech import SamplingParams
from vivace.text.tokenizer import TextTokenizer

__all__ = ["EMBEDDED", "RELEASED", "Checkpoint", "find_folder", "load_codec", "read_sampling"]

SPEAKER_ENCODER = "speaker_encoder."  # prefix of the speaker encoder's tensors
PICKLES = ("pytorch_model.bin", "model.pt", "model.pth", "model.bin")
MAX_TOKENS = 2**31 - 1
CPU = torch.device("cpu")
MAX_LISTED = 5  # names in one error message

C = TypeVar("C")
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The parsed configuration of a checkpoint folder. The weights are not loaded."""

    folder: Path
    config: ModelConfig
    codec_config: CodecConfig
    sampling: SamplingParams  # the checkpoint's own defaults

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        checkpoint = cls(
            folder=folder,
            config=load_model_config(folder / "config.json"),
            codec_config=load_codec_config(folder / CODEC / "config.json"),
            sampling=read_sampling(folder / "generation_config.json"),
        )
        _check_ids(checkpoint.config, folder)
        _check_codec(checkpoint.config, checkpoint.codec_config, folder)
        return checkpoint

    @property
    def num_bytes(self) -> int:
        """Size of all weights on disk."""
        folders = (self.folder, self.folder / CODEC)
        paths = [path for folder in folders for path in shard_paths(folder)]
        return sum(path.stat().st_size for path in paths if path.is_file())

    def load_tokenizer(self, *, split_camel_case: bool = False) -> TextTokenizer:
        tokenizer = TextTokenizer.from_folder(self.folder, split_camel_case=split_camel_case)
        text_vocab_size = self.config.talker_config.text_vocab_size
        if tokenizer.vocab_size > text_vocab_size:
            raise CheckpointError(
                f"{self.folder}: the tokenizer has ids up to {tokenizer.vocab_size - 1} and the "
                f"model's text_vocab_size is {text_vocab_size}; they belong to "
                "different checkpoints"
            )
        return tokenizer

    def digest(self) -> str:
        """SHA-256 of the first row of every tensor of the model, as stored."""
        digest = hashlib.sha256()
        with ExitStack() as stack:
            for name, source in sorted(_open_shards(self.folder, CPU, stack).items()):
                if not name.startswith(SPEAKER_ENCODER):
                    digest.update(name.encode())
                    row = source.get_slice(name)[:1].contiguous().view(torch.uint8)
                    digest.update(row.numpy().tobytes())
        return digest.hexdigest()

    def load_plain_model(self, device: torch.device, dtype: torch.dtype) -> Qwen3TTS:
        """The model before its products are fused, with one parameter for each tensor."""
        return _load_module(Qwen3TTS, check_model, self.config, self.folder, device, dtype)

    def load_model(
        self,
        device: torch.device,
        dtype: torch.dtype,
        weights: Weights = "full",
        change: Callable[[Qwen3TTS], None] | None = None,  # before weights are fused and rounded
    ) -> Qwen3TTS:
        model = self.load_plain_model(device, dtype)
        if change is not None:
            change(model)
        fuse(model)
        if weights == "fp8":
            round_weights(model)
        return model

    def load_codec(self, device: torch.device) -> Codec:
        """Always float32: its exponentials and codebooks need the precision."""
        return _load_codec(self.codec_config, self.folder / CODEC, device)


def load_codec(folder: Path, device: torch.device) -> Codec:
    """Load the codec of a codec folder or of a checkpoint folder."""
    folder = codec_folder(folder)
    return _load_codec(load_codec_config(folder / "config.json"), folder, device)


def _load_codec(config: CodecConfig, folder: Path, device: torch.device) -> Codec:
    codec = _load_module(Codec, check_codec, config, folder, device, torch.float32)
    codec.fold()
    return codec


def read_sampling(path: Path) -> SamplingParams:
    """Read generation_config.json; without the file, use the official defaults."""
    raw = read_json(path) if path.exists() else {}
    raw = {key: value for key, value in raw.items() if value is not None}
    is_sampled = raw.get("do_sample", True)
    is_residual_sampled = raw.get("subtalker_dosample", True)
    max_tokens = raw.get("max_new_tokens", 2048)
    if type(max_tokens) is not int or max_tokens < 2:
        raise CheckpointError(f"{path}: max_new_tokens must be 2 or more, not {max_tokens!r}")
    if max_tokens > MAX_TOKENS:
        raise CheckpointError(
            f"{path}: max_new_tokens must be at most {MAX_TOKENS}, not {max_tokens}"
        )
    try:
        return SamplingParams(
            temperature=raw.get("temperature", 0.9) if is_sampled else 0.0,
            top_k=raw.get("top_k", 50),
            top_p=raw.get("top_p", 1.0),
            repetition_penalty=raw.get("repetition_penalty", 1.05),
            predictor_temperature=(
                raw.get("subtalker_temperature", 0.9) if is_residual_sampled else 0.0
            ),
            predictor_top_k=raw.get("subtalker_top_k", 50),
            predictor_top_p=raw.get("subtalker_top_p", 1.0),
            max_frames=max_tokens - 1,  # the last token never becomes a frame
        )
    except RequestError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _check_ids(config: ModelConfig, folder: Path) -> None:
    """Check all ids now; an id outside its table would abort a GPU kernel later."""
    talker = config.talker_config
    for section, size in ((config, talker.text_vocab_size), (talker, talker.vocab_size)):
        for name, token_id in _ids(section):
            if type(token_id) is not int or not 0 <= token_id < size:
                raise CheckpointError(
                    f"{folder / 'config.json'}: {name} is {token_id!r}; "
                    f"an id from 0 to {size - 1} is needed"
                )


def _ids(section: ModelConfig | TalkerConfig) -> Iterator[tuple[str, object]]:
    """All ids of a section by name, including each speaker and language."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if field.name.endswith("_id") and isinstance(value, Mapping):
            yield from ((f"{field.name} {name!r}", token_id) for name, token_id in value.items())
        elif field.name.endswith("_id"):
            yield field.name, value


def _check_codec(config: ModelConfig, codec: CodecConfig, folder: Path) -> None:
    """Talker, predictor and codec must agree on the number of codebooks and codes."""
    talker, decoder, encoder = config.talker_config, codec.decoder_config, codec.encoder_config
    predictor = talker.code_predictor_config
    for values in (
        {
            "talker num_code_groups": talker.num_code_groups,
            "code predictor num_code_groups": predictor.num_code_groups,
            "codec decoder num_quantizers": decoder.num_quantizers,
            "codec encoder_valid_num_quantizers": codec.encoder_valid_num_quantizers,
        },
        {
            "code predictor vocab_size": predictor.vocab_size,
            "codec decoder codebook_size": decoder.codebook_size,
            "codec encoder codebook_size": encoder.codebook_size,
        },
    ):
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{name} {value}" for name, value in values.items())
            raise CheckpointError(f"{folder}: the parts do not fit together: {listed}")


def _load_module(
    build: Callable[[C], M],
    check: Callable[[C, TensorShapes, str], None],  # raises CheckpointError
    config: C,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
) -> M:
    """Build a module on the meta device and fill it with the tensors of a folder."""
    path = str(folder / "config.json")
    with ExitStack() as stack:
        sources = _open_shards(folder, device, stack)
        shapes = {name: source.get_slice(name).get_shape() for name, source in sources.items()}
        check(config, TensorShapes(shapes, str(folder)), path)
        module = _build_on_meta(build, config, path)
        fill(module, sources, folder, dtype)
    return module


def fill(module: nn.Module, sources: Mapping[str, Any], folder: Path, dtype: torch.dtype) -> None:
    """Load every parameter and stored buffer of a module on the meta device."""
    wanted, found = module.state_dict(), set(sources)
    if getattr(module, "speaker_encoder", module) is None:
        # A checkpoint that cannot clone may still contain the tensors of its Base.
        found = {name for name in found if not name.startswith(SPEAKER_ENCODER)}
    _compare_names(set(wanted), found, folder)
    module.load_state_dict(
        {name: _read(sources[name], name, like, dtype, folder) for name, like in wanted.items()},
        assign=True,
    )
    module.requires_grad_(False).eval()


def _build_on_meta(build: Callable[[C], M], config: C, path: str) -> M:
    try:
        with torch.device("meta"):
            return build(config)
    except Exception as error:  # caused by the configuration
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: no model has these dimensions: {reason}") from error


def _open_shards(folder: Path, device: torch.device, stack: ExitStack) -> dict[str, Any]:
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
            message = f"{path} is damaged or not safetensors: {error}"
        raise CheckpointError(message) from error


def _is_pickle(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(2)
    except OSError:
        return False
    return head == b"PK" or (head[:1] == b"\x80" and head[1:] <= b"\x05")


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
    if not tensor.is_floating_point():
        raise CheckpointError(
            f"{folder}: {name} is {tensor.dtype}; quantized checkpoints are not supported"
        )
    tensor = tensor.to(dtype)
    if not torch.isfinite(tensor.sum(dtype=torch.float32)):
        raise CheckpointError(f"{folder}: {name} contains non-finite values")
    return tensor
