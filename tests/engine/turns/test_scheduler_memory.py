"""Backends with free slots and no memory: requests wait in order and are not polled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.scripted_backend import ScriptedBackend, script, wait_until, wait_until_empty
from vivace.backends.base import Admission, Frames, Slot
from vivace.engine.engine import Engine
from vivace.engine.limits import EngineLimits
from vivace.engine.turns.scheduler import Scheduler
from vivace.engine.utterances.guard import frame_budget
from vivace.engine.utterances.reader import UtteranceReader
from vivace.engine.utterances.utterance import Utterance
from vivace.errors import BackendFullError, EngineError
from vivace.prompt import Prompt
from vivace.speech import SamplingParams


@dataclass
class PagedBackend(ScriptedBackend):
    """Has pages of ten frames. `starved` slots make no frame while another slot is admitted."""

    num_pages: int = 4
    num_asked: int = 0
    starved: tuple[int, ...] = ()  # seeds

    def admit_many(self, requests: Sequence[Admission]) -> list[Slot | Exception]:
        slots: list[Slot | Exception] = []
        for prompt, sampling in requests:
            is_full = any(isinstance(slot, BackendFullError) for slot in slots)
            slots.append(self._full() if is_full else self._try(prompt, sampling))
        return slots

    def _try(self, prompt: Prompt, sampling: SamplingParams) -> Slot | Exception:
        self.num_asked += 1
        num_held = sum(state.length // 10 for state in self.open_slots.values())
        if num_held + prompt.text_ids[0] // 10 > self.num_pages:
            return self._full()
        return self.admit(prompt, sampling)

    def _full(self) -> BackendFullError:
        return BackendFullError(1, 1, 0, self.num_pages)

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        waits = [
            len(self.open_slots) > 1 and self.open_slots[slot].seed in self.starved
            for slot in slots
        ]
        lengths = [self.open_slots[slot].length for slot in slots]
        for slot, is_waiting in zip(slots, waits, strict=True):
            if is_waiting:
                self.open_slots[slot].length = self.open_slots[slot].made
        frames = super().step(slots, num_frames)
        for slot, length in zip(slots, lengths, strict=True):
            self.open_slots[slot].length = length
        pairs = zip(waits, frames.status, strict=True)
        status = tuple("running" if is_waiting else each for is_waiting, each in pairs)
        return Frames(frames.codes, frames.lengths, status)


def make_utterance(seed: int, num_frames: int) -> Utterance:
    return Utterance(
        prompt=script(num_frames),
        sampling=SamplingParams(seed=seed),
        wake=lambda: None,
        is_guarded=False,
        has_budget=False,
    )


def submit(engine: Engine, seed: int, num_frames: int, num_wanted: int = 1000) -> Utterance:
    utterance = make_utterance(seed, num_frames)
    engine.submit(utterance)
    engine.request(utterance, 0, num_wanted)
    return utterance


def hold(engine: Engine, seed: int, num_frames: int) -> Utterance:
    """An utterance that runs and is no longer read."""
    utterance = submit(engine, seed, num_frames, 1)
    wait_until(lambda: utterance.num_final)
    return utterance


def settle(engine: Engine) -> None:
    """Let the engine run all turns that it has work for."""
    for _ in range(5):
        engine.call(lambda: None)
        wait_until(lambda: engine.busy_since is None)


def test_request_without_memory_waits_in_order() -> None:
    backend = PagedBackend()
    engine = Engine(backend)
    given = [submit(engine, seed, length) for seed, length in ((1, 20), (2, 40), (3, 10), (4, 30))]
    wait_until(lambda: all(one.is_over for one in given))
    assert [one.error for one in given] == [None] * 4
    assert backend.admitted == [1, 2, 3, 4]
    wait_until_empty(engine, backend)


def test_refused_request_keeps_its_place_in_the_queue() -> None:
    scheduler: Scheduler[Utterance] = Scheduler(EngineLimits(), 3)
    given = [make_utterance(seed, 10) for seed in range(5)]
    scheduler.queue.extend(given)
    assert scheduler.plan().admitted == tuple(given[:3])
    scheduler.wait_for_memory(given[1:3], [])
    assert (scheduler.running, list(scheduler.queue)) == (given[:1], given[1:])
    assert scheduler.plan().admitted == ()
    scheduler.remove(given[4])  # it was queued
    assert scheduler.plan().admitted == ()
    scheduler.remove(given[0])
    assert scheduler.plan().admitted == tuple(given[1:4])


def test_running_and_queued_utterances_are_removed_together() -> None:
    scheduler: Scheduler[Utterance] = Scheduler(EngineLimits(), 3)
    given = [make_utterance(seed, 10) for seed in range(6)]
    scheduler.queue.extend(given)
    scheduler.plan()
    scheduler.remove(given[2], given[4], given[0])
    assert (scheduler.running, scheduler.active) == ([given[1]], [given[1]])
    assert list(scheduler.queue) == [given[3], given[5]]
    scheduler.remove()
    assert scheduler.plan().admitted == (given[3], given[5])


def test_starved_utterance_is_left_out_of_turns() -> None:
    scheduler: Scheduler[Utterance] = Scheduler(EngineLimits(), 3)
    given = [make_utterance(seed, 10) for seed in range(3)]
    scheduler.queue.extend(given)
    scheduler.plan()
    for slot, one in enumerate(given):
        one.admit(slot, 0.0)
        one.make(4, "running")
        one.num_rendered, one.num_wanted = 4, 8
    scheduler.wait_for_memory([], given[:1])
    scheduler.wait_for_memory([], given[1:2])
    assert scheduler.plan().stepped == scheduler.plan(is_busy=True).stepped == (given[2],)
    given[0].num_wanted = given[1].num_wanted = 0
    assert scheduler.plan(is_busy=True).stepped == (given[2],)
    scheduler.remove(given[2])
    assert scheduler.plan(is_busy=True).stepped == tuple(given[:2])


def test_refused_request_is_admitted_after_a_release() -> None:
    backend = PagedBackend()
    engine = Engine(backend)
    first = hold(engine, 1, 30)
    second, third = submit(engine, 2, 20), submit(engine, 3, 10)
    wait_until(lambda: backend.num_asked >= 2)
    settle(engine)
    assert (backend.num_asked, engine.num_waiting, engine.num_running) == (2, 2, 1)
    engine.cancel(first)
    wait_until(lambda: second.is_over and third.is_over)
    assert (second.error, third.error, backend.admitted) == (None, None, [1, 2, 3])
    wait_until_empty(engine, backend)


def test_request_waiting_for_memory_can_be_cancelled() -> None:
    backend = PagedBackend()
    engine = Engine(backend)
    first = hold(engine, 1, 30)
    second, third = submit(engine, 2, 40), submit(engine, 3, 30)
    settle(engine)
    engine.cancel(second)
    engine.cancel(first)
    wait_until(lambda: third.is_over)
    assert (third.error, backend.admitted) == (None, [1, 3])
    wait_until_empty(engine, backend)


def test_starved_stream_takes_no_turns_until_a_release() -> None:
    backend = PagedBackend(num_pages=10, starved=(2,))
    engine = Engine(backend)
    first = hold(engine, 1, 30)
    second = submit(engine, 2, 20)
    wait_until(lambda: len(backend.admitted) == 2)
    settle(engine)
    num_steps = len(backend.steps)
    settle(engine)
    assert len(backend.steps) == num_steps
    assert (second.is_over, second.num_made) == (False, 0)
    engine.cancel(first)
    wait_until(lambda: second.is_over)
    assert (second.error, second.num_made) == (None, 20)
    wait_until_empty(engine, backend)


def test_backend_without_any_memory_fails_the_request() -> None:
    backend = PagedBackend(num_pages=0)
    engine = Engine(backend)
    given = [submit(engine, seed, 10) for seed in (1, 2)]
    wait_until(lambda: all(one.is_over for one in given))
    for one in given:
        assert isinstance(one.error, EngineError)
        with pytest.raises(EngineError, match="memory"):
            UtteranceReader(engine, one).take(1)


@pytest.mark.parametrize(
    ("changes", "max_frames", "min_frames"),
    [
        ({}, frame_budget(40), 2),
        ({"sampling": SamplingParams(max_frames=30)}, 30, 2),
        ({"sampling": SamplingParams(min_frames=1000)}, frame_budget(40), frame_budget(40)),
        ({"has_budget": False}, SamplingParams().max_frames, 2),
        ({"is_text_complete": False}, SamplingParams().max_frames, 2),
    ],
)
def test_admission_is_limited_to_the_frame_budget(
    changes: dict[str, Any], max_frames: int, min_frames: int
) -> None:
    options: dict[str, Any] = {"sampling": SamplingParams(), "num_text_ids": 40, **changes}
    one = Utterance(prompt=script(1), wake=lambda: None, **options)
    prompt, sampling = one.admission
    assert prompt is one.prompt
    assert (sampling.max_frames, sampling.min_frames) == (max_frames, min_frames)
