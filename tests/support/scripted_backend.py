"""A backend without a model. The script in a prompt sets the number of frames."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np

from tests.support.utterances import read_pieces
from vivace import TTS
from vivace.backends.base import Frames, Immediate, Rendered, Samples, Slot, SlotStatus
from vivace.engine.chunks import chunk_sizes
from vivace.engine.engine import Engine
from vivace.engine.utterance import Piece
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


@dataclass
class Life:
    name: int
    length: int
    fails_at: int
    made: int = 0


@dataclass
class ScriptedBackend(Immediate):
    name: str = "scripted"
    shares_work: bool = True
    max_streams: int = 1_000
    step_s: float = 0.0
    broken: Exception | None = None
    lives: dict[Slot, Life] = field(default_factory=dict)
    admitted: list[int] = field(default_factory=list)  # seeds, in order
    steps: list[tuple[int, int]] = field(default_factory=list)  # (slots, frames)
    num_released: int = 0

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        assert len(self.lives) < self.max_streams, "more slots than were promised"
        length, fails_at = prompt.text_ids
        if length < 0:
            raise ValueError("a prompt that cannot be read")
        slot = len(self.admitted)
        self.admitted.append(sampling.seed or 0)
        self.lives[slot] = Life(sampling.seed or 0, length, fails_at)
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
            life = self.lives[slot]
            count = min(num_frames, life.length - life.made)
            codes[row, :count, 0] = life.name
            codes[row, :count, 1] = np.arange(life.made, life.made + count)
            life.made += count
            lengths.append(count)
            status.append(self._status(life))
        return Frames(codes, tuple(lengths), tuple(status))

    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        return [np.repeat(frames.of(row)[:, 1], 10).astype(np.float32) for row in range(len(slots))]

    def release(self, slot: Slot) -> None:
        del self.lives[slot]  # twice would be a KeyError
        self.num_released += 1

    def warmup(self) -> None: ...

    def memory(self) -> dict[str, int]:
        return {}

    def facts(self) -> dict[str, str]:
        return {}

    @staticmethod
    def _status(life: Life) -> SlotStatus:
        if 0 <= life.fails_at <= life.made:
            return "failed"
        return "stop" if life.made >= life.length else "running"


@dataclass
class BusyBackend(ScriptedBackend):
    """Makes frames and samples when they are awaited. `events` records the order."""

    events: list[str] = field(default_factory=list)

    def start_step(self, slots: Sequence[Slot], num_frames: int) -> Callable[[], Frames]:
        self.events.append("frames started")
        frames = self.step(slots, num_frames)
        return lambda: self._arrive("frames there", frames)

    def start_render(self, slots: Sequence[Slot], frames: Frames) -> Callable[[], Rendered]:
        assert all(slot in self.lives for slot in slots), "samples for somebody who has left"
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
    num_extended: int = 0

    def load(self, **options: Any) -> TTS:
        with patch("vivace.tts.build_backend", lambda *_: self):
            return TTS.load(device="cpu", **options)

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        return super().admit(script(self.num_frames), sampling)

    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None:
        self.num_extended += 1

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        frames = super().step(slots, num_frames)
        codes = np.zeros((*frames.codes.shape[:2], 16), dtype=np.int64)
        codes[:, :, :2] = frames.codes
        return Frames(codes, frames.lengths, frames.status)

    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        return [np.full(1_920 * count, 0.1, np.float32) for count in frames.lengths]


def open_pieces(
    engine: Engine, prompt: Prompt | int, seed: int, size: ChunkFrames = 4
) -> Iterator[Piece]:
    prompt = script(prompt) if isinstance(prompt, int) else prompt
    return read_pieces(engine, prompt, SamplingParams(seed=seed), chunk_sizes(size))


def wait_until(is_so: Callable[[], object]) -> None:
    """Wait for a change made by another thread."""
    while not is_so():
        time.sleep(0.001)


def wait_until_empty(engine: Engine, backend: ScriptedBackend) -> None:
    """Every slot is free again and nothing is queued."""
    wait_until(lambda: not engine._scheduler.running and not engine._scheduler.queue)
    wait_until(lambda: backend.lives == {})
    assert backend.num_released == len(backend.admitted)
