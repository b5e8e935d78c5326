"""Paged keys: codes do not depend on pages, no deadlock, no leaked page."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from tests.support.slots import make_prompt, params, speak
from tests.support.tiny import Tiny
from vivace.backends.cuda_graph import backend as backend_module
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.slots.memory import pool_size
from vivace.backends.cuda_graph.slots.pages import PAGE, PagePool, num_pages
from vivace.backends.cuda_graph.slots.reservations import FIRM
from vivace.backends.cuda_graph.slots.table import GraphSlot
from vivace.engine.engine import Engine
from vivace.engine.utterances.guard import frame_budget
from vivace.engine.utterances.reader import UtteranceReader
from vivace.engine.utterances.utterance import Utterance
from vivace.errors import BackendFullError
from vivace.prompt import Prompt, build_prompt
from vivace.speech import SamplingParams

TEXT = "The needle in the haystack."


@pytest.fixture(scope="module")
def part(few_codebooks: Tiny) -> Tiny:
    return few_codebooks


@pytest.fixture
def backend_of(
    part: Tiny, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, int], CudaGraphBackend]:
    """A backend with this number of pages and slots."""

    def build(size: int, max_streams: int = 8) -> CudaGraphBackend:
        monkeypatch.setattr(backend_module, "pool_size", lambda *_: size)
        return CudaGraphBackend(part.model, part.codec, max_streams=max_streams, max_frames=320)

    return build


def long(seed: int, num_frames: int) -> SamplingParams:
    return params(seed, min_frames=num_frames, max_frames=num_frames)


def prompt_of(part: Tiny, num_rows: int) -> Prompt:
    def build(num_ids: int) -> Prompt:
        ids = [5] * num_ids
        return build_prompt(
            part.checkpoint.config, ids, role_ids=[1, 2, 3], layout="whole", preset="ryan"
        )

    return build(num_rows - len(build(0)))


# --- The pool ---------------------------------------------------------------------------------


def test_pages_are_unique_and_returned() -> None:
    pool = PagePool(10)
    first, second = pool.open(0, 3, 4), pool.open(1, 5, 5)
    assert first is not None
    assert second is not None
    assert sorted({*first, *second}) == sorted([*first, *second])
    assert pool.num_free == 2
    more = pool.grow(0, 4)
    assert len(more) == 1
    assert pool.grow(0, 9) == []  # it has its most
    pool.close(0)
    pool.close(1)
    assert pool.num_free == 10


def test_reservation_that_could_deadlock_is_refused() -> None:
    pool = PagePool(10)
    assert pool.open(0, 2, 8) is not None
    assert pool.open(1, 4, 4) is not None
    assert pool.open(2, 1, 8) is not None  # the second ends, and there are 7 for the first's 6
    assert pool.open(3, 3, 8) is None  # the second ends, and there are 4 for its 5
    assert pool.open(3, 3, 3) is not None  # it gives them back
    assert pool.grow(0, 8) == []
    pool.close(1)
    assert len(pool.grow(2, 8)) == 4
    pool.close(3)
    assert pool.grow(0, 8) == []  # three are free, and the third needs them to end
    assert len(pool.grow(2, 8)) == 3
    pool.close(2)
    assert len(pool.grow(0, 8)) == 6


@pytest.mark.parametrize("seed", range(20))
def test_slots_reach_their_page_limits_in_any_order(seed: int) -> None:
    choice, pool = random.Random(seed), PagePool(20)
    waiting = [(row, choice.randint(1, 20)) for row in range(40)]
    held: dict[int, int] = {}
    most: dict[int, int] = {}
    while waiting or held:
        has_moved = False
        if waiting:
            row, wanted = waiting[0]
            pages = pool.open(row, choice.randint(1, wanted), wanted)
            if pages is not None:
                waiting.pop(0)
                held[row], most[row], has_moved = len(pages), wanted, True
        for row in choice.sample(list(held), len(held)):
            num_more = len(pool.grow(row, held[row] + choice.randint(1, 5)))
            held[row] += num_more
            has_moved = has_moved or num_more > 0
            if held[row] == most[row]:
                pool.close(row)
                del held[row]
                has_moved = True
        assert has_moved, "all of them wait for each other"
    assert pool.num_free == 20


def count_delays(firm: float, num_texts: int) -> tuple[int, int]:
    """Simulate 256 busy slots with texts of 300 characters; count waits and pauses.

    A text has 70 ids and takes 250 frames, plus or minus a quarter; one in 300 reaches its limit.
    """
    choice, num_rows, budget, turn = random.Random(1), 80, frame_budget(70), 16
    most = num_pages(num_rows + budget)
    pool = PagePool(pool_size(256, 3072, 1, torch.device("cpu")))
    left, made, length, waited, paused = (
        num_texts,
        dict[int, int](),
        dict[int, int](),
        0,
        set[int](),
    )
    held: dict[int, int] = {}
    while left or made:
        for row in [row for row in range(256) if row not in made][:left]:
            pages = pool.open(row, num_pages(num_rows + round(firm * budget)), most)
            if pages is None:
                waited += 1
                break
            left -= 1
            is_runaway = choice.random() < 1 / 300
            length[row] = budget if is_runaway else round(250 * choice.lognormvariate(0, 0.25))
            made[row], held[row] = choice.randrange(0, turn) if left else 0, len(pages)
        for row in list(made):
            frames = min(length[row], made[row] + turn)
            held[row] += len(pool.grow(row, num_pages(num_rows + frames)))
            if num_rows + frames > PAGE * held[row]:
                paused.add(row)
                continue
            made[row] = frames
            if frames == length[row]:
                pool.close(row)
                del made[row]
    return waited, len(paused)


def test_page_pool_serves_256_texts_of_300_characters_without_waits() -> None:
    assert count_delays(FIRM, 3000) == (0, 0)
    assert count_delays(1 / 2, 600)[0] > 0  # the control: it would take more pages


# --- Codes ------------------------------------------------------------------------------------


def test_codes_do_not_depend_on_page_numbers(
    part: Tiny, backend_of: Callable[..., CudaGraphBackend]
) -> None:
    """Other slots leave pages in random order; the slot's keys fill three pages."""
    backend, prompt, short = backend_of(24), prompt_of(part, 120), make_prompt(part, "Hay.")
    sampling = params(3, max_frames=24)
    expected = speak(part.backend(), prompt, sampling)
    others = [backend.admit(short, params(n)) for n in range(6)]
    for other in (others[1], others[4], others[2]):
        backend.release(other)
    slot = backend.admit(prompt, sampling)
    pages = backend._table.pages[backend._slots[slot].row, :3].tolist()
    assert pages not in (sorted(pages), sorted(pages, reverse=True))
    frames = [backend.step(slots, 8) for slots in ([slot], [slot, others[0]], [slot])]
    assert np.array_equal(np.concatenate([step.of(0) for step in frames]), expected)
    for each in (slot, others[0], others[3], others[5]):
        backend.release(each)
    assert backend._pool.num_free == 24


def test_non_finite_numbers_stay_in_their_slot(
    part: Tiny, backend_of: Callable[..., CudaGraphBackend]
) -> None:
    """Values that a failed slot left in its pages or the padding page are never read."""
    backend, prompt = backend_of(8), make_prompt(part, TEXT)
    with torch.inference_mode():
        for cache in (backend._table.keys, backend._table.values):
            cache.fill_(torch.nan)
    slots = [backend.admit(prompt, params(seed)) for seed in (3, 4, 5)]  # and one of padding
    frames = backend.step(slots, 6)
    assert frames.status == ("running",) * 3


# --- Running out ------------------------------------------------------------------------------


def test_prompt_without_pages_waits_in_order(
    part: Tiny, backend_of: Callable[..., CudaGraphBackend]
) -> None:
    backend, prompt = backend_of(6), make_prompt(part, TEXT)
    first = backend.admit(prompt, long(1, 250))
    requests = [(prompt, params(2)), (prompt, long(3, 300)), (prompt, params(4))]
    small, large, last = backend.admit_many(requests)
    assert isinstance(small, int)
    assert isinstance(large, BackendFullError)
    assert isinstance(last, BackendFullError)
    assert "pages" in str(large)
    for slot in (first, small):
        backend.release(slot)
    assert all(isinstance(slot, int) for slot in backend.admit_many(requests[1:]))


@pytest.mark.ci
def test_slot_reserves_later_pages_on_demand_or_pauses(
    part: Tiny, backend_of: Callable[..., CudaGraphBackend]
) -> None:
    """Three pages, two slots that hold one page and need two."""
    backend, prompt, eager = backend_of(3), prompt_of(part, PAGE - 18), part.backend()
    requests = [(prompt, params(seed, min_frames=24, max_frames=24)) for seed in (1, 2)]
    slots = [backend.admit(*request) for request in requests]
    assert backend._pool.num_free == 1
    first, second = backend.step(slots[:1], 24), backend.step(slots[1:], 20)
    assert (first.lengths, first.status) == ((24,), ("length",))
    assert (second.lengths, second.status) == ((18,), ("running",))
    paused = backend.step(slots[1:], 4)
    assert (paused.lengths, paused.status) == ((0,), ("running",))
    backend.release(slots[0])
    rest = backend.step(slots[1:], 24)
    assert (rest.lengths, rest.status) == ((6,), ("length",))
    assert np.array_equal(first.of(0), speak(eager, *requests[0]))
    assert np.array_equal(np.concatenate([second.of(0), rest.of(0)]), speak(eager, *requests[1]))
    backend.release(slots[1])
    assert backend._pool.num_free == 3


def test_slots_that_need_pages_together_get_them_in_one_write(
    part: Tiny, backend_of: Callable[..., CudaGraphBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slots pause at the end of their page until another slot is released."""
    backend, prompt, eager = backend_of(4), prompt_of(part, PAGE - 18), part.backend()
    requests = [(prompt, params(seed, min_frames=24, max_frames=24)) for seed in range(3)]
    first, *slots = [backend.admit(*request) for request in requests]
    backend.step([first], 24)
    paused = backend.step(slots, 20)
    assert (paused.lengths, paused.status) == ((18, 18), ("running", "running"))
    backend.release(first)
    writes, append = list[list[int]](), backend._table.append_pages

    def noted(grown: Sequence[tuple[GraphSlot, Sequence[int]]]) -> None:
        writes.append([slot.row for slot, _ in grown])
        append(grown)

    monkeypatch.setattr(backend._table, "append_pages", noted)
    rest = backend.step(slots, 24)
    assert writes == [[backend._slots[slot].row for slot in slots]]
    assert (rest.lengths, rest.status) == ((6, 6), ("length", "length"))
    for row, request in enumerate(requests[1:]):
        codes = np.concatenate([paused.of(row), rest.of(row)])
        assert np.array_equal(codes, speak(eager, *request))


def test_live_text_reserves_pages_on_arrival(
    part: Tiny, backend_of: Callable[..., CudaGraphBackend]
) -> None:
    backend, sampling = backend_of(12), params(9, max_frames=300, min_frames=300)
    ids = part.tokenizer.encode(TEXT)
    slot = backend.admit(make_prompt(part, TEXT[0], is_complete=False), sampling)
    assert backend._pool.num_free == 12 - 2  # of 300 frames there would be three
    first = backend.step([slot], 4)
    backend.extend(slot, ids[1:], is_last=True)
    assert backend._pool.num_free == 12 - 3
    second = backend.step([slot], 20)
    assert (first.status, second.status) == (("waiting",), ("running",))
    whole = speak(part.backend(), make_prompt(part, TEXT), params(9, min_frames=24, max_frames=24))
    codes = np.concatenate([first.of(0), second.of(0)])
    assert np.array_equal(codes, whole[: len(codes)])


def test_engine_queues_requests_beyond_its_pages(
    part: Tiny, backend_of: Callable[..., CudaGraphBackend]
) -> None:
    backend, prompt = backend_of(5), prompt_of(part, PAGE)
    engine, samplings = Engine(backend), [params(seed, max_frames=8) for seed in range(4)]
    given = [
        UtteranceReader(
            engine, Utterance(prompt=prompt, sampling=each, wake=lambda: None, has_budget=False)
        )
        for each in samplings
    ]
    for one in given:
        one.submit()
        one.request(9)
    while not all(one.utterance.is_over for one in given):
        time.sleep(0.01)
    eager = part.backend()
    for one, sampling in zip(given, samplings, strict=True):
        assert np.array_equal(one.take(8).codes, speak(eager, prompt, sampling))
    assert engine.call(lambda: backend._pool.num_free) == 5


def test_thousand_joins_and_leaves_leak_no_page(
    part: Tiny, backend_of: Callable[..., CudaGraphBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, choice, prompt = backend_of(20, 16), random.Random(3), make_prompt(part, "Hay.")
    live = make_prompt(part, "Hay.", is_complete=False)
    monkeypatch.setattr(backend._prefill, "run", lambda *_: None)
    monkeypatch.setattr(backend._codec, "reset", lambda *_: None)
    slots, num_joined, num_refused = list[int](), 0, 0
    while num_joined < 1000:
        for _ in range(choice.randint(1, 4)):
            try:
                assert len(slots) < 16
                sampling = long(num_joined, choice.randint(1, 320))
                slots.append(backend.admit(choice.choice([prompt, live]), sampling))
                num_joined += 1
            except (BackendFullError, AssertionError):
                num_refused += 1
        for slot in choice.sample(slots, choice.randint(0, len(slots))):
            if choice.random() < 0.5:
                with torch.inference_mode():
                    backend._reservations.grow(backend._slots[slot], choice.randint(1, 320))
                continue
            backend.release(slot)
            slots.remove(slot)
    assert num_refused > 50
    for slot in slots:
        backend.release(slot)
    assert (backend._pool.num_free, len(backend._reservations.free)) == (20, 16)
    assert sorted(backend._pool._free) == list(range(20))
