"""The engine with a scripted backend: shared turns, the queue, released slots and failures."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.scripted_backend import (
    BusyBackend,
    ScriptedBackend,
    open_blocks,
    script,
    wait_until,
    wait_until_empty,
)
from vivace.backends.base import Frames, Slot
from vivace.engine.engine import Engine
from vivace.engine.limits import PACES, EngineLimits
from vivace.engine.turns.scheduler import Plan, Scheduler
from vivace.engine.utterances.frame_block import FrameBlock
from vivace.engine.utterances.utterance import Utterance
from vivace.errors import EngineError, NumericError, QueueFullError, RequestError
from vivace.speech import SamplingParams


def read(blocks: Iterator[FrameBlock]) -> np.ndarray:
    return np.concatenate([block.codes for block in blocks])


def expected(seed: int, num_frames: int) -> np.ndarray:
    return np.stack((np.full(num_frames, seed), np.arange(num_frames)), axis=1)


# -- one reader ------------------------------------------------------------------------------


def test_reader_gets_all_frames_in_requested_sizes() -> None:
    backend = ScriptedBackend(shares_work=False, renders_beside=False)
    engine = Engine(backend)
    blocks = list(open_blocks(engine, 11, 7, [1, 2, 4]))
    assert [len(block.codes) for block in blocks] == [1, 2, 4, 4]
    assert [block.finish_reason for block in blocks] == [None] * 3 + ["stop"]
    assert np.array_equal(read(iter(blocks)), expected(7, 11))
    assert backend.steps == [(1, 1), (1, 2), (1, 4), (1, 4)]
    wait_until_empty(engine, backend)


def test_dropped_utterance_frees_its_slot() -> None:
    backend = ScriptedBackend()
    engine = Engine(backend)
    blocks = open_blocks(engine, 50, 1)
    next(blocks)
    assert engine.num_running == 1
    del blocks
    gc.collect()
    wait_until_empty(engine, backend)


# -- several readers ------------------------------------------------------------------------------


def test_streams_read_by_one_thread_share_turns() -> None:
    backend = ScriptedBackend()
    engine = Engine(backend)
    streams = [open_blocks(engine, 40, seed) for seed in range(4)]
    made: list[list[np.ndarray]] = [[] for _ in streams]
    for blocks in zip(*streams, strict=True):
        for index, block in enumerate(blocks):
            made[index].append(block.codes)
    for seed, parts in enumerate(made):
        assert np.array_equal(np.concatenate(parts), expected(seed, 40))
    assert max(count for count, _ in backend.steps) == 4
    wait_until_empty(engine, backend)


def test_backend_without_shared_work_makes_no_frames_ahead() -> None:
    backend = ScriptedBackend(shares_work=False, renders_beside=False)
    engine = Engine(backend)
    first, second = open_blocks(engine, 40, 0), open_blocks(engine, 40, 1)
    next(first), next(second), next(first)
    assert [count for count, _ in backend.steps] == [1, 1, 1]
    del first, second


def test_turns_are_short_while_first_audio_is_awaited() -> None:
    backend = ScriptedBackend()
    engine = Engine(backend)
    long = open_blocks(engine, 200, 0, size=16)
    next(long)
    new = open_blocks(engine, 10, 1, [1, 8])
    next(new)
    assert backend.steps[:2] == [(1, 16), (2, 1)]
    del long, new


def test_next_frames_are_made_during_rendering() -> None:
    backend = BusyBackend()
    blocks = open_blocks(Engine(backend), 100, 0, size=2)
    next(blocks)
    assert backend.events == [
        "frames started", "frames there", "samples started", "samples there"
    ]  # fmt: skip
    backend.events.clear()
    next(blocks)
    assert backend.events[:5] == [  # the engine makes more frames ahead meanwhile
        "frames started", "frames there", "samples started", "frames started", "samples there"
    ]  # fmt: skip
    del blocks


def test_samples_of_a_synchronous_backend_do_not_wait_for_the_next_frames() -> None:
    backend = BusyBackend(renders_beside=False)
    blocks = open_blocks(Engine(backend), 40, 0, size=2)
    assert sum(len(block.codes) for block in blocks) == 40
    turn = ["frames started", "frames there", "samples started", "samples there"]
    assert backend.events == turn * len(backend.steps)
    assert len(backend.steps) > 2


def test_frames_made_ahead_are_bounded() -> None:
    backend = BusyBackend()
    blocks = open_blocks(Engine(backend), 1_000, 0, size=1)
    for _ in range(20):
        next(blocks)
    (state,) = backend.open_slots.values()
    assert state.made <= 20 + PACES["balanced"].max_ahead + PACES["balanced"].min_frames
    del blocks


def test_utterance_cancelled_in_flight_is_not_rendered() -> None:
    backend = BusyBackend()
    engine = Engine(backend)
    stays, leaves = open_blocks(engine, 40, 0), open_blocks(engine, 40, 1)
    made = [next(stays).codes, next(stays).codes]
    next(leaves), next(leaves)
    assert "frames started" in backend.events[backend.events.index("samples there") :]
    del leaves  # `start_render` asserts that its slot is not rendered
    made.append(read(stays))
    assert np.array_equal(np.concatenate(made), expected(0, 40))
    wait_until_empty(engine, backend)


def test_threads_get_their_own_frames() -> None:
    backend = ScriptedBackend(max_streams=8, step_s=0.001)
    engine = Engine(backend, EngineLimits(max_streams=8))
    found: dict[int, np.ndarray] = {}

    def run(seed: int) -> None:
        found[seed] = read(open_blocks(engine, 20 + seed, seed))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[seed], expected(seed, 20 + seed)) for seed in range(24))
    assert max(count for count, _ in backend.steps) > 4
    wait_until_empty(engine, backend)


@given(
    actions=st.lists(
        st.tuples(st.sampled_from("orrrrrc"), st.integers(0, 11), st.integers(0, 60)), max_size=60
    ),
    max_streams=st.integers(1, 5),
    profile=st.sampled_from(list(PACES)),
)
@examples(150)
def test_random_submits_and_cancels_leave_no_slot_behind(
    actions: list[tuple[str, int, int]], max_streams: int, profile: str
) -> None:
    backend = BusyBackend(max_streams=max_streams)
    engine = Engine(backend, EngineLimits(max_streams=max_streams, profile=profile))  # type: ignore[arg-type]
    open_now: dict[int, tuple[int, Iterator[FrameBlock], list[np.ndarray]]] = {}
    for seed, (action, key, length) in enumerate(actions):
        if action == "o" and key not in open_now:
            open_now[key] = (seed, open_blocks(engine, length, seed, 1 + key), [])
        elif action == "c" and key in open_now:
            del open_now[key]
        elif action == "r" and key in open_now and len(open_now) <= max_streams:
            opened, blocks, made = open_now[key]
            block = next(blocks, None)
            if block is None:
                del open_now[key]
            else:
                made.append(block.codes)
                whole = np.concatenate(made)
                assert np.array_equal(whole, expected(opened, len(whole)))
            del opened, blocks, made  # the stream ends with its last reference
    open_now.clear()
    wait_until_empty(engine, backend)


@pytest.mark.parametrize("kind", [ScriptedBackend, BusyBackend])
def test_many_threads_with_submits_and_cancels_leave_no_slot_behind(
    kind: type[ScriptedBackend],
) -> None:
    backend = kind(max_streams=6)
    engine = Engine(backend, EngineLimits(max_queue=1_000))
    wrong: list[int] = []

    def live(listener: int) -> None:
        chance = Random(listener)
        for number in range(100):
            seed, length = 1_000 * listener + number, chance.randrange(30)
            blocks = open_blocks(engine, length, seed, chance.randrange(1, 9))
            made = [block.codes for block in itertools.islice(blocks, chance.choice([0, 1, 3, 99]))]
            del blocks
            whole = np.concatenate(made) if made else np.empty((0, 2))
            if not np.array_equal(whole, expected(seed, len(whole))):
                wrong.append(seed)

    threads = [threading.Thread(target=live, args=(listener,)) for listener in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    wait_until_empty(engine, backend)


# -- the queue -------------------------------------------------------------------------------


def test_queue_is_first_come_first_served_and_bounded() -> None:
    backend = ScriptedBackend(max_streams=1, step_s=0.002)
    engine = Engine(backend, EngineLimits(max_streams=1, max_queue=2))
    first = open_blocks(engine, 30, 0)
    next(first)
    results: list[int] = []

    def run(seed: int) -> None:
        read(open_blocks(engine, 5, seed))
        results.append(seed)

    threads = []
    for seed in (1, 2):
        threads.append(threading.Thread(target=run, args=(seed,)))
        threads[-1].start()
        while engine.num_waiting < seed:
            time.sleep(0.001)
    with pytest.raises(QueueFullError, match=r"the queue is full \(2 requests\)") as caught:
        next(open_blocks(engine, 5, 3))
    assert caught.value.retry_s > 0
    read(first)
    for thread in threads:
        thread.join()
    assert backend.admitted == [0, 1, 2]
    wait_until_empty(engine, backend)


def test_wait_for_the_slot_of_an_unread_stream_is_bounded() -> None:
    backend = ScriptedBackend(max_streams=1)
    engine = Engine(backend, EngineLimits(max_streams=1, max_wait_s=0.05))
    idle = open_blocks(engine, 30, 0)
    next(idle)
    with pytest.raises(QueueFullError, match=r"1 stream without a reader.*max_streams") as caught:
        next(open_blocks(engine, 5, 1))
    assert "max_queue" not in str(caught.value)
    assert np.array_equal(read(idle)[-1], [0, 29])
    assert len(read(open_blocks(engine, 5, 2))) == 5
    wait_until_empty(engine, backend)


def test_queued_stream_gets_the_slot_of_a_dropped_stream() -> None:
    backend = ScriptedBackend(max_streams=1)
    engine = Engine(backend, EngineLimits(max_streams=1))
    holder = open_blocks(engine, 30, 0)
    next(holder)
    results: list[int] = []
    waiter = threading.Thread(target=lambda: results.append(len(read(open_blocks(engine, 5, 1)))))
    waiter.start()
    wait_until(lambda: engine.num_waiting)
    del holder
    waiter.join(300)
    assert results == [5]


def test_stream_does_not_starve_while_others_come_and_go() -> None:
    backend = ScriptedBackend(max_streams=3)
    engine = Engine(backend, EngineLimits(max_streams=3))
    patient = open_blocks(engine, 100, 0)
    turns_before = 0
    for seed in range(1, 60):
        read(open_blocks(engine, 9, seed))
        block = next(patient, None)
        turns_before += 1
        if block is None or block.finish_reason is not None:
            break
    assert turns_before <= 26
    del patient


def utterance(num_wanted: int = 0, num_made: int = 0, num_rendered: int | None = None) -> Utterance:
    """An utterance with these numbers of frames, none of them read."""
    one = Utterance(
        prompt=script(100),
        sampling=SamplingParams(seed=0),
        wake=lambda: None,
        num_wanted=num_wanted,
    )
    if num_made:
        one.admit(0, 0.0)
        one.make(num_made, "running")
        one.num_rendered = num_made if num_rendered is None else num_rendered
    return one


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=30))
@examples(100)
def test_plan_steps_every_utterance_with_missing_frames(wishes: list[tuple[int, int]]) -> None:
    scheduler: Scheduler[Utterance] = Scheduler(EngineLimits(), 64)
    given = [utterance(made + missing, made) for missing, made in wishes]
    for one in given:
        scheduler.queue.append(one)
    plan = scheduler.plan()
    assert list(plan.admitted) == given
    assert list(plan.stepped) == given
    assert 1 <= plan.num_frames <= PACES["balanced"].max_frames
    for missing, made in wishes:
        assert plan.num_frames <= max(missing, made), "audio may underrun"
        assert made or plan.num_frames <= missing, "first audio comes later than it could"


def test_turn_is_no_longer_than_the_youngest_utterance() -> None:
    scheduler: Scheduler[Utterance] = Scheduler(EngineLimits(), 8)
    old, young = utterance(116, 100), utterance(0, 1, num_rendered=0)
    for one in (old, young):
        scheduler.queue.append(one)
    assert scheduler.plan(is_busy=True) == Plan((old, young), (old, young), 1)


def test_no_frames_run_ahead_while_first_audio_is_rendered() -> None:
    scheduler: Scheduler[Utterance] = Scheduler(EngineLimits(), 8)
    first = utterance(1, 1, num_rendered=0)
    scheduler.queue.append(first)
    assert scheduler.plan(is_busy=True) == Plan((first,))
    first.num_rendered = 1
    assert scheduler.plan(is_busy=True) == Plan((), (first,), 1)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_streams": 0}, "max_streams"),
        ({"max_queue": -1}, "max_queue"),
        ({"profile": "fast"}, "profile"),
    ],
)
def test_invalid_limits_are_rejected(options: dict[str, object], match: str) -> None:
    with pytest.raises(RequestError, match=match):
        EngineLimits(**options)  # type: ignore[arg-type]


def test_turns_continue_after_the_first_reader_is_served() -> None:
    is_at_work, go_on = threading.Event(), threading.Event()

    class GatedBackend(ScriptedBackend):
        def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
            is_at_work.set()
            go_on.wait()
            return super().step(slots, num_frames)

    engine = Engine(GatedBackend())
    first, second = open_blocks(engine, 30, 0, size=1), open_blocks(engine, 30, 1)
    made: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: next(first), daemon=True),
        threading.Thread(target=lambda: made.append(read(second)), daemon=True),
    ]
    threads[0].start()
    is_at_work.wait()
    threads[1].start()
    wait_until(lambda: engine.num_waiting)
    time.sleep(0.1)  # the second reader waits now; the first is not read again
    go_on.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert np.array_equal(made[0], expected(1, 30))


# -- failures ---------------------------------------------------------------------------------


def test_nonfinite_logits_fail_only_their_utterance() -> None:
    backend = ScriptedBackend()
    engine = Engine(backend)
    good = open_blocks(engine, 20, 1)
    bad = open_blocks(engine, script(20, fails_at=6), 2)
    made = [next(good).codes, next(bad).codes]
    with pytest.raises(NumericError, match="finite"):
        read(bad)
    assert np.array_equal(np.concatenate([made[0], read(good)]), expected(1, 20))
    wait_until_empty(engine, backend)


def test_rejected_prompt_fails_only_its_utterance() -> None:
    backend = ScriptedBackend()
    engine = Engine(backend)
    good = open_blocks(engine, 20, 1)
    first = next(good).codes
    with pytest.raises(EngineError, match="an invalid prompt"):
        read(open_blocks(engine, -1, 2))
    assert np.array_equal(np.concatenate([first, read(good)]), expected(1, 20))
    wait_until_empty(engine, backend)


def test_broken_backend_fails_all_requests_and_frees_slots() -> None:
    backend = ScriptedBackend()
    engine = Engine(backend)
    streams = [open_blocks(engine, 50, seed) for seed in range(3)]
    for blocks in streams:
        next(blocks)
    backend.broken = RuntimeError("CUDA error: an illegal memory access was encountered")
    for blocks in streams:
        with pytest.raises(EngineError, match=r"illegal memory access.*load the model again"):
            read(blocks)
    with pytest.raises(EngineError, match="illegal memory access"):
        next(open_blocks(engine, 5, 9))
    wait_until_empty(engine, backend)
    backend.broken = None
    assert len(read(open_blocks(engine, 5, 1))) == 5
