"""Adapters: the changes that `vivace finetune` trains, in one safetensors file.

A file has pairs of small matrices (LoRA), speaker vectors and, rarely, whole tensors. They are
merged into the weights when a checkpoint is loaded, so speech is as fast as without an adapter.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as pack_tensors
from torch import Tensor

from vivace.arguments import as_path
from vivace.checkpoint_files import WHOLE_TENSOR
from vivace.disk import why_not_regular, write_whole
from vivace.errors import AdapterError
from vivace.model.config import ModelConfig
from vivace.model.talker import Qwen3TTS
from vivace.speaker_notes import SpeakerNotes, make_notes

FORMAT = "vivace.adapter/1"
LORA, SPEAKER, WEIGHT = "lora.", "speaker.", WHOLE_TENSOR  # prefixes of tensor names
MAX_NOTE = 2_000  # characters of a text in the metadata
NUM_SPEAKER_IDS = 72  # ids at the end of the talker's vocabulary that name speakers


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterInfo:
    """The metadata of an adapter."""

    name: str
    base: str  # name of the base checkpoint, for messages
    base_digest: str  # `Checkpoint.digest` of the base
    rank: int
    scale: float  # of the product of a pair of matrices
    speakers: Mapping[str, int] = field(default_factory=dict)  # embedding id of each new speaker
    data_sha256: str = ""  # of the training data
    licence: str = ""
    consent: str = ""  # who agreed to the use of the recordings
    created: str = ""  # a date
    steps: int = 0
    loss: float = 0.0  # on the held-out recordings

    def to_metadata(self) -> dict[str, str]:
        return {"format": FORMAT, "info": json.dumps(dataclasses.asdict(self), sort_keys=True)}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> AdapterInfo:
        if metadata.get("format") != FORMAT:
            found = metadata.get("format", "none")
            raise AdapterError(f"not an adapter: format {found!r}, not {FORMAT!r}")
        try:
            values = json.loads(metadata.get("info", ""))
            info = cls(**values)
        except (TypeError, ValueError) as error:
            raise AdapterError(f"not an adapter: its metadata cannot be read ({error})") from error
        info._check()
        return info

    def _check(self) -> None:
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            wanted = _KINDS[str(one.type)]
            if type(value) not in wanted:
                raise AdapterError(f"{one.name} must be {one.type}, not {value!r:.80}")
            if isinstance(value, str) and len(value) > MAX_NOTE:
                raise AdapterError(f"{one.name} has more than {MAX_NOTE:,} characters")
        if any(type(number) is not int for number in self.speakers.values()):
            raise AdapterError("speakers must map names to ids")
        if self.rank < 0 or not abs(self.scale) < float("inf"):
            raise AdapterError(f"rank {self.rank} and scale {self.scale} are not valid")


_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (float, int), "Mapping[str, int]": (dict,),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adapter:
    """An adapter in memory. Tensors are float32 on the CPU."""

    info: AdapterInfo
    pairs: Mapping[str, tuple[Tensor, Tensor]]  # (a [rank, in], b [out, rank]) by parameter
    vectors: Mapping[str, Tensor]  # [hidden] by speaker
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # whole tensors by parameter
    path: Path | None = None  # of its file, for messages

    @property
    def notes(self) -> SpeakerNotes:
        """Licence and consent of the new speakers."""
        return make_notes(self.info.speakers, self.info.licence, self.info.consent)

    @classmethod
    def load(cls, path: str | Path) -> Adapter:
        path = as_path("adapter", path, AdapterError)
        try:
            if reason := why_not_regular(path):
                raise AdapterError(reason)
            with safe_open(path, framework="pt") as file:
                info = AdapterInfo.from_metadata(file.metadata() or {})
                names = list(file.keys())
                tensors = {name: _checked(name, file.get_tensor(name)) for name in names}
            return dataclasses.replace(_sort(info, tensors), path=path)
        except (SafetensorError, OSError) as error:
            raise AdapterError(f"{path}: damaged or not safetensors: {error}") from error
        except AdapterError as error:
            raise AdapterError(f"{path}: {error}") from error

    def save(self, path: Path) -> None:
        """Write the adapter atomically. Raises AdapterError."""
        tensors = {SPEAKER + name: vector for name, vector in self.vectors.items()}
        tensors |= {WEIGHT + name: weight for name, weight in self.weights.items()}
        for name, (a, b) in self.pairs.items():
            tensors |= {f"{LORA}{name}.a": a, f"{LORA}{name}.b": b}
        stored = {name: one.detach().float().cpu().contiguous() for name, one in tensors.items()}
        try:
            write_whole(path, pack_tensors(stored, self.info.to_metadata()), replace=True)
        except OSError as error:
            raise AdapterError(f"cannot write {path}: {error.strerror or error}") from error

    def check_base(self, digest: str, name: str) -> None:
        """Raise AdapterError unless the adapter was trained for this checkpoint."""
        if digest != self.info.base_digest:
            place = "" if self.path is None else f"{self.path}: "
            raise AdapterError(
                f"{place}the adapter {self.info.name!r} was trained for {self.info.base}, and the "
                f"weights of {name} are others; load its base"
            )

    def extend(self, config: ModelConfig) -> ModelConfig:
        return with_speakers(config, self.info.speakers)

    def apply(self, model: Qwen3TTS) -> None:
        """Merge the adapter into the weights of a model that is not fused yet."""
        for name, weight in self.weights.items():
            find_parameter(model, name, weight.shape).data.copy_(weight)
        for name, (a, b) in self.pairs.items():
            weight = find_parameter(model, name, torch.Size((len(b), a.shape[1])))
            a, b = a.to(weight.device), b.to(weight.device)
            weight.data.copy_(lora_weight(weight.data, a, b, self.info.scale))
        for name, vector in self.vectors.items():
            set_speaker(model, self.info.speakers[name], vector)


def lora_weight(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """A weight [out, in] with a pair of matrices added in float32, rounded once."""
    return (weight.float() + scale * (b @ a)).to(weight.dtype)


def set_speaker(model: Qwen3TTS, number: int, vector: Tensor) -> None:
    """Write a speaker's vector into the row of its id."""
    table = model.talker.model.codec_embedding.weight.data
    check_speaker(vector, table.shape[1])
    table[number] = vector.detach().to(table)


def check_speaker(vector: Tensor, width: int) -> None:
    """Raise AdapterError unless a speaker's vector has the width of the model."""
    if vector.shape != (width,):
        raise AdapterError(
            f"a speaker has {vector.numel()} values and the model's width is {width}"
        )


def with_speakers(config: ModelConfig, speakers: Mapping[str, int]) -> ModelConfig:
    """The configuration of a checkpoint with new preset speakers; the first is the default voice.

    A Base checkpoint becomes a custom_voice checkpoint. Without speakers nothing changes.
    """
    if not speakers:
        return config
    talker = config.talker_config
    allowed = _speaker_ids(config)
    for name, number in speakers.items():
        if number not in allowed:
            raise AdapterError(f"the speaker {name!r} has the id {number}, which is not free")
    talker = dataclasses.replace(
        talker,
        spk_id={**speakers, **talker.spk_id},
        spk_is_dialect={**dict.fromkeys(speakers, False), **talker.spk_is_dialect},
    )
    return dataclasses.replace(
        config, tts_model_type="custom_voice", talker_config=talker, speaker_encoder_config=None
    )


def free_speaker_ids(config: ModelConfig, names: list[str]) -> dict[str, int]:
    """Ids for new speakers, from 3,000 in released checkpoints, as in the official script."""
    known = {name.lower() for name in config.talker_config.spk_id}
    if taken := [name for name in names if name.lower() in known]:
        raise AdapterError(f"the checkpoint has a speaker {taken[0]!r}; choose another name")
    free = sorted(_speaker_ids(config))
    if len(names) > len(free):
        raise AdapterError(
            f"the checkpoint has room for {len(free)} new speakers, not {len(names)}"
        )
    return dict(zip(names, free, strict=False))


def _speaker_ids(config: ModelConfig) -> set[int]:
    """Ids that can name a new speaker."""
    talker = config.talker_config
    used = {*talker.spk_id.values(), *talker.codec_language_id.values()}
    first = max(talker.vocab_size - NUM_SPEAKER_IDS, talker.code_predictor_config.vocab_size)
    special = {
        getattr(talker, one.name)
        for one in dataclasses.fields(talker)
        if one.name.startswith("codec_") and one.name != "codec_language_id"
    }
    return set(range(first, talker.vocab_size)) - used - special


def find_parameter(model: Qwen3TTS, name: str, shape: torch.Size | None = None) -> Tensor:
    """A parameter of the model, of this shape. Raises AdapterError."""
    try:
        weight = model.get_parameter(name)
    except AttributeError:
        raise AdapterError(f"the adapter changes {name}, which this model does not have") from None
    if shape is not None and weight.shape != shape:
        raise AdapterError(
            f"the adapter changes {name} of shape {list(shape)}; "
            f"this model's has {list(weight.shape)}"
        )
    return weight


def _checked(name: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        kind = str(tensor.dtype).removeprefix("torch.")
        raise AdapterError(f"{name} has {kind} values instead of floating-point numbers")
    if not bool(torch.isfinite(tensor).all()):
        raise AdapterError(f"{name} has values that are not finite numbers")
    return tensor.float()


def _sort(info: AdapterInfo, tensors: dict[str, Tensor]) -> Adapter:
    parts: dict[str, dict[str, Any]] = {LORA: {}, SPEAKER: {}, WEIGHT: {}}
    for name, tensor in tensors.items():
        prefix = next((one for one in parts if name.startswith(one)), None)
        if prefix is None:
            raise AdapterError(f"unknown tensor {name}")
        parts[prefix][name.removeprefix(prefix)] = tensor
    halves = parts[LORA]
    names = sorted({name.rpartition(".")[0] for name in halves})
    if len(halves) != 2 * len(names) or any(f"{n}.{h}" not in halves for n in names for h in "ab"):
        raise AdapterError("a pair of matrices is incomplete")
    pairs = {name: (halves[f"{name}.a"], halves[f"{name}.b"]) for name in names}
    for name, (a, b) in pairs.items():
        if a.ndim != 2 or b.ndim != 2 or len(a) != b.shape[1]:
            raise AdapterError(f"the matrices of {name} do not fit together")
    if parts[SPEAKER].keys() != info.speakers.keys():
        raise AdapterError("the metadata and the speaker vectors name different speakers")
    return Adapter(info=info, pairs=pairs, vectors=parts[SPEAKER], weights=parts[WEIGHT])
