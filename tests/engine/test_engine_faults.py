"""Exceptions in backend calls: which utterances fail and which continue."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.scripted_backend import (
    BusyBackend,
    open_blocks,
    wait_until_empty,
)
from vivace import TTS
from vivace.backends.base import Frames, Samples, Slot
from vivace.engine.engine import Engine
from vivace.engine.limits import EngineLimits
from vivace.engine.utterances.frame_block import FrameBlock
from vivace.errors import TTSError
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

SOON_S = 30  # half of max_wait_s; enough on a busy machine
CALLS = ["admit", "step", "frames", "render", "samples"]
FAULTS = [
    MemoryError("no memory"),
    RuntimeError("CUDA error: device-side assert triggered"),
    torch.OutOfMemoryError("CUDA out of memory"),
    AssertionError("a slot that is not there"),
    KeyboardInterrupt("in a thread that nobody can interrupt"),
]


@dataclass
class FaultyBackend(BusyBackend):
    """Raises `fault` once in the call named `where`, before or after its work."""

    where: str = ""
    fault: BaseException | None = None
    is_after: bool = True
    seen: list[Slot] = field(default_factory=list)  # the slots of the call that raised

    def _trip(self, where: str, is_after: bool, slots: Sequence[Slot] = ()) -> None:
        if (where, is_after) == (self.where, self.is_after) and self.fault is not None:
            fault, self.fault, self.seen = self.fault, None, list(slots)
            raise fault

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        self._trip("admit", False)
        slot = super().admit(prompt, sampling)
        try:
            self._trip("admit", True)
        except BaseException:
            self.release(slot)
            raise
        return slot

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        self._trip("step", False, slots)
        frames = super().step(slots, num_frames)
        self._trip("step", True, slots)
        return frames

    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        self._trip("render", False, slots)
        samples = super().render(slots, frames)
        self._trip("render", True, slots)
        return samples

    def _arrive(self, event: str, result: object) -> object:  # type: ignore[override]
        self._trip(event.removesuffix(" there"), False)
        arrived = super()._arrive(event, result)
        self._trip(event.removesuffix(" there"), True)
        return arrived


def expected(seed: int, num_frames: int) -> np.ndarray:
    return np.stack((np.full(num_frames, seed), np.arange(num_frames)), axis=1)


class StreamReader:
    """Reads a stream and records its frames and its error."""

    def __init__(self, engine: Engine, seed: int, num_frames: int = 60) -> None:
        self.seed, self.num_frames = seed, num_frames
        self.codes: list[np.ndarray] = []
        self.error: BaseException | None = None
        self._blocks: Iterator[FrameBlock] | None = open_blocks(engine, num_frames, seed, 2)

    def read(self, num_pieces: int = 1_000) -> None:
        try:
            for _ in range(num_pieces):
                assert self._blocks is not None
                self.codes.append(next(self._blocks).codes)
        except StopIteration:
            pass
        except BaseException as error:
            self.error = error
            self._blocks = None

    def check(self) -> None:
        """The frames are complete, or the first ones followed by an error with the reason."""
        codes = np.concatenate(self.codes) if self.codes else np.empty((0, 2))
        assert np.array_equal(codes, expected(self.seed, len(codes)))
        assert len(codes) == self.num_frames or isinstance(self.error, TTSError)


def assert_all_is_well(engine: Engine, backend: FaultyBackend) -> None:
    wait_until_empty(engine, backend)
    newcomer = StreamReader(engine, 99)
    newcomer.read()
    newcomer.check()
    assert newcomer.error is None
    wait_until_empty(engine, backend)


class Interrupted(BaseException):
    """Like KeyboardInterrupt, which would end pytest if it were raised outside of a test."""


@pytest.mark.parametrize("kind", [Interrupted, TimeoutError])
@pytest.mark.parametrize("where", ["step", "render"])
def test_interrupt_reaches_only_its_reader(where: str, kind: type[BaseException]) -> None:
    class SignalledBackend(FaultyBackend):
        """Send the main thread a signal inside a turn, and wait until it is handled.

        CPython handles a signal that comes just before a blocking call after that call, here with
        the next block: the wait ends early, so that the block comes.
        """

        is_armed, is_handled = False, threading.Event()

        def _trip(self, call: str, is_after: bool, slots: Sequence[Slot] = ()) -> None:
            if self.is_armed and call == where and is_after:
                self.is_armed = False
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
                self.is_handled.wait(0.5)

    def handle(*_: object) -> None:
        backend.is_handled.set()
        raise kind("for this thread")

    def read_with_signal(blocks: Iterable[object]) -> None:
        backend.is_armed = True  # the signal may come at once
        list(blocks)

    backend = SignalledBackend()
    engine = Engine(backend)
    other, victim = StreamReader(engine, 1), open_blocks(engine, 60, 2, 2)
    other.read(2)
    next(victim)
    before = signal.signal(signal.SIGTERM, handle)
    try:
        with pytest.raises(kind, match="for this thread"):
            read_with_signal(victim)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert backend.is_handled.is_set()
    other.read()
    other.check()
    assert other.error is None
    del victim
    assert_all_is_well(engine, backend)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("where", CALLS)
def test_backend_fault_fails_only_utterances_of_the_call(
    where: str, is_after: bool, fault: BaseException
) -> None:
    backend = FaultyBackend(where=where, is_after=is_after)
    engine = Engine(backend)
    bystander, victim = StreamReader(engine, 1), StreamReader(engine, 2, 200)
    bystander.read(1)
    if where != "admit":
        victim.read(40)  # now the bystander has all frames that may be made ahead
    backend.fault = fault
    victim.read()
    assert isinstance(victim.error, TTSError)
    assert str(fault) in str(victim.error)
    victim.check()
    bystander.read()
    bystander.check()
    assert bystander.error is None
    assert_all_is_well(engine, backend)


@pytest.mark.parametrize("where", ["step", "frames", "render", "samples"])
def test_utterances_of_a_failed_turn_get_separate_errors(where: str) -> None:
    backend = FaultyBackend(where=where)
    engine = Engine(backend)
    readers = [StreamReader(engine, seed) for seed in range(4)]
    for listener in readers:
        listener.read(2)
    backend.fault = RuntimeError("a kernel failed")
    for listener in readers:
        listener.read()
        listener.check()
    errors = [one.error for one in readers if one.error is not None]
    assert errors
    assert len({id(error) for error in errors}) == len(errors)
    assert all("a kernel failed" in str(error) for error in errors)
    assert_all_is_well(engine, backend)


def test_prompts_of_a_failed_batch_are_admitted_one_by_one() -> None:
    class PickyBackend(FaultyBackend):
        def admit_many(self, requests):  # type: ignore[no-untyped-def]
            if any(prompt.text_ids[0] == 13 for prompt, _ in requests):
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().admit_many(requests)

    backend = PickyBackend(max_streams=3, step_s=0.001)
    engine = Engine(backend, EngineLimits(max_streams=3))
    first = StreamReader(engine, 0, 30)
    holders = [StreamReader(engine, seed, 30) for seed in (1, 2)]
    for holder in [first, *holders]:
        holder.read(1)
    waiting = [StreamReader(engine, 3), StreamReader(engine, 4, 13), StreamReader(engine, 5)]
    threads = [threading.Thread(target=one.read, daemon=True) for one in waiting]
    for thread in threads:
        thread.start()
    while engine.num_waiting < 3:
        time.sleep(0.001)
    for holder in [first, *holders]:
        holder.read()
    for thread in threads:
        thread.join(SOON_S)
        assert not thread.is_alive()
    assert [one.error is None for one in waiting] == [True, False, True]
    for one in waiting:
        one.check()
    assert_all_is_well(engine, backend)


def test_lost_context_breaks_the_engine_with_fresh_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = FaultyBackend(where="step")
    engine = Engine(backend)
    readers = [StreamReader(engine, seed) for seed in range(3)]
    for listener in readers:
        listener.read(1)
    monkeypatch.setattr("vivace.engine.turns.worker.is_context_lost", lambda: True)
    backend.fault = RuntimeError("CUDA error: an illegal memory access was encountered")
    for listener in readers:
        listener.read()
        listener.check()
    depths = set()
    for seed in range(20):
        refused = StreamReader(engine, seed)
        refused.read()
        assert isinstance(refused.error, TTSError)
        assert "illegal memory access" in str(refused.error)
        depths.add(len(traceback.extract_tb(refused.error.__traceback__)))
    assert len(depths) == 1
    assert engine.num_running == engine.num_waiting == 0


# -- live text -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tts(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as loaded:
        yield loaded


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_fault_in_extend_fails_only_that_stream(
    tts: TTS, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    options: dict[str, Any] = {"seed": 3, "min_frames": 20, "max_frames": 20, "chunk_frames": 2}
    whole = tts.speak("A neighbour.", seed=3, min_frames=20, max_frames=20).codes
    neighbour = tts.stream("A neighbour.", **options)
    made = [next(neighbour).codes]

    def fail(*_: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(tts.engine.backend, "extend", fail)
        with pytest.raises(TTSError) as caught:
            list(tts.stream(iter(["One ", "two ", "three ", "four."]), seed=1))
    assert str(fault) in str(caught.value)
    made += [chunk.codes for chunk in neighbour]
    assert np.array_equal(np.concatenate(made), whole)
    assert tts.engine.num_running == 0
    list(tts.stream(iter(["One ", "two ", "three ", "four."]), seed=1, max_frames=8))
