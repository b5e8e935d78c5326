"""Turns while the first frames of an utterance are silent: one frame each, so that sound comes
as early as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from tests.support.scripted_backend import ScriptedBackend, open_blocks, script
from vivace.backends.base import Frames, Samples, Slot
from vivace.engine.engine import Engine
from vivace.engine.limits import PACES, EngineLimits
from vivace.engine.turns.scheduler import MAX_SILENT_BATCH, Scheduler
from vivace.engine.utterances.follower import TextFollower
from vivace.engine.utterances.utterance import MAX_SILENT_FRAMES, Utterance
from vivace.speech import SamplingParams

MIN_FRAMES = PACES["balanced"].min_frames


@dataclass
class SilentStart(ScriptedBackend):
    num_silent: int = 0

    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        return [
            np.repeat(np.where(frames.of(row)[:, 1] < self.num_silent, 0.0, 0.5), 10).astype("f4")
            for row in range(len(slots))
        ]


def turns_of(num_silent: int, num_frames: int = 40) -> list[int]:
    """Frames of each turn of one utterance that is read frame by frame."""
    backend = SilentStart(num_silent=num_silent)
    samples = np.concatenate(
        [block.samples for block in open_blocks(Engine(backend), num_frames, seed=1, size=1)]
    )
    assert np.flatnonzero(samples)[0] == 10 * num_silent
    assert len(samples) == 10 * num_frames
    return [count for _, count in backend.steps]


@pytest.mark.parametrize("num_silent", [1, 2, 6])
def test_turns_make_one_frame_until_the_first_sound(num_silent: int) -> None:
    turns = turns_of(num_silent)
    assert turns[: num_silent + 1] == [1] * (num_silent + 1)
    assert max(turns) > 1


def test_turns_grow_at_once_without_silence() -> None:
    assert turns_of(0)[2] > 1


def test_turns_grow_again_if_no_sound_comes() -> None:
    turns = turns_of(35)
    assert turns[:MAX_SILENT_FRAMES] == [1] * MAX_SILENT_FRAMES
    assert max(turns[MAX_SILENT_FRAMES:]) > 1


def running(num_rendered: int, *, is_silent: bool = False) -> Utterance:
    one = Utterance(prompt=script(1_000), sampling=SamplingParams(seed=1), wake=lambda: None)
    one.admit(0, 0.0)
    one.make(num_rendered, "running")
    level = np.full(num_rendered, 0.0 if is_silent else 0.5, np.float32)
    codes = np.arange(2 * num_rendered).reshape(-1, 2)
    one.receive(codes, np.repeat(level, 10), level, "running", ())
    one.num_read, one.num_wanted = num_rendered, 1
    return one


@pytest.mark.parametrize("is_rendering", [True, False])
def test_silent_utterance_shortens_the_turns_of_a_few_others(is_rendering: bool) -> None:
    others = [running(20) for _ in range(MAX_SILENT_BATCH - 1)]
    for one, num_frames in ((running(6), MIN_FRAMES), (running(6, is_silent=True), 1)):
        active = [*others, one]
        scheduler = Scheduler(EngineLimits(), 64, running=active, _active=list(active))
        if is_rendering:
            for each in active:
                each.num_wanted = 0
        plan = scheduler.plan(is_busy=is_rendering)
        assert plan.num_frames == num_frames
        assert len(plan.stepped) == MAX_SILENT_BATCH


def test_silent_utterance_does_not_shorten_the_turns_of_many_others() -> None:
    active = [running(6, is_silent=True), *(running(20) for _ in range(MAX_SILENT_BATCH))]
    scheduler = Scheduler(EngineLimits(), 64, running=active, _active=list(active))
    assert scheduler.plan().num_frames == MIN_FRAMES


def test_utterance_with_look_ahead_is_not_silent() -> None:
    one = running(6, is_silent=True)
    assert one.is_silent
    one.follower = TextFollower([], is_complete=True)
    assert not one.is_silent
