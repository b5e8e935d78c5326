"""Every backend: a slot's codes depend only on its prompt and its seed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.slots import NUM_FRAMES, PlainBackend, SteppedBackend, make_prompt, params
from tests.support.tiny import Tiny
from tests.support.utterances import generate
from vivace import TTS
from vivace.backends import Capacity, build_backend, survey
from vivace.backends.eager import EagerBackend
from vivace.errors import BackendError, BackendUnavailableError, NumericError, RequestError
from vivace.model.layers import module_bytes
from vivace.prompt import Prompt, build_prompt
from vivace.speech import SamplingParams

Build = Callable[..., PlainBackend]


def speak_alone(
    backend: SteppedBackend, prompt: Prompt, sampling: SamplingParams
) -> NDArray[np.int64]:
    return generate(backend, prompt, sampling).codes


@pytest.fixture(scope="module")
def part(few_codebooks: Tiny) -> Tiny:
    return few_codebooks


@pytest.fixture(scope="module", params=["eager", "cpu"])
def build(part: Tiny, request: pytest.FixtureRequest) -> Build:
    """Builds a backend; only the eager one has a number of rows per pass."""

    def make(pass_rows: int | None = None) -> PlainBackend:
        return part.cpu_backend() if request.param == "cpu" else part.backend(pass_rows)

    return make


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("pass_rows", [1, 4])
@given(seed=st.integers(0, 2**63 - 1), plan=st.integers(0, 2**32))
@settings(deadline=None, max_examples=3)
def test_seeded_codes_are_equal_alone_and_in_any_batch(
    part: Tiny, build: Build, pass_rows: int, seed: int, plan: int
) -> None:
    backend = build(pass_rows)
    prompt = make_prompt(part, "The needle in the haystack.")
    alone = speak_alone(backend, prompt, params(seed))
    found = speak_in_batch(backend, part, prompt, params(seed), random.Random(plan))
    assert np.array_equal(found, alone)


def speak_in_batch(
    backend: SteppedBackend,
    part: Tiny,
    prompt: Prompt,
    sampling: SamplingParams,
    plan: random.Random,
) -> NDArray[np.int64]:
    """Make one slot's frames while other slots join, leave and are cancelled at random."""
    neighbours: list[int] = []
    pieces = []
    slot = backend.admit(prompt, sampling)
    while True:
        while len(neighbours) < plan.randint(0, 5):
            text = plan.choice(["Hay.", "More hay than anyone can use.", "1, 2, 3!"])
            settings = params(plan.randrange(2**40), temperature=plan.choice([0.0, 0.7, 1.5]))
            neighbours.append(backend.admit(make_prompt(part, text), settings))
        order = [slot, *neighbours]
        plan.shuffle(order)
        frames = backend.step(order, plan.randint(1, 7))
        row = order.index(slot)
        pieces.append(frames.of(row))
        for other, status in zip(order, frames.status, strict=True):
            if other != slot and (status != "running" or plan.random() < 0.2):
                backend.release(other)
                neighbours.remove(other)
        if frames.status[row] != "running":
            backend.release(slot)
            for other in neighbours:
                backend.release(other)
            return np.concatenate(pieces)


def test_seed_test_fails_with_shared_generator(part: Tiny) -> None:
    """Control: with one shared generator, other slots change the codes."""
    logits = torch.randn(64, generator=torch.Generator().manual_seed(0)).softmax(-1)
    alone = torch.Generator().manual_seed(1)
    shared = torch.Generator().manual_seed(1)
    first = [int(torch.multinomial(logits, 1, generator=alone)) for _ in range(32)]
    second = []
    for _ in range(32):
        second.append(int(torch.multinomial(logits, 1, generator=shared)))
        torch.multinomial(logits, 1, generator=shared)  # the neighbour
    assert first != second


def test_different_seeds_give_different_codes(part: Tiny, build: Build) -> None:
    backend, prompt = build(), make_prompt(part, "Once more.")
    first, second = (speak_alone(backend, prompt, params(seed)) for seed in (1, 2))
    assert not np.array_equal(first, second)


def test_greedy_ignores_seed_and_temperatures_are_per_codebook(part: Tiny, build: Build) -> None:
    backend, prompt = build(), make_prompt(part, "Once more.")
    greedy = [speak_alone(backend, prompt, params(seed, temperature=0)) for seed in (1, 2)]
    assert np.array_equal(greedy[0], greedy[1])
    half = speak_alone(backend, prompt, params(1, temperature=0, predictor_temperature=0.9))
    assert half[0, 0] == greedy[0][0, 0]
    assert not np.array_equal(half[0], greedy[0][0])


def test_rendering_by_chunks_equals_rendering_at_once(part: Tiny, build: Build) -> None:
    backend, prompt = build(), make_prompt(part, "In pieces.")
    whole = generate(backend, prompt, params(5))
    slot = backend.admit(prompt, params(5))
    pieces = []
    for num_frames in (1, 2, 4, 8, 9):
        pieces += backend.render([slot], backend.step([slot], num_frames))
    backend.release(slot)
    assert np.allclose(np.concatenate(pieces), whole.samples, rtol=0, atol=5e-5)


@pytest.mark.parametrize("pieces", [[1] * 40, [3, 1, 7, 40], [40]])
def test_live_text_codes_equal_whole_text_codes(
    part: Tiny, build: Build, pieces: list[int]
) -> None:
    backend = build()
    text = "Written while it is spoken."
    whole = speak_alone(backend, make_prompt(part, text), params(9))
    ids = part.tokenizer.encode(text)
    head, rest = ids[:1], ids[1:]
    prompt = make_prompt(part, part.tokenizer.decode(head), is_complete=False)
    slot = backend.admit(prompt, params(9))
    codes = []
    for size in pieces:
        frames = backend.step([slot], 5)
        codes.append(frames.of(0))
        if not rest and frames.status[0] != "waiting":
            break
        piece, rest = rest[:size], rest[size:]
        backend.extend(slot, piece, is_last=not rest)
        if not rest:
            break
    while frames.status[0] in ("running", "waiting"):
        frames = backend.step([slot], 5)
        codes.append(frames.of(0))
    backend.release(slot)
    assert np.array_equal(np.concatenate(codes), whole)


def test_slot_without_text_waits_without_frames(part: Tiny, build: Build) -> None:
    backend = build()
    slot = backend.admit(make_prompt(part, "a", is_complete=False), params(9))
    first = backend.step([slot], 5)
    assert (first.lengths[0], first.status[0]) == (1, "waiting")
    second = backend.step([slot], 5)
    assert (second.lengths[0], second.status[0]) == (0, "waiting")
    backend.extend(slot, part.tokenizer.encode("bcd"), is_last=False)
    third = backend.step([slot], 5)
    assert (third.lengths[0], third.status[0]) == (3, "waiting")
    backend.extend(slot, [], is_last=True)
    assert backend.step([slot], 5).status[0] == "running"
    with pytest.raises(BackendError, match="complete"):
        backend.extend(slot, [1], is_last=False)


def test_slot_with_non_finite_logits_fails_alone(
    part: Tiny, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = build(4)
    prompt = make_prompt(part, "Steady.")
    alone = speak_alone(backend, prompt, params(3))
    with monkeypatch.context() as patch:
        rows = backend.prompt_rows(prompt)
        rows[:] = torch.nan
        patch.setattr(backend, "prompt_rows", lambda prompt: rows)
        broken = backend.admit(prompt, params(4))
    healthy = backend.admit(prompt, params(3))
    frames = backend.step([broken, healthy], NUM_FRAMES)
    assert frames.status[0] == "failed"
    assert frames.lengths[0] == 0
    assert np.array_equal(frames.of(1), alone)
    again = backend.step([broken, healthy], 1)
    assert again.status[0] == "failed"


def test_non_finite_logits_fail_one_request_only(part: Tiny, build: Build) -> None:
    backend, prompt = build(), make_prompt(part, "Steady.")
    head = part.model.talker.codec_head.weight
    kept = head[5].clone()
    head[5] = torch.nan
    try:
        with pytest.raises(NumericError, match="frame 0"):
            generate(backend, prompt, params(3))
    finally:
        head[5] = kept
    assert len(generate(backend, prompt, params(3)).codes) > 0
    assert not backend._slots


def test_step_reports_frame_count_and_status(part: Tiny, build: Build) -> None:
    backend, prompt = build(), make_prompt(part, "Bounded.")
    utterance = generate(backend, prompt, params(1, max_frames=5, min_frames=5))
    assert len(utterance.codes) == 5
    assert utterance.finish_reason == "length"


def test_released_slot_raises_backend_error(part: Tiny, build: Build) -> None:
    backend = build()
    slot = backend.admit(make_prompt(part, "Gone."), params(1))
    backend.release(slot)
    for call in (
        lambda: backend.step([slot], 1),
        lambda: backend.extend(slot, [], True),
        lambda: backend.release(slot),
    ):
        with pytest.raises(BackendError, match="released"):
            call()


def test_admission_without_seed_or_positions_fails(part: Tiny, build: Build) -> None:
    backend = build()
    with pytest.raises(BackendError, match="seed"):
        backend.admit(make_prompt(part, "Hm."), SamplingParams())
    limit = part.checkpoint.config.talker_config.max_position_embeddings
    with pytest.raises(BackendError, match="rows"):
        backend.admit(
            build_prompt(part.checkpoint.config, [1] * limit, role_ids=[1, 2, 3], layout="whole"),
            params(1),
        )


def test_auto_picks_first_usable_backend_and_unknown_names_fail(
    part: Tiny,
) -> None:
    usable = [entry.name for entry, refusal in survey(torch.device("cpu")) if refusal is None]
    assert build_backend("auto", part.model, part.codec).name == usable[0]
    assert isinstance(build_backend("eager", part.model, part.codec), EagerBackend)
    with pytest.raises(BackendUnavailableError, match="eager"):
        build_backend("warp", part.model, part.codec)
    assert "eager" in usable
    assert build_backend("eager", part.model, part.codec, Capacity(max_streams=3)).max_streams == 3


@pytest.mark.parametrize("name", ["max_streams", "max_queue", "max_frames"])
@pytest.mark.parametrize("value", [-1, "4", 1.5, True, [4]])
def test_invalid_limit_of_a_model_is_rejected(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"{name} must be .*, not {re.escape(repr(value))}"):
        TTS.load(**{name: value})  # type: ignore[arg-type]


def test_eager_backend_on_a_cpu_reports_passes_of_one_row_and_its_memory(part: Tiny) -> None:
    backend = EagerBackend(part.model, part.codec)
    assert not backend.shares_work
    assert backend.facts() == {"passes": "1 row(s) at a time, up to 256 streams"}
    assert backend.memory()["codec"] == module_bytes(part.codec) > 0
    assert EagerBackend(part.model, part.codec, pass_rows=2).shares_work
