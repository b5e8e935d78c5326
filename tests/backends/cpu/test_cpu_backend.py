"""The `cpu` backend: codes of the eager backend, batches, threads, places and limits.

`tests/backends/test_backends.py` holds what all backends have in common.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import vivace.backends as backends
from tests.support.slots import (
    NUM_FRAMES,
    PlainBackend,
    assert_official_codes_in_a_batch,
    make_prompt,
    params,
)
from tests.support.tiny import TINY_NAMES, Tiny
from vivace.backends import build_backend
from vivace.backends.cpu import backend as cpu
from vivace.backends.cpu import binding
from vivace.backends.cpu.backend import CpuBackend
from vivace.errors import BackendUnavailableError
from vivace.model.config import Head, IntWeights, Weights
from vivace.prompt import Prompt, build_prompt
from vivace.speech import SamplingParams

INSTRUCTION_SETS = ("portable", "dotprod", "i8mm", "avx2", "avx512f", "avx512", "amx")
TEXTS = ("Hay.", "More hay than anyone can use.", "1, 2, 3!")
VOICES = (  # preset, language, instruction
    ("ryan", "english", ""),
    ("ryan", "auto", ""),
    ("ryan", "english", "Whisper."),
    ("ryan", "english", "Whistle."),
)


@pytest.fixture(scope="module")
def part(few_codebooks: Tiny) -> Tiny:
    return few_codebooks


def speak(backend: PlainBackend, prompt: Prompt, sampling: SamplingParams) -> NDArray[np.int64]:
    slot = backend.admit(prompt, sampling)
    codes = backend.step([slot], NUM_FRAMES).of(0)
    backend.release(slot)
    return codes


@pytest.mark.parametrize("name", TINY_NAMES)
def test_greedy_codes_equal_the_official_package(tiny: Callable[[str], Tiny], name: str) -> None:
    part = tiny(name)
    assert_official_codes_in_a_batch(part.cpu_backend(), part, name)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_seeded_codes_equal_the_eager_backend(part: Tiny, name: str) -> None:
    backend, eager = part.cpu_backend(), part.backend()
    if binding.instructions(name) is None:
        pytest.skip(f"this CPU does not have {name}")
    backend = part.cpu_backend(instruction_set=name)
    for seed, text in enumerate(TEXTS):
        prompt = make_prompt(part, text)
        assert np.array_equal(
            speak(backend, prompt, params(seed)),
            speak(eager, prompt, params(seed)),
        )


def test_codes_do_not_depend_on_the_number_of_threads(part: Tiny) -> None:
    prompt = make_prompt(part, TEXTS[1])
    alone = speak(part.cpu_backend(), prompt, params(4))
    for num_threads in (2, 3):
        backend = part.cpu_backend(num_threads)
        assert np.array_equal(speak(backend, prompt, params(4)), alone)
        slots = [backend.admit(prompt, params(4)) for _ in range(11)]  # two passes
        frames = backend.step(slots, NUM_FRAMES)
        assert all(np.array_equal(frames.of(row), alone) for row in range(11))


def test_long_prompt_takes_several_sweeps(part: Tiny) -> None:
    """A prompt of more rows than a sweep has, and more positions than a page."""
    text = "All work and no play makes Jack a dull boy. " * 12
    prompt = build_whole(part, text)
    assert len(prompt) > 130
    assert np.array_equal(
        speak(part.cpu_backend(2), prompt, params(6)),
        speak(part.backend(), prompt, params(6)),
    )


def build_whole(part: Tiny, text: str) -> Prompt:
    return build_prompt(
        part.checkpoint.config,
        part.tokenizer.encode(text),
        role_ids=part.tokenizer.role_ids("assistant"),
        layout="whole",
        language="english",
        preset="ryan",
    )


def test_prompts_that_begin_with_known_rows_give_the_same_codes(part: Tiny) -> None:
    """Keys and values of a voice's first rows are computed once."""
    used = part.cpu_backend(2)
    speak(used, make_prompt(part, TEXTS[0]), params(1))
    num_bytes = used.memory()["voice cache"]
    assert num_bytes > 0
    for text in (*TEXTS, "All work and no play makes Jack a dull boy. " * 4):
        prompt = build_whole(part, text)
        assert np.array_equal(
            speak(used, prompt, params(2)), speak(part.cpu_backend(), prompt, params(2))
        )
    assert used.memory()["voice cache"] == num_bytes


@pytest.mark.parametrize("has_half_cache", [False, True])
def test_known_rows_of_several_pages_give_the_same_codes(part: Tiny, has_half_cache: bool) -> None:
    used = part.cpu_backend(has_half_cache=has_half_cache)
    prompt = build_whole(part, "All work and no play makes Jack a dull boy. " * 12)
    for num_shared in (1, 63, 64, 65, 130, len(prompt), len(prompt) + 5):
        fresh = part.cpu_backend(has_half_cache=has_half_cache)
        alone = speak(fresh, prompt, params(3))
        shared = dataclasses.replace(prompt, num_shared_rows=num_shared)
        for _ in range(2):
            assert np.array_equal(speak(used, shared, params(3)), alone)


@pytest.mark.parametrize("stored", ["full", *get_args(IntWeights)])
def test_kept_rows_of_voices_do_not_mix(part: Tiny, stored: Weights) -> None:
    """Slots of several voices that are made and stepped in turn, of each voice twice."""
    model = part.checkpoint.load_model(torch.device("cpu"), torch.float32, stored)
    prompts = [prompt_of(part, *each) for each in VOICES for _ in range(2)]
    used = CpuBackend(model, part.codec, num_threads=1)
    slots = [used.admit(prompt, params(seed)) for seed, prompt in enumerate(prompts)]
    parts = [[used.step([slot], 2).of(0) for slot in slots] for _ in range(3)]
    for seed, prompt in enumerate(prompts):
        fresh = CpuBackend(model, part.codec, num_threads=1)
        alone = fresh.step([fresh.admit(prompt, params(seed))], 6).of(0)
        assert np.array_equal(np.concatenate([each[seed] for each in parts]), alone)
    assert used.memory()["voice cache"] > 0


def prompt_of(part: Tiny, preset: str, language: str, instruct: str) -> Prompt:
    return build_prompt(
        part.checkpoint.config,
        part.tokenizer.encode(TEXTS[1]),
        role_ids=part.tokenizer.role_ids("assistant"),
        layout="whole",
        language=language,
        preset=preset,
        instruct_ids=part.tokenizer.encode(instruct) if instruct else (),
    )


def test_voice_cache_is_limited_and_removed_rows_are_computed_again(part: Tiny) -> None:
    backend, prompt = part.cpu_backend(), build_whole(part, TEXTS[1])
    first = speak(backend, prompt, params(1))
    long = build_whole(part, "Hay. " * 90)
    before, sizes = backend.memory()["voice cache"], []
    for number in range(64):
        other = dataclasses.replace(long, text_ids=(number, *long.text_ids[1:]))
        shared = dataclasses.replace(other, num_shared_rows=len(other))
        backend.release(backend.admit(shared, params(1)))
        sizes.append(backend.memory()["voice cache"])
    assert 64 * (sizes[0] - before) > 16 << 20 >= max(sizes)
    assert np.array_equal(speak(backend, prompt, params(1)), first)


def test_attention_is_read_of_all_rows_if_some_are_kept(part: Tiny) -> None:
    used, prompt = part.cpu_backend(), build_whole(part, TEXTS[1])
    codes = speak(used, prompt, params(2))
    arguments = prompt, codes, prompt.num_own_ids
    fresh = part.cpu_backend().read_attention(*arguments)
    assert np.array_equal(used.read_attention(*arguments), fresh)


def test_places_equal_the_eager_backend(part: Tiny) -> None:
    native, eager = part.cpu_backend(), part.backend()
    prompt = build_whole(part, TEXTS[1])
    for head in (Head(0, 0), Head(2, 3)):
        found = []
        for backend in (native, eager):
            backend.watch(head)
            slot = backend.admit(prompt, params(3))
            found.append(backend.step([slot], NUM_FRAMES))
            backend.release(slot)
        ours, theirs = (frames.places_of(0) for frames in found)
        assert [index for index, _ in ours] == [index for index, _ in theirs]
        assert np.allclose([share for _, share in ours], [share for _, share in theirs], atol=1e-5)
        assert ours[0] == (-1, 0.0)
        assert ours[1][0] >= 0


def test_places_follow_live_text(part: Tiny) -> None:
    found = []
    for backend in (part.cpu_backend(), part.backend()):
        backend.watch(Head(1, 1))
        slot = backend.admit(make_prompt(part, "a", is_complete=False), params(9))
        frames = [backend.step([slot], 3)]
        backend.extend(slot, part.tokenizer.encode("bcd efg"), is_last=True)
        frames.append(backend.step([slot], 6))
        found.append([place for each in frames for place in each.places_of(0)])
    assert [index for index, _ in found[0]] == [index for index, _ in found[1]]


def test_memory_of_released_slots_is_freed(part: Tiny) -> None:
    backend = part.cpu_backend()
    slot = backend.admit(make_prompt(part, "Hay."), params(1))
    assert backend.memory()["keys and values"] > 0
    backend.release(slot)
    assert backend.memory()["keys and values"] == 0


def test_slots_outlive_their_backend(part: Tiny) -> None:
    backend = part.cpu_backend(2)
    native = backend._slots[backend.admit(make_prompt(part, "Hay."), params(1))].native
    del backend
    gc.collect()
    assert native.num_bytes > 0


def test_other_devices_and_dimensions_are_refused(
    part: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "CPU" in (cpu.device_refusal(torch.device("meta")) or "")
    part.cpu_backend()  # or skip
    monkeypatch.setattr(cpu, "find_unfit", lambda config: "too odd")
    with pytest.raises(BackendUnavailableError, match="too odd"):
        build_backend("cpu", part.model, part.codec)


def test_auto_falls_back_without_a_library(part: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    part.cpu_backend()  # or skip
    assert build_backend("auto", part.model, part.codec).name == "cpu"
    monkeypatch.setattr(cpu, "find_refusal", lambda: "no compiler")
    assert build_backend("auto", part.model, part.codec).name == "eager"
    with pytest.raises(BackendUnavailableError, match="no compiler"):
        build_backend("cpu", part.model, part.codec)
    assert {entry.name: why for entry, why in backends.survey(torch.device("cpu"))}["cpu"]


def test_model_in_bfloat16_runs_with_the_eager_backend_by_default(part: Tiny) -> None:
    part.cpu_backend()  # or skip
    model = copy.deepcopy(part.model).bfloat16()
    assert build_backend("auto", model, part.codec).name == "eager"
    assert build_backend("cpu", model, part.codec).name == "cpu"
