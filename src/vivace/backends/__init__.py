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
    build: Callable[[Qwen3TTS, Codec], Backend]


BACKENDS: tuple[BackendEntry, ...] = (
    BackendEntry("eager", "plain PyTorch on any device", lambda device: None, EagerBackend),
)


def survey(device: torch.device) -> list[tuple[BackendEntry, str | None]]:
    """Every backend with the reason why it cannot run on `device`, or None."""
    return [(entry, entry.refusal(device)) for entry in BACKENDS]


def build_backend(name: str, model: Qwen3TTS, codec: Codec) -> Backend:
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
            return entry.build(model, codec)
        if name == entry.name:
            raise BackendUnavailableError(f"backend {name} cannot run here: {refusal}")
        log.info("backend %s passed over: %s", entry.name, refusal)
    raise BackendUnavailableError(f"no backend can run on {model.device}")
