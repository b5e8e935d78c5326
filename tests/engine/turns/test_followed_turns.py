"""Turns that start before the frames of the turn before are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from tests.support.scripted_backend import ScriptedBackend, script
from vivace.backends.base import Frames, Rendered, Slot
from vivace.engine.limits import EngineLimits
from vivace.engine.turns.pipeline import Pipeline
from vivace.engine.turns.scheduler import MAX_BATCH, MAX_FOLLOWED, MAX_SILENT_BATCH, Plan, Scheduler
from vivace.engine.turns.worker import EngineWorker
from vivace.engine.utterances.utterance import Utterance
from vivace.speech import SamplingParams


@dataclass
class Step:
    frames: Frames
    number: int
    events: list[str]

    def __call__(self) -> Frames:
        self.events.append(f"frames {self.number}")
        return self.frames

    def wait_for_last_frame(self) -> None:
        self.events.append(f"last frame {self.number}")


@dataclass
class FollowedBackend(ScriptedBackend):
    """Makes the frames of a step when it starts, as a device with a queue does."""

    events: list[str] = field(default_factory=list)
    num_steps: int = 0
    change: Callable[[int, Frames], Frames] = lambda _, frames: frames

    def start_step(self, slots: Sequence[Slot], num_frames: int) -> Step:
        self.num_steps += 1
        self.events.append(f"start {self.num_steps}")
        frames = self.change(self.num_steps, self.step(slots, num_frames))
        return Step(frames, self.num_steps, self.events)

    def start_render(self, slots: Sequence[Slot], frames: Frames) -> Callable[[], Rendered]:
        assert all(slot in self.open_slots for slot in slots), "samples of a released slot"
        return super().start_render(slots, frames)


def speaker(num_frames: int = 1_000, seed: int = 1) -> Utterance:
    sampling = SamplingParams(seed=seed)
    return Utterance(prompt=script(num_frames), sampling=sampling, wake=lambda: None)


def codes_of(one: Utterance) -> list[int]:
    blocks = [block for block in one.published if not isinstance(block, int)]
    return [code for block in blocks for code in block.codes[:, 1].tolist()]


# --- The plan ---------------------------------------------------------------------------------


def plan_of(num_running: int, *, num_made: int = 8, num_wanted: int = 4) -> Plan[Utterance]:
    running = [speaker() for _ in range(num_running)]
    for slot, one in enumerate(running):
        one.admit(slot, 1.0)
        one.make(num_made, "running")
        one.num_read = one.num_rendered = num_made
        one.num_wanted = num_wanted
    return Scheduler(EngineLimits(), 1_000, running=running, _active=[*running]).plan()


@pytest.mark.parametrize(
    ("num_running", "is_followed"),
    [(MAX_SILENT_BATCH, False), (MAX_SILENT_BATCH + 1, True), (MAX_BATCH + 1, False)],
)
def test_turns_of_many_utterances_are_followed(num_running: int, is_followed: bool) -> None:
    plan = plan_of(num_running)
    assert plan.stepped
    assert plan.is_followed is is_followed


@pytest.mark.parametrize(
    ("num_wanted", "is_followed"), [(4, True), (MAX_FOLLOWED, True), (MAX_FOLLOWED + 1, False)]
)
def test_long_turns_are_not_followed(num_wanted: int, is_followed: bool) -> None:
    plan = plan_of(20, num_made=40, num_wanted=num_wanted)
    assert (plan.num_frames, plan.is_followed) == (num_wanted, is_followed)


def test_first_frames_are_not_followed() -> None:
    plan = plan_of(20, num_made=1, num_wanted=1)
    assert (plan.num_frames, plan.is_followed) == (1, False)


# --- The pipeline -----------------------------------------------------------------------------


def run(made: Pipeline, *utterances: Utterance, num_frames: int = 4) -> None:
    made.run((), utterances, num_frames, is_followed=True)


def started(backend: FollowedBackend, *utterances: Utterance) -> Pipeline:
    """A pipeline that has started a turn of new utterances and waited for its last frame."""
    made = Pipeline(backend)
    made.run(utterances, utterances, 4, is_followed=True)
    return made


def test_next_frames_start_while_the_last_frame_is_made() -> None:
    backend, one = FollowedBackend(), speaker()
    made = started(backend, one)
    assert backend.events == ["start 1", "last frame 1"]
    assert made.can_start
    run(made, one)
    assert backend.events[2:] == ["start 2", "frames 1"]
    assert made.is_rendering
    assert not made.can_start
    made.run((), (), 0)  # delivers the samples
    made.run((), (), 0)
    assert backend.events[4:] == ["last frame 2"]
    made.run((), (), 0)  # no turn follows
    assert backend.events[5:] == ["frames 2"]
    made.run((), (), 0)
    assert not made.is_busy
    assert codes_of(one) == [*range(8)]


def test_plain_step_is_awaited_before_the_next_one() -> None:
    backend, one = ScriptedBackend(), speaker()
    made = Pipeline(backend)
    made.run([one], [one], 4, is_followed=True)
    assert made.is_rendering
    assert one.num_made == 4


def test_frames_of_an_ended_utterance_are_dropped() -> None:
    backend, short, long = FollowedBackend(), speaker(3), speaker()
    made = started(backend, short, long)
    run(made, short, long)
    made.run((), (), 0)
    assert short.is_over
    assert codes_of(short) == [0, 1, 2]
    slot, short.slot = short.slot, None
    assert slot is not None
    backend.release(slot)
    for _ in range(3):
        made.run((), (), 0)
    assert codes_of(long) == [*range(8)]
    assert codes_of(short) == [0, 1, 2]


def test_text_that_arrives_during_a_step_is_not_waited_for() -> None:
    """The step was started before the text was appended, and reports that text is missing."""

    def wait_for_text(_: int, frames: Frames) -> Frames:
        return replace(frames, status=("waiting",))

    backend, one = FollowedBackend(change=wait_for_text), speaker()
    one.is_text_complete = False
    made = started(backend, one)
    run(made, one)
    made.run((), (), 0)
    assert one.needs_text
    one.extend([1, 2], is_last=True)
    made.run((), (), 0)
    made.run((), (), 0)
    made.run((), (), 0)
    assert one.is_running
    assert codes_of(one) == [*range(8)]


def test_lack_of_memory_is_reported_by_a_step_that_follows_no_other() -> None:
    """Memory may have been freed since a follower was started."""

    def starve(_: int, frames: Frames) -> Frames:
        return replace(frames, codes=frames.codes[:, :0], lengths=(0,), status=("running",))

    backend, one = FollowedBackend(), speaker()
    made = started(backend, one)
    backend.change = starve
    run(made, one)
    made.run((), (), 0)
    made.run((), (), 0)
    made.run((), (), 0)
    assert made.take_waiting() == ([], [])
    made.run((), (), 0)
    run(made, one)
    assert backend.events[-2:] == ["start 3", "frames 3"]  # it is not followed
    assert made.take_waiting() == ([], [one])


def test_failed_wait_drops_only_its_own_frames() -> None:
    backend, one, other = FollowedBackend(), speaker(), speaker(seed=2)
    made = started(backend, one)
    run(made, one)
    made.run((), (), 0)
    made.run((), (), 0)  # the device makes the last frame of the second step
    backend.change = lambda *_: (_ for _ in ()).throw(RuntimeError("lost"))
    with pytest.raises(RuntimeError, match="lost"):
        made.run([other], [other], 1)
    assert list(made.give_up()) == [other]
    made.run((), (), 0)
    made.run((), (), 0)
    assert not made.is_busy
    assert codes_of(one) == [*range(8)]


# --- The engine -------------------------------------------------------------------------------


def speak(backend: ScriptedBackend, lengths: Sequence[int]) -> list[list[int]]:
    """The codes of these utterances, whose readers ask for four frames at a time."""
    worker = EngineWorker(backend, EngineLimits(), None, None)
    given = [speaker(length, seed) for seed, length in enumerate(lengths)]
    for one in given:
        one.num_wanted = 4
    worker.queue(given)
    for number in range(2_000):
        if not worker.take_turn() and all(one.is_over for one in given):
            break
        for one in given:
            if not one.num_wanted and not one.is_over:
                worker.request(one, one.num_final, 4, float(number))
    assert worker.scheduler.running == []
    return [codes_of(one) for one in given]


def test_engine_gives_the_same_frames_whether_turns_are_followed() -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 40).tolist()
    backend = FollowedBackend(max_streams=16)
    assert speak(backend, lengths) == [[*range(length)] for length in lengths]
    assert any(event.startswith("last frame") for event in backend.events)
    assert backend.open_slots == {}
    assert speak(ScriptedBackend(max_streams=16), lengths) == [[*range(n)] for n in lengths]
