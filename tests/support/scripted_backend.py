"""A backend without a model. The script in a prompt sets the number of frames."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from unittest.mock import patch

import numpy as np

from tests.support.utterances import read_blocks
from vivace import TTS
from vivace.backends.base import Frames, Rendered, Samples, Slot, SlotStatus, SynchronousBackend
from vivace.engine.engine import Engine
from vivace.engine.streams.chunks import chunk_sizes
from vivace.engine.utterances.frame_block import FrameBlock
from vivace.options import ChunkFrames
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

T = TypeVar("T")


def script(num_frames: int, *, fails_at: int | None = None) -> Prompt:
    """A prompt whose text ids encode its length and the frame with non-finite samples."""
    return Prompt(
        text_ids=(num_frames, -1 if fails_at is None else fails_at),
        codes=np.zeros((1, 2), dtype=np.int64),
        labels=("length", "failure"),
        trailing_ids=(),
        pad_id=0,
    )


S = TypeVar("S")


@dataclass
class ModelFreeBackend(SynchronousBackend, Generic[S]):
    """The parts of a backend that need no model. `S` is the state of a slot."""

    name: str = "scripted"
    shares_work: bool = True
    max_prompt_rows: int = 2048
    renders_beside: bool = True
    max_streams: int = 1_000
    open_slots: dict[Slot, S] = field(default_factory=dict)
    num_released: int = 0

    def load(self, *_: object, **options: Any) -> TTS:
        """The embedded voice with this backend."""
        with patch("vivace.engine.checkpoints.loading.build_backend", lambda *_: self):
            return TTS.load(device="cpu", **options)

    def release(self, slot: Slot) -> None:
        del self.open_slots[slot]  # a second release would be a KeyError
        self.num_released += 1

    def warmup(self) -> None: ...

    def memory(self) -> dict[str, int]:
        return {}

    def facts(self) -> dict[str, str]:
        return {}


@dataclass
class ScriptedSlot:
    seed: int
    length: int
    fails_at: int
    made: int = 0


@dataclass
class ScriptedBackend(ModelFreeBackend[ScriptedSlot]):
    step_s: float = 0.0
    broken: Exception | None = None
    admitted: list[int] = field(default_factory=list)  # seeds, in order
    steps: list[tuple[int, int]] = field(default_factory=list)  # (slots, frames)

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        assert len(self.open_slots) < self.max_streams, "more slots than max_streams"
        length, fails_at = prompt.text_ids
        if length < 0:
            raise ValueError("an invalid prompt")
        slot = len(self.admitted)
        self.admitted.append(sampling.seed or 0)
        self.open_slots[slot] = ScriptedSlot(sampling.seed or 0, length, fails_at)
        return slot

    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None:
        raise AssertionError("no live text here")

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        time.sleep(self.step_s)
        if self.broken is not None:
            raise self.broken
        assert len(set(slots)) == len(slots)
        self.steps.append((len(slots), num_frames))
        codes = np.zeros((len(slots), num_frames, 2), dtype=np.int64)
        lengths, status = [], []
        for row, slot in enumerate(slots):
            state = self.open_slots[slot]
            count = min(num_frames, state.length - state.made)
            codes[row, :count, 0] = state.seed
            codes[row, :count, 1] = np.arange(state.made, state.made + count)
            state.made += count
            lengths.append(count)
            status.append(self._status(state))
        return Frames(codes, tuple(lengths), tuple(status))

    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        return [np.repeat(frames.of(row)[:, 1], 10).astype(np.float32) for row in range(len(slots))]

    @staticmethod
    def _status(state: ScriptedSlot) -> SlotStatus:
        if 0 <= state.fails_at <= state.made:
            return "failed"
        return "stop" if state.made >= state.length else "running"


@dataclass
class BusyBackend(ScriptedBackend):
    """Makes frames and samples when they are awaited. `events` records the order."""

    events: list[str] = field(default_factory=list)

    def start_step(self, slots: Sequence[Slot], num_frames: int) -> Callable[[], Frames]:
        self.events.append("frames started")
        frames = self.step(slots, num_frames)
        return lambda: self._arrive("frames there", frames)

    def start_render(self, slots: Sequence[Slot], frames: Frames) -> Callable[[], Rendered]:
        assert all(slot in self.open_slots for slot in slots), "samples of a released slot"
        self.events.append("samples started")
        sound = Rendered.of(self.render(slots, frames), frames.lengths)
        return lambda: self._arrive("samples there", sound)

    def _arrive(self, event: str, result: T) -> T:
        time.sleep(self.step_s)
        self.events.append(event)
        return result


@dataclass
class SpeakingBackend(ScriptedBackend):
    """Speaks any prompt of the embedded voice with `num_frames` frames that encode the seed."""

    num_frames: int = 12

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        return super().admit(script(self.num_frames), sampling)

    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None: ...

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        frames = super().step(slots, num_frames)
        codes = np.zeros((*frames.codes.shape[:2], 16), dtype=np.int64)
        codes[:, :, :2] = frames.codes
        return Frames(codes, frames.lengths, frames.status)

    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        return [np.full(1_920 * count, 0.1, np.float32) for count in frames.lengths]


def open_blocks(
    engine: Engine, prompt: Prompt | int, seed: int, size: ChunkFrames = 4
) -> Iterator[FrameBlock]:
    prompt = script(prompt) if isinstance(prompt, int) else prompt
    return read_blocks(engine, prompt, SamplingParams(seed=seed), chunk_sizes(size))


def wait_until(is_so: Callable[[], object]) -> None:
    """Wait for a change made by another thread."""
    while not is_so():
        time.sleep(0.001)


def wait_until_empty(engine: Engine, backend: ScriptedBackend) -> None:
    """Every slot is free again and nothing is queued."""
    wait_until(lambda: not engine._worker.scheduler.running and not engine._worker.scheduler.queue)
    wait_until(lambda: backend.open_slots == {})
    assert backend.num_released == len(backend.admitted)
