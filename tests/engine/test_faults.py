"""A fault in a call of the backend: whose it is, and what is left of the others."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from scripted import BusyBackend, Frames, Prompt, Samples, SamplingParams, Slot, script, session_of

from vivace import TTS
from vivace.engine.engine import Engine
from vivace.engine.piece import Piece
from vivace.engine.scheduler import EngineLimits
from vivace.engine.session import chunk_sizes
from vivace.errors import TTSError

SOON_S = 30  # half of what a place is waited for, and ample on a busy machine
CALLS = ["admit", "step", "frames", "render", "samples"]
FAULTS = [
    MemoryError("no memory"),
    RuntimeError("CUDA error: device-side assert triggered"),
    torch.OutOfMemoryError("CUDA out of memory"),
    AssertionError("a slot that is not there"),
]


class Alarm(Exception):
    """What a signal handler raises."""


@dataclass
class FaultyBackend(BusyBackend):
    """`fault` is raised once by the call named `where`, before its work or after it."""

    where: str = ""
    fault: BaseException | None = None
    is_after: bool = True
    seen: list[Slot] = field(default_factory=list)  # by the call that raised

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


def open_pieces(engine: Engine, num_frames: int, seed: int) -> Iterator[Piece]:
    return session_of(engine, script(num_frames), seed).pieces(chunk_sizes(2))


def expected(seed: int, num_frames: int) -> np.ndarray:
    return np.stack((np.full(num_frames, seed), np.arange(num_frames)), axis=1)


class Listener:
    """Reads a stream and keeps what it got, and how that ended."""

    def __init__(self, engine: Engine, seed: int, num_frames: int = 60) -> None:
        self.seed, self.num_frames = seed, num_frames
        self.codes: list[np.ndarray] = []
        self.error: BaseException | None = None
        self._pieces: Iterator[Piece] | None = open_pieces(engine, num_frames, seed)

    def read(self, num_pieces: int = 1_000) -> None:
        try:
            for _ in range(num_pieces):
                assert self._pieces is not None
                self.codes.append(next(self._pieces).codes)
        except StopIteration:
            pass
        except BaseException as error:
            self.error = error
            self._pieces = None

    def check(self) -> None:
        """Nothing wrong was heard: all of it, or the beginning and an error that says why."""
        codes = np.concatenate(self.codes) if self.codes else np.empty((0, 2))
        assert np.array_equal(codes, expected(self.seed, len(codes)))
        assert len(codes) == self.num_frames or isinstance(self.error, TTSError)


def assert_all_is_well(engine: Engine, backend: FaultyBackend) -> None:
    assert engine.num_running == engine.num_waiting == 0
    assert backend.lives == {}
    newcomer = Listener(engine, 99)
    newcomer.read()
    newcomer.check()
    assert newcomer.error is None
    assert backend.lives == {}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, TimeoutError])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("where", CALLS)
def test_an_interrupt_reaches_its_thread_and_corrupts_no_other_stream(
    where: str, is_after: bool, kind: type[BaseException]
) -> None:
    backend = FaultyBackend(where=where, is_after=is_after)
    engine = Engine(backend)
    others = [Listener(engine, seed) for seed in range(3)]
    for other in others:
        other.read(3)
    victim, fault = Listener(engine, 7), kind("for this thread")
    if where != "admit":
        victim.read(1)
    backend.fault = fault
    victim.read()
    assert victim.error is fault
    for other in others:
        other.read()
        other.check()
    assert_all_is_well(engine, backend)


@pytest.mark.parametrize("where", CALLS)
def test_a_reader_that_sleeps_while_another_thread_is_interrupted_wakes_up(where: str) -> None:
    backend = FaultyBackend(where=where, max_streams=3)
    engine = Engine(backend, EngineLimits(max_streams=3))
    others = [Listener(engine, seed, 400) for seed in range(5)]
    victims = [Listener(engine, seed, 400) for seed in range(5, 8)]
    threads = [threading.Thread(target=one.read, daemon=True) for one in others + victims]
    for thread in threads:
        thread.start()
    for _ in range(20):
        backend.fault = KeyboardInterrupt()
        time.sleep(0.002)
    backend.fault = None
    for thread in threads:
        thread.join(SOON_S)
        assert not thread.is_alive()
    for listener in others + victims:
        if not isinstance(listener.error, KeyboardInterrupt):
            listener.check()
    assert_all_is_well(engine, backend)


def test_an_error_that_a_signal_handler_raises_reaches_its_thread_as_it_is() -> None:
    class SignalledBackend(FaultyBackend):
        is_armed = False

        def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
            frames = super().step(slots, num_frames)
            if self.is_armed:
                self.is_armed = False
                signal.raise_signal(signal.SIGTERM)
            return frames

    def handle(*_: object) -> None:
        raise Alarm("time is up")

    backend = SignalledBackend()
    engine = Engine(backend)
    other, victim = Listener(engine, 1), Listener(engine, 2)
    other.read(2), victim.read(2)
    before = signal.signal(signal.SIGTERM, handle)
    try:
        backend.is_armed = True
        victim.read()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert isinstance(victim.error, Alarm)
    other.read()
    other.check()
    assert_all_is_well(engine, backend)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("where", CALLS)
def test_a_fault_of_the_backend_is_told_and_ends_no_more_than_what_it_hit(
    where: str, is_after: bool, fault: Exception
) -> None:
    backend = FaultyBackend(where=where, is_after=is_after)
    engine = Engine(backend)
    bystander, victim = Listener(engine, 1), Listener(engine, 2, 200)
    bystander.read(1)
    if where != "admit":
        victim.read(40)  # by now the bystander has all that is made ahead
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
def test_everybody_in_a_failed_turn_hears_of_it_with_an_error_of_their_own(where: str) -> None:
    backend = FaultyBackend(where=where)
    engine = Engine(backend)
    listeners = [Listener(engine, seed) for seed in range(4)]
    for listener in listeners:
        listener.read(2)
    backend.fault = RuntimeError("a kernel failed")
    for listener in listeners:
        listener.read()
        listener.check()
    errors = [one.error for one in listeners if one.error is not None]
    assert errors
    assert len({id(error) for error in errors}) == len(errors)
    assert all("a kernel failed" in str(error) for error in errors)
    assert_all_is_well(engine, backend)


def test_prompts_that_cannot_be_read_together_are_read_alone() -> None:
    class PickyBackend(FaultyBackend):
        def admit_many(self, requests):  # type: ignore[no-untyped-def]
            if any(prompt.text_ids[0] == 13 for prompt, _ in requests):
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().admit_many(requests)

    backend = PickyBackend(max_streams=3, step_s=0.001)
    engine = Engine(backend, EngineLimits(max_streams=3))
    first = Listener(engine, 0, 30)
    holders = [Listener(engine, seed, 30) for seed in (1, 2)]
    for holder in [first, *holders]:
        holder.read(1)
    waiting = [Listener(engine, 3), Listener(engine, 4, 13), Listener(engine, 5)]
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


def test_a_lost_context_ends_the_engine_and_refuses_with_errors_that_do_not_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = FaultyBackend(where="step")
    engine = Engine(backend)
    listeners = [Listener(engine, seed) for seed in range(3)]
    for listener in listeners:
        listener.read(1)
    monkeypatch.setattr("vivace.engine.engine.is_context_lost", lambda: True)
    backend.fault = RuntimeError("CUDA error: an illegal memory access was encountered")
    for listener in listeners:
        listener.read()
        listener.check()
    depths = set()
    for seed in range(20):
        refused = Listener(engine, seed)
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


@pytest.mark.parametrize("fault", [*FAULTS, KeyboardInterrupt()], ids=lambda f: type(f).__name__)
def test_a_fault_while_text_is_added_is_that_text_s_alone(
    tts: TTS, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    options = {"seed": 3, "min_frames": 20, "max_frames": 20, "chunk_frames": 2}
    whole = tts.speak("A neighbour.", seed=3, min_frames=20, max_frames=20).codes
    neighbour = tts.stream("A neighbour.", **options)
    made = [next(neighbour).codes]

    def fail(*_: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(tts.engine.backend, "extend", fail)
        wanted = TTSError if isinstance(fault, Exception) else KeyboardInterrupt
        with pytest.raises(wanted) as caught:
            list(tts.stream(iter(["One ", "two ", "three ", "four."]), seed=1))
    assert str(fault) in str(caught.value)
    made += [chunk.codes for chunk in neighbour]
    assert np.array_equal(np.concatenate(made), whole)
    assert tts.engine.num_running == 0
    list(tts.stream(iter(["One ", "two ", "three ", "four."]), seed=1, max_frames=30))
