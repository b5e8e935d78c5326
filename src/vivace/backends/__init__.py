"""The table of backends, best first.

`auto` takes the first one that can run on the model's device; `survey` says why each can or cannot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from vivace.backends.base import Backend
from vivace.backends.eager import EagerBackend
from vivace.errors import BackendUnavailableError
from vivace.model.codec import Codec
from vivace.model.talker import Qwen3TTS

log = logging.getLogger(__name__)

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class BackendEntry:
    name: str
    summary: str
    refusal: Callable[[torch.device], str | None]  # why it cannot run there, or None
    build: Callable[[Qwen3TTS, Codec, int | None], Backend]  # for so many streams


def _graph_refusal(device: torch.device) -> str | None:
    if device.type == "cuda" and torch.version.cuda is not None:
        return None
    return f"it needs an NVIDIA GPU, and the device is {device}"


def _build_eager(model: Qwen3TTS, codec: Codec, max_streams: int | None) -> Backend:
    return EagerBackend(model, codec, max_streams=max_streams)


def _build_graphs(model: Qwen3TTS, codec: Codec, max_streams: int | None) -> Backend:
    from vivace.backends.cuda_graph.backend import CudaGraphBackend

    return CudaGraphBackend(model, codec, max_streams=max_streams)


BACKENDS: tuple[BackendEntry, ...] = (
    BackendEntry("eager", "plain PyTorch on any device", lambda device: None, _build_eager),
    # Behind eager until its present code has passed its tests on a GPU: asked for by name.
    BackendEntry("cuda_graph", "a whole frame in one CUDA graph", _graph_refusal, _build_graphs),
)


def survey(device: torch.device) -> list[tuple[BackendEntry, str | None]]:
    """Every backend with the reason why it cannot run on `device`, or None."""
    return [(entry, entry.refusal(device)) for entry in BACKENDS]


def build_backend(
    name: str, model: Qwen3TTS, codec: Codec, *, max_streams: int | None = None
) -> Backend:
    known = [entry.name for entry in BACKENDS]
    if name not in (AUTO, *known):
        raise BackendUnavailableError(
            f"no backend named {name!r}; try one of: {', '.join([AUTO, *known])}"
        )
    for entry, refusal in survey(model.device):
        if name not in (AUTO, entry.name):
            continue
        if refusal is None:
            log.info("backend %s on %s", entry.name, model.device)
            return entry.build(model, codec, max_streams)
        if name == entry.name:
            raise BackendUnavailableError(f"backend {name} cannot run here: {refusal}")
        log.info("backend %s passed over: %s", entry.name, refusal)
    raise BackendUnavailableError(f"no backend can run on {model.device}")
