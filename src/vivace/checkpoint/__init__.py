"""Loads a checkpoint folder: its configuration, and its tensors as weights on a device.

Models are built on the meta device and filled tensor by tensor, so memory holds one copy. Missing,
unknown, mis-shaped and non-finite tensors raise CheckpointError, which names them. Tensors that
need no conversion, such as all tensors of a quantized checkpoint, stay in the memory-mapped file.
PyTorch is imported with the first weights.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vivace.checkpoint_files import SPEAKER_ENCODER, read_json, release_pages
from vivace.errors import CheckpointError, RequestError
from vivace.hub import (
    CODEC,
    EMBEDDED,
    RELEASED,
    codec_folder,
    find_folder,
    shard_paths,
    weight_bytes,
)
from vivace.model.config import CodecConfig, ModelConfig, TalkerConfig, Weights
from vivace.model.config_file import load_codec_config, load_model_config
from vivace.model.dimensions import check_codec, check_model
from vivace.speaker_notes import SpeakerNotes, read_notes
from vivace.speech import SamplingParams
from vivace.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    import torch

    from vivace.model.codec import Codec
    from vivace.model.talker import Qwen3TTS

__all__ = ["EMBEDDED", "RELEASED", "Checkpoint", "find_folder", "load_codec", "read_sampling"]

MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The parsed configuration of a checkpoint folder. The weights are not loaded."""

    folder: Path
    config: ModelConfig
    codec_config: CodecConfig
    sampling: SamplingParams  # the checkpoint's own defaults
    speaker_notes: SpeakerNotes = dataclasses.field(default_factory=dict)  # of fine-tuned speakers

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        checkpoint = cls(
            folder=folder,
            config=load_model_config(folder / "config.json"),
            codec_config=load_codec_config(folder / CODEC / "config.json"),
            sampling=read_sampling(folder / "generation_config.json"),
            speaker_notes=read_notes(folder),
        )
        _check_ids(checkpoint.config, folder)
        _check_codec(checkpoint.config, checkpoint.codec_config, folder)
        return checkpoint

    @property
    def num_bytes(self) -> int:
        """Size of all weights on disk."""
        return weight_bytes(self.folder)

    @property
    def can_clone_in_context(self) -> bool:
        """Whether a clone can use the transcript of its recording."""
        return self.config.can_clone and self.codec_config.has_encoder

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
        import torch

        from vivace.checkpoint.tensors import open_shards

        digest = hashlib.sha256()
        with ExitStack() as stack:
            for name, source in sorted(
                open_shards(self.folder, torch.device("cpu"), stack).items()
            ):
                if not name.startswith(SPEAKER_ENCODER):
                    digest.update(name.encode())
                    row = source.get_slice(name)[:1].contiguous().view(torch.uint8)
                    digest.update(row.numpy().tobytes())
        return digest.hexdigest()

    def load_plain_model(self, device: torch.device, dtype: torch.dtype) -> Qwen3TTS:
        """The model before its products are fused, with one parameter for each tensor."""
        from vivace.checkpoint.tensors import load_module
        from vivace.model.talker import Qwen3TTS

        return load_module(Qwen3TTS, check_model, self.config, self.folder, device, dtype)

    def load_model(
        self,
        device: torch.device,
        dtype: torch.dtype,
        weights: Weights = "full",
        change: Callable[[Qwen3TTS], None] | None = None,  # before weights are fused and rounded
    ) -> Qwen3TTS:
        """For a quantized checkpoint, `weights` is `full` or names its format."""
        from vivace.checkpoint.quantized import load_quantized
        from vivace.model.fp8 import round_weights
        from vivace.model.layers import fuse
        from vivace.model.quantized_layers import BITS

        if self.config.quantization_config is not None or weights in BITS:
            model = load_quantized(self.config, self.folder, device, dtype, weights, change)
        else:
            model = self.load_plain_model(device, dtype)
            if change is not None:
                change(model)
        fuse(model)
        if weights == "fp8":
            round_weights(model)
        return model

    def release_pages(self) -> None:
        """Free the pages of mapped weights, after a backend has copied or packed its weights.

        Pages that are used are mapped again. Speech does not use most rows of the embeddings, nor
        the codec's tensors if the backend has packed its decoder.
        """
        release_pages([*shard_paths(self.folder), *shard_paths(self.folder / CODEC)])

    def load_codec(self, device: torch.device) -> Codec:
        """Always float32: its exponentials and codebooks need the precision.

        On a CPU the tensors stay in the mapped file. A backend that decodes in PyTorch folds them.
        """
        codec = _load_codec(self.codec_config, self.folder / CODEC, device)
        if device.type != "cpu":
            codec.fold()
        return codec


def load_codec(folder: Path, device: torch.device) -> Codec:
    """Load the codec of a codec folder or of a checkpoint folder."""
    folder = codec_folder(folder)
    codec = _load_codec(load_codec_config(folder / "config.json"), folder, device)
    codec.fold()
    return codec


def _load_codec(config: CodecConfig, folder: Path, device: torch.device) -> Codec:
    import torch

    from vivace.checkpoint.tensors import load_module
    from vivace.model.codec import Codec

    return load_module(Codec, check_codec, config, folder, device, torch.float32)


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
    num_encoded = codec.encoder_valid_num_quantizers  # 0: no trained encoder
    for values in (
        {
            "talker num_code_groups": talker.num_code_groups,
            "code predictor num_code_groups": predictor.num_code_groups,
            "codec decoder num_quantizers": decoder.num_quantizers,
            **({"codec encoder_valid_num_quantizers": num_encoded} if num_encoded else {}),
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
