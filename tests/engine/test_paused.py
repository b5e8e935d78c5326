"""A stream that nobody reads: no turn looks at it, and it goes on whenever anything happens to it.

`test_async.py` and `test_engine.py` have what its neighbours and its own reader get.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from tests.support.scripted_backend import (
    ScriptedBackend,
    open_pieces,
    script,
    wait_until,
    wait_until_empty,
)
from vivace.engine.engine import Engine
from vivace.engine.scheduler import PACES, EngineLimits, Scheduler
from vivace.engine.utterance import Utterance
from vivace.errors import EngineError
from vivace.speech import SamplingParams

NUM_FRAMES = 200
MAX_AHEAD = PACES["balanced"].max_ahead


class Watched(Utterance):
    """Counts how often somebody asks about it."""

    num_looks = 0

    @property
    def is_over(self) -> bool:
        self.num_looks += 1
        return super().is_over

    @property
    def state(self) -> Any:
        self.num_looks += 1
        return super().state

    @property
    def num_ahead(self) -> int:
        self.num_looks += 1
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
    """Somebody else, from the first frame to the last."""
    assert sum(len(piece.codes) for piece in open_pieces(engine, num_frames, seed=2)) == num_frames


def pause(engine: Engine, utterance: Utterance) -> None:
    """Read one frame of it and no more, until turns of another have made all that is ahead."""
    engine.submit(utterance)
    engine.request(utterance, 1)
    wait_until(lambda: utterance.is_ready)
    utterance.num_wanted = 0
    utterance.take(1)
    speak_other(engine)
    assert utterance.is_paused


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend()


@pytest.fixture
def engine(backend: ScriptedBackend) -> Engine:
    return Engine(backend)


def test_no_turn_looks_at_a_paused_stream(engine: Engine, backend: ScriptedBackend) -> None:
    paused = make_utterance(Watched)
    assert isinstance(paused, Watched)
    pause(engine, paused)
    num_looks, num_steps = paused.num_looks, len(backend.steps)
    assert num_looks > 0
    speak_other(engine)
    assert (paused.num_looks, paused.is_paused) == (num_looks, True)
    assert {num_slots for num_slots, _ in backend.steps[num_steps:]} == {1}
    assert engine.num_running == 1
    engine.cancel(paused)
    wait_until_empty(engine, backend)


def test_a_paused_stream_goes_on_where_it_was_when_its_reader_is_back(
    engine: Engine, backend: ScriptedBackend
) -> None:
    bell: SimpleQueue[None] = SimpleQueue()
    paused, read = make_utterance(), 1
    paused.wake = lambda: bell.put(None)
    pause(engine, paused)
    while not paused.is_over or paused.has_frames:
        engine.request(paused, 7)
        while not paused.is_ready:
            bell.get()
        paused.num_wanted = 0
        codes = paused.take(7).codes
        assert codes[:, 1].tolist() == list(range(read, read + len(codes)))
        read += len(codes)
        if read == 1 + 5 * 7:
            speak_other(engine)  # it is paused again
            assert paused.is_paused
    assert (read, paused.finish_reason) == (NUM_FRAMES, "stop")
    wait_until_empty(engine, backend)


def test_frames_that_were_ready_are_replaced_by_the_next_turns_of_others(
    engine: Engine, backend: ScriptedBackend
) -> None:
    paused = make_utterance()
    pause(engine, paused)
    num_made = paused.num_made
    engine.request(paused, 8)
    assert paused.is_ready
    paused.num_wanted = 0
    paused.take(8)
    speak_other(engine)
    assert paused.is_paused
    assert paused.num_made >= num_made + 8
    engine.cancel(paused)
    wait_until_empty(engine, backend)


def test_a_paused_stream_that_is_cancelled_leaves_its_slot(
    engine: Engine, backend: ScriptedBackend
) -> None:
    several = [make_utterance(seed=seed) for seed in range(1, 4)]
    for one in several:
        pause(engine, one)
    engine.cancel(several[1])
    assert engine.call(lambda: len(backend.lives)) == 2
    assert engine._scheduler.running == [several[0], several[2]]
    for one in several:
        engine.cancel(one)
    wait_until_empty(engine, backend)


def test_streams_are_stepped_in_the_order_of_their_admission_after_a_pause(
    engine: Engine, backend: ScriptedBackend
) -> None:
    several = [make_utterance(seed=seed) for seed in range(1, 4)]
    for one in several:
        pause(engine, one)
    for one in reversed(several):
        engine.request(one, 1)
    assert engine.call(lambda: list(engine._scheduler.active)) == several
    for one in several:
        engine.cancel(one)
    wait_until_empty(engine, backend)


def break_for_good(engine: Engine) -> None:
    engine.call(lambda: engine._break(ValueError("broken"), "the backend broke"))


def rebuild(engine: Engine) -> None:
    engine._rebuild, engine._num_faults = ScriptedBackend, 2
    engine.call(lambda: engine._settle(ValueError("broken"), []))


def abandon(engine: Engine) -> None:
    engine.abandon("the backend hangs")


@pytest.mark.parametrize("fail", [break_for_good, rebuild, abandon])
def test_a_paused_stream_fails_with_all_others(
    engine: Engine, fail: Callable[[Engine], None]
) -> None:
    paused, bell = make_utterance(), SimpleQueue[None]()
    pause(engine, paused)
    paused.wake = lambda: bell.put(None)
    fail(engine)
    bell.get()
    assert engine.call(lambda: engine._utterances()) == []
    while paused.has_frames:
        paused.take(4)
    with pytest.raises(EngineError):
        paused.take(4)


def test_a_paused_stream_gives_its_slot_to_one_that_waits_when_it_is_unread_for_long(
    backend: ScriptedBackend,
) -> None:
    engine = Engine(backend, EngineLimits(max_streams=2, max_idle_s=0.0))
    paused = make_utterance()
    pause(engine, paused)
    held = make_utterance(seed=3)
    engine.submit(held)
    engine.request(held, 1)
    wait_until(lambda: held.is_ready)
    speak_other(engine)  # it gets a slot of theirs
    wait_until(lambda: paused.error is not None)
    engine.cancel(held)
    wait_until_empty(engine, backend)


# --- the scheduler ----------------------------------------------------------------------------


def running(scheduler: Scheduler, utterance: Utterance, num_made: int) -> None:
    scheduler.queue.append(utterance)
    scheduler.plan()
    utterance.admit(0, 0.0)
    utterance.make(num_made, "running")
    utterance.num_rendered = num_made


@pytest.mark.parametrize(("num_made", "is_paused"), [(MAX_AHEAD - 1, False), (MAX_AHEAD, True)])
def test_only_who_has_all_that_may_be_ahead_is_paused(num_made: int, is_paused: bool) -> None:
    scheduler, utterance = Scheduler(EngineLimits(), 1), make_utterance()
    running(scheduler, utterance, num_made)
    scheduler.pause_unread()
    assert utterance.is_paused is is_paused
    assert scheduler.active == ([] if is_paused else [utterance])
    assert scheduler.running == [utterance]


def test_nobody_is_paused_who_is_asked_for_rendered_or_over() -> None:
    scheduler = Scheduler(EngineLimits(), 3)
    asked, rendered, over = several = [make_utterance(seed=seed) for seed in range(3)]
    for one in several:
        running(scheduler, one, MAX_AHEAD)
    asked.num_wanted, rendered.num_rendered = 1, MAX_AHEAD - 4
    over.cancel()
    scheduler.pause_unread()
    assert scheduler.active == several


def test_a_stream_that_waits_for_text_is_paused() -> None:
    scheduler, utterance = Scheduler(EngineLimits(), 1), make_utterance()
    running(scheduler, utterance, 2)
    utterance.make(0, "waiting")
    scheduler.pause_unread()
    assert utterance.is_paused
    scheduler.resume(utterance)
    assert scheduler.active == [utterance]


class Returning(Utterance):
    """Its reader asks for a frame after the first look at it, and sees that it is not paused."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "is_paused" and value:
            self.num_wanted = 1
        super().__setattr__(name, value)


def test_a_reader_that_comes_back_just_before_the_pause_is_not_missed() -> None:
    scheduler, utterance = Scheduler(EngineLimits(), 1), make_utterance(Returning)
    running(scheduler, utterance, MAX_AHEAD)
    scheduler.pause_unread()
    assert (utterance.is_paused, scheduler.active) == (False, [utterance])
