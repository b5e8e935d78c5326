"""Paused utterances: turns leave them out until a request, a cancel or a failure."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from tests.support.scripted_backend import (
    ScriptedBackend,
    open_blocks,
    script,
    wait_until,
    wait_until_empty,
)
from vivace.engine.engine import Engine
from vivace.engine.limits import PACES, EngineLimits
from vivace.engine.turns.scheduler import Scheduler
from vivace.engine.utterances.reader import UtteranceReader
from vivace.engine.utterances.utterance import Utterance
from vivace.errors import EngineError
from vivace.speech import SamplingParams

NUM_FRAMES = 200
MAX_AHEAD = PACES["balanced"].max_ahead


class Watched(Utterance):
    """Counts how often the engine reads its state."""

    num_reads = 0

    @property
    def is_over(self) -> bool:
        self.num_reads += 1
        return super().is_over

    @property
    def state(self) -> Any:
        self.num_reads += 1
        return super().state

    @property
    def num_ahead(self) -> int:
        self.num_reads += 1
        return super().num_ahead


def make_utterance(kind: type[Utterance] = Utterance, seed: int = 1) -> Utterance:
    return kind(
        prompt=script(NUM_FRAMES),
        sampling=SamplingParams(seed=seed),
        wake=lambda: None,
        is_guarded=False,
        has_budget=False,
    )


def speak_other(engine: Engine, num_frames: int = 100) -> None:
    """Speak another utterance to its end."""
    assert sum(len(piece.codes) for piece in open_blocks(engine, num_frames, seed=2)) == num_frames


def pause(engine: Engine, utterance: Utterance) -> UtteranceReader:
    """Read one frame and no more, until turns of another have made all frames ahead."""
    reader = UtteranceReader(engine, utterance)
    reader.submit()
    reader.request(1)
    wait_until(lambda: reader.is_ready)
    reader.take(1)
    speak_other(engine)
    assert utterance.is_paused
    return reader


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend()


@pytest.fixture
def engine(backend: ScriptedBackend) -> Engine:
    return Engine(backend)


def test_turns_leave_out_a_paused_utterance(engine: Engine, backend: ScriptedBackend) -> None:
    paused = make_utterance(Watched)
    assert isinstance(paused, Watched)
    pause(engine, paused)
    num_reads, num_steps = paused.num_reads, len(backend.steps)
    assert num_reads > 0
    speak_other(engine)
    assert (paused.num_reads, paused.is_paused) == (num_reads, True)
    assert {num_slots for num_slots, _ in backend.steps[num_steps:]} == {1}
    assert engine.num_running == 1
    engine.cancel(paused)
    wait_until_empty(engine, backend)


def test_paused_utterance_continues_at_the_next_request(
    engine: Engine, backend: ScriptedBackend
) -> None:
    wakeups: SimpleQueue[None] = SimpleQueue()
    paused, read = make_utterance(), 1
    paused.wake = lambda: wakeups.put(None)
    reader = pause(engine, paused)
    while not paused.is_over or reader.has_frames:
        reader.request(7)
        while not reader.is_ready:
            wakeups.get()
        codes = reader.take(7).codes
        assert codes[:, 1].tolist() == list(range(read, read + len(codes)))
        read += len(codes)
        if read == 1 + 5 * 7:
            speak_other(engine)  # pauses the utterance again
            assert paused.is_paused
    assert (read, paused.finish_reason) == (NUM_FRAMES, "stop")
    wait_until_empty(engine, backend)


def test_read_frames_are_made_again_ahead_in_other_turns(
    engine: Engine, backend: ScriptedBackend
) -> None:
    paused = make_utterance()
    reader = pause(engine, paused)
    num_made = paused.num_made
    reader.request(8)
    assert reader.is_ready
    reader.take(8)
    reader.request(1)
    speak_other(engine)
    assert paused.is_paused
    assert paused.num_made >= num_made + 8
    engine.cancel(paused)
    wait_until_empty(engine, backend)


def test_cancelled_paused_utterance_frees_its_slot(
    engine: Engine, backend: ScriptedBackend
) -> None:
    several = [make_utterance(seed=seed) for seed in range(1, 4)]
    for one in several:
        pause(engine, one)
    engine.cancel(several[1])
    assert engine.call(lambda: len(backend.open_slots)) == 2
    assert engine._worker.scheduler.running == [several[0], several[2]]
    for one in several:
        engine.cancel(one)
    wait_until_empty(engine, backend)


def test_resumed_utterances_keep_admission_order(engine: Engine, backend: ScriptedBackend) -> None:
    several = [make_utterance(seed=seed) for seed in range(1, 4)]
    readers = [pause(engine, one) for one in several]
    for reader in reversed(readers):
        reader.request(1)
    assert engine.call(lambda: list(engine._worker.scheduler.active)) == several
    for one in several:
        engine.cancel(one)
    wait_until_empty(engine, backend)


def break_for_good(engine: Engine) -> None:
    engine.call(lambda: engine._worker.break_down(ValueError("broken"), "the backend broke"))


def rebuild(engine: Engine) -> None:
    worker = engine._worker
    worker.rebuild, worker.num_faults = ScriptedBackend, 2
    engine.call(lambda: worker.settle(ValueError("broken"), []))


def abandon(engine: Engine) -> None:
    engine.abandon("the backend hangs")


@pytest.mark.parametrize("fail", [break_for_good, rebuild, abandon])
def test_paused_utterance_fails_with_all_others(
    engine: Engine, fail: Callable[[Engine], None]
) -> None:
    paused, wakeups = make_utterance(), SimpleQueue[None]()
    reader = pause(engine, paused)
    paused.wake = lambda: wakeups.put(None)
    fail(engine)
    wakeups.get()
    assert engine.call(lambda: engine._worker.utterances) == []
    while reader.has_frames:
        reader.take(4)
    with pytest.raises(EngineError):
        reader.take(4)


def test_paused_utterance_loses_its_slot_after_max_idle(
    backend: ScriptedBackend,
) -> None:
    engine = Engine(backend, EngineLimits(max_streams=2, max_idle_s=0.0))
    paused = make_utterance()
    pause(engine, paused)
    held = make_utterance(seed=3)
    engine.submit(held)
    engine.request(held, 0, 1)
    wait_until(lambda: held.num_final)
    speak_other(engine)  # takes the slot of one of them
    wait_until(lambda: paused.error is not None)
    engine.cancel(held)
    wait_until_empty(engine, backend)


# --- the scheduler ----------------------------------------------------------------------------


def running(scheduler: Scheduler[Utterance], utterance: Utterance, num_made: int) -> None:
    scheduler.queue.append(utterance)
    scheduler.plan()
    utterance.admit(0, 0.0)
    utterance.make(num_made, "running")
    utterance.num_rendered = num_made


@pytest.mark.parametrize(("num_made", "is_paused"), [(MAX_AHEAD - 1, False), (MAX_AHEAD, True)])
def test_utterance_is_paused_at_max_ahead(num_made: int, is_paused: bool) -> None:
    scheduler: Scheduler[Utterance] = Scheduler(EngineLimits(), 1)
    utterance = make_utterance()
    running(scheduler, utterance, num_made)
    scheduler.pause_unread()
    assert utterance.is_paused is is_paused
    assert scheduler.active == ([] if is_paused else [utterance])
    assert scheduler.running == [utterance]


def test_requested_rendering_or_finished_utterance_is_not_paused() -> None:
    scheduler: Scheduler[Utterance] = Scheduler(EngineLimits(), 3)
    asked, rendered, over = several = [make_utterance(seed=seed) for seed in range(3)]
    for one in several:
        running(scheduler, one, MAX_AHEAD)
    asked.num_wanted, rendered.num_rendered = 1, MAX_AHEAD - 4
    over.is_cancelled = True
    scheduler.pause_unread()
    assert scheduler.active == several


def test_utterance_waiting_for_text_is_paused() -> None:
    scheduler: Scheduler[Utterance] = Scheduler(EngineLimits(), 1)
    utterance = make_utterance()
    running(scheduler, utterance, 2)
    utterance.make(0, "waiting")
    scheduler.pause_unread()
    assert utterance.is_paused
    scheduler.resume(utterance)
    assert scheduler.active == [utterance]


def test_resumed_and_admitted_utterances_keep_their_order() -> None:
    scheduler: Scheduler[Utterance] = Scheduler(EngineLimits(), 5)
    several = [make_utterance(seed=seed) for seed in range(4)]
    for one in several:
        running(scheduler, one, MAX_AHEAD)
    scheduler.pause_unread()
    assert scheduler.active == []
    for one in (several[2], several[0]):
        scheduler.resume(one)
    scheduler.queue.append(new := make_utterance(seed=4))
    assert scheduler.plan().admitted == (new,)
    assert scheduler.active == [several[0], several[2], new]
    scheduler.resume(several[3])
    scheduler.remove(several[0])
    assert scheduler.active == [several[2], several[3], new]
    assert scheduler.running == [*several[1:], new]


def test_request_of_a_paused_utterance_resumes_it(engine: Engine) -> None:
    paused = make_utterance()
    reader = pause(engine, paused)
    reader.request(1)  # the frame is ready, so the message does not wake the engine
    assert engine.call(lambda: (paused.is_paused, paused.num_read)) == (False, 1)
    engine.cancel(paused)
