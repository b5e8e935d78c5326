"""Prompts and settings for slots of a tiny checkpoint, and speech of a single slot."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support.official_calls import official_items
from tests.support.tiny import Tiny
from vivace import TTS
from vivace.backends import survey
from vivace.backends.cpu.backend import CpuBackend
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.slots.pages import PAGE
from vivace.backends.cuda_graph.slots.table import SlotTable
from vivace.backends.eager import EagerBackend
from vivace.prompt import Prompt, build_prompt
from vivace.speech import SamplingParams

NUM_FRAMES = 10  # more than two groups of LOOKAHEAD frames


def make_prompt(part: Tiny, text: str, *, is_complete: bool = True) -> Prompt:
    return build_prompt(
        part.checkpoint.config,
        part.tokenizer.encode(text),
        role_ids=part.tokenizer.role_ids("assistant"),
        layout="streamed",
        language="english",
        preset="ryan",
        is_complete=is_complete,
    )


PlainBackend = EagerBackend | CpuBackend
SteppedBackend = PlainBackend | CudaGraphBackend  # with `admit`, `step` and `render`


def auto_backend_name() -> str:
    """The backend that `auto` selects for a float32 model on the CPU of this machine."""
    return next(entry.name for entry, why in survey(torch.device("cpu")) if why is None)


def plain_backend(tts: TTS) -> PlainBackend:
    backend = tts.engine.backend
    assert isinstance(backend, (EagerBackend, CpuBackend))
    return backend


def params(seed: int, **changes: float) -> SamplingParams:
    return SamplingParams(seed=seed, max_frames=NUM_FRAMES, min_frames=5).replace(**changes)


def speak(backend: SteppedBackend, prompt: Prompt, sampling: SamplingParams) -> NDArray[np.int64]:
    slot = backend.admit(prompt, sampling)
    codes = backend.step([slot], sampling.max_frames).of(0)
    backend.release(slot)
    return codes


def stored(table: SlotTable, cache: Tensor, row: int, length: int) -> Tensor:
    """The first keys or values of a slot, out of its pages: [layers, heads, length, head_dim]."""
    pages = table.pages[row, : -(-length // PAGE)]
    return cache[:, pages].transpose(1, 2).flatten(2, 3)[:, :, :length]


def assert_official_codes_in_a_batch(backend: SteppedBackend, part: Tiny, model: str) -> None:
    """Compare greedy codes of a few official calls that run in one batch."""
    items = [item for item in official_items(model) if item.settings["max_new_tokens"] == 65]
    items = items[:: max(1, len(items) // 8)]
    slots = [backend.admit(item.prompt(part), item.sampling) for item in items]
    frames = backend.step(slots, 64)
    for row, item in enumerate(items):
        assert np.array_equal(frames.of(row), item.codes), item.call
