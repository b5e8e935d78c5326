"""`Prompt.continued`: the talker draws the same codes as without the interruption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.support.tiny import Tiny
from vivace.backends.base import Frames
from vivace.backends.eager import EagerBackend
from vivace.model.config import Head
from vivace.prompt import Prompt, SpokenReference, build_prompt
from vivace.speech import SamplingParams, TextLayout
from vivace.timing.attention import TextAttention

OWN = [11, 12, 13, 14, 15, 16, 17]
LATER = [21, 22, 23]
NUM_FRAMES = 14
GREEDY = SamplingParams(
    temperature=0.0,
    predictor_temperature=0.0,
    repetition_penalty=1.0,
    seed=1,
    min_frames=NUM_FRAMES,
    max_frames=NUM_FRAMES,
)


def make_prompt(
    part: Tiny, layout: TextLayout, num_ref_frames: int = 0, *, is_complete: bool = True
) -> Prompt:
    config = part.model.config
    groups = config.talker_config.num_code_groups
    codes = np.random.default_rng(1).integers(0, 8, (num_ref_frames, groups))
    speaker = np.full(config.talker_config.hidden_size, 0.1, np.float32)
    return build_prompt(
        config,
        OWN,
        role_ids=[1, 2, 3],
        layout=layout,
        speaker=speaker,
        reference=SpokenReference(text_ids=[31, 32, 33], codes=codes) if num_ref_frames else None,
        is_complete=is_complete,
    )


def speak(backend: EagerBackend, prompt: Prompt, num_frames: int) -> np.ndarray:
    sampling = GREEDY.replace(max_frames=num_frames, min_frames=num_frames)
    slot = backend.admit(prompt, sampling)
    codes: np.ndarray = backend.step([slot], num_frames).of(0)
    backend.release(slot)
    return codes


def half_of(*values: Sequence[Any]) -> list[Any]:
    """All combinations. Half of them are slow; the other half contains each pair of values."""
    cases = []
    for places in product(*(range(len(each)) for each in values)):
        marks = [pytest.mark.slow] if sum(places) % 2 else []
        chosen = (each[place] for each, place in zip(values, places, strict=True))
        cases.append(pytest.param(*chosen, marks=marks))
    return cases


@pytest.mark.default_cases(4)
@pytest.mark.parametrize(
    ("num_kept", "num_ref_frames", "layout"), half_of([1, 5, 12], [0, 6], ["whole", "streamed"])
)
def test_continued_prompt_draws_the_codes_of_the_uninterrupted_run(
    tiny: Callable[[str], Tiny], layout: TextLayout, num_ref_frames: int, num_kept: int
) -> None:
    part = tiny("base")
    backend, prompt = part.backend(), make_prompt(part, layout, num_ref_frames)
    codes = speak(backend, prompt, NUM_FRAMES)
    continued = prompt.continued(codes[:num_kept], [], is_complete=True)
    assert len(continued) == len(prompt) + num_kept
    rest = speak(backend, continued, NUM_FRAMES - num_kept)
    np.testing.assert_array_equal(rest, codes[num_kept:])


@pytest.mark.parametrize("num_kept", [2, 6, 9])
def test_continued_prompt_has_text_that_was_appended(
    tiny: Callable[[str], Tiny], num_kept: int
) -> None:
    part = tiny("base")
    backend, prompt = part.backend(), make_prompt(part, "streamed", is_complete=False)
    slot = backend.admit(prompt, GREEDY)
    parts = [backend.step([slot], 3).of(0)]
    backend.extend(slot, LATER, True)
    parts.append(backend.step([slot], NUM_FRAMES - 3).of(0))
    backend.release(slot)
    codes = np.concatenate(parts)
    continued = prompt.continued(codes[:num_kept], LATER, is_complete=True)
    assert continued.num_own_ids == len(OWN) + len(LATER)
    rest = speak(backend, continued, NUM_FRAMES - num_kept)
    np.testing.assert_array_equal(rest, codes[num_kept:])


def test_continued_live_prompt_waits_for_the_text_that_is_not_known(
    tiny: Callable[[str], Tiny],
) -> None:
    part = tiny("base")
    backend, prompt = part.backend(), make_prompt(part, "streamed", is_complete=False)
    kept = speak(backend, make_prompt(part, "streamed"), 3)
    continued = prompt.continued(kept, [], is_complete=False)
    slot = backend.admit(continued, GREEDY)
    frames = backend.step([slot], NUM_FRAMES)
    backend.release(slot)
    assert frames.status == ("waiting",)
    assert frames.lengths[0] == len(OWN) - 3


def test_continued_prompt_keeps_the_place_of_its_own_text(tiny: Callable[[str], Tiny]) -> None:
    prompt = make_prompt(tiny("base"), "streamed", 6)
    groups = prompt.codes.shape[1]
    continued = prompt.continued(np.ones((4, groups), np.int64), [], is_complete=True)
    track = [*continued.text_ids, *continued.trailing_ids]
    assert track[continued.own_row : continued.own_row + continued.num_own_ids] == OWN
    assert continued.reference is not None
    assert len(continued.reference) == 6 + 4  # the codec decodes all of it first


@pytest.mark.default_cases(3)
@pytest.mark.parametrize(
    ("head", "pass_rows", "layout"),
    half_of([Head(0, 1), Head(1, 0)], [1, 4], ["whole", "streamed"]),
)
def test_reported_places_are_those_of_the_attention_pass(
    tiny: Callable[[str], Tiny], layout: TextLayout, pass_rows: int, head: Head
) -> None:
    part = tiny("base")
    backend = part.backend(pass_rows)
    backend.watch(head)
    prompts = [make_prompt(part, layout, num) for num in (0, 6)]
    slots = [backend.admit(prompt, GREEDY) for prompt in prompts]
    frames = Frames.join([backend.step(slots, count) for count in (4, NUM_FRAMES - 4)])
    for row, (slot, prompt) in enumerate(zip(slots, prompts, strict=True)):
        weights = TextAttention(part.model, prompt, [head]).read(frames.of(row), len(OWN))[0]
        found = frames.places_of(row)
        assert len(found) == frames.lengths[row]
        for (place, share), expected in list(zip(found, weights, strict=True))[1:]:
            assert share == pytest.approx(float(expected.sum()), abs=1e-4)
            assert expected[place] == pytest.approx(float(expected.max()), abs=1e-4)
        backend.release(slot)


def test_backend_without_a_watched_head_reports_no_places(tiny: Callable[[str], Tiny]) -> None:
    part = tiny("base")
    backend = part.backend()
    assert backend.watched is None
    slot = backend.admit(make_prompt(part, "whole"), GREEDY)
    assert backend.step([slot], 4).places is None
    backend.release(slot)
