"""Adapters that are chosen per request: views of a loaded checkpoint that share its engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from vivace.backends import AUTO_BACKEND, BACKENDS
from vivace.checkpoint import Checkpoint
from vivace.checkpoint_files import has_whole_tensors
from vivace.device.choice import picks_cpu
from vivace.engine.checkpoints.attention import Attention
from vivace.engine.checkpoints.loaded import LoadedCheckpoint, Runtime
from vivace.engine.utterances.client import EngineClient
from vivace.engine.utterances.completeness import OfferUtterance
from vivace.engine.utterances.timings import OpenPass
from vivace.errors import AdapterError, RequestError
from vivace.hub import local_folder, weight_bytes
from vivace.model.config import IntWeights, Weights
from vivace.script.prompts import PromptAdapter
from vivace.speech import shown

if TYPE_CHECKING:
    from vivace.adapter import Adapter
    from vivace.adapter_set import AdapterSet

INTEGERS = get_args(IntWeights)  # weights that adapters must be merged into
AdapterPaths = Mapping[str, str | Path]  # files of `vivace finetune` by name


def read_adapters(
    merged: str | Path | None, mixed: AdapterPaths | None, weights: Weights
) -> Adapter | AdapterSet | None:
    """The adapter to merge into the weights, or the adapters to choose per request."""
    if mixed is not None and not isinstance(mixed, Mapping):
        raise AdapterError(f"adapters must be a mapping of names to files, not {shown(mixed)}")
    if merged is not None and mixed:
        raise RequestError(
            "adapter is merged into the weights and adapters are chosen per request: give one of "
            "the two"
        )
    if merged is not None:
        from vivace.adapter import Adapter  # imports PyTorch

        return Adapter.load(merged)
    if not mixed:
        return None
    if weights in INTEGERS:
        raise AdapterError(
            f"adapters cannot be mixed with weights {weights}; use weights full, or merge one "
            "adapter with adapter="
        )
    from vivace.adapter_set import AdapterSet  # imports PyTorch

    return AdapterSet.load(mixed)


def mixable_adapters(
    paths: Sequence[Path], source: str | None, device: str, backend: str, weights: Weights
) -> tuple[Path, ...]:
    """The files of adapters that a server should load beside one model; the others are merged.

    With backend `auto`, adapters are merged on a CPU: merged models run on the backend `cpu`,
    which is faster than a backend that mixes.
    """
    if backend == AUTO_BACKEND:
        folder = local_folder(source)
        is_mixing = not picks_cpu(device, None if folder is None else weight_bytes(folder))
    else:
        is_mixing = any(one.mixes_adapters for one in BACKENDS if one.name == backend)
    if not is_mixing or weights in INTEGERS:
        return ()
    return tuple(path for path in paths if not has_whole_tensors(path))


def with_adapter(checkpoint: Checkpoint, adapter: Adapter | AdapterSet) -> Checkpoint:
    """The checkpoint with the speakers of an adapter and their notes. The weights are not read."""
    return dataclasses.replace(
        checkpoint,
        config=adapter.extend(checkpoint.config),
        speaker_notes={**checkpoint.speaker_notes, **adapter.notes},
    )


class AdaptedCheckpoint(LoadedCheckpoint):
    """A loaded checkpoint with one of its adapters. The weights belong to the base."""

    def __init__(self, base: LoadedCheckpoint, number: int, adapter: Adapter) -> None:
        checkpoint = with_adapter(base.checkpoint, adapter)
        vectors = {name: vector.numpy() for name, vector in adapter.vectors.items()}
        tokenizer = base.writer.tokenizer
        super().__init__(checkpoint, tokenizer, None, PromptAdapter(number, vectors))
        self._base = base
        self.own_speakers = tuple(adapter.info.speakers)

    @property
    def open_runtime(self) -> Runtime | None:
        return self._base.open_runtime

    @property
    def client(self) -> EngineClient:
        return self._base.client

    @property
    def attention(self) -> Attention:
        return self._base.attention

    def _attention_calls(self) -> tuple[OpenPass, OfferUtterance]:
        return self._base._attention_calls()

    def close(self) -> None:
        """The base frees the weights."""


def view_adapters(
    base: LoadedCheckpoint, adapters: Adapter | AdapterSet | None
) -> dict[str, LoadedCheckpoint]:
    """A view for each adapter of a set; none for an adapter that is merged."""
    from vivace.adapter_set import AdapterSet  # imports PyTorch

    if not isinstance(adapters, AdapterSet):
        return {}
    numbered = enumerate(adapters.adapters.items(), start=1)
    return {name: AdaptedCheckpoint(base, number, adapter) for number, (name, adapter) in numbered}
