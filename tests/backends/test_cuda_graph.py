"""The CUDA graph backend without capture, on a CPU: the same codes as the reference."""

from __future__ import annotations

import copy
import gc
import logging
import random
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support.official_calls import OfficialItem, official_items
from tests.support.slots import NUM_FRAMES, SteppedBackend, make_prompt, params, speak
from tests.support.tiny import TINY_NAMES, Tiny
from vivace.backends import survey
from vivace.backends.base import FollowedStep, Frames, Samples
from vivace.backends.cuda_graph import backend as backend_module
from vivace.backends.cuda_graph import prefill as prefill_module
from vivace.backends.cuda_graph import stepper as stepper_module
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.buckets import CODEC_FRAMES, fit, spans, split_frames
from vivace.backends.cuda_graph.codec import graphs as codec_graphs
from vivace.backends.cuda_graph.codec.graphs import pick_decoder
from vivace.backends.cuda_graph.codec.plain import PlainDecoder
from vivace.backends.cuda_graph.graphs import GraphPool
from vivace.backends.cuda_graph.layers import selection
from vivace.backends.cuda_graph.layers.frame import DrawKind
from vivace.backends.cuda_graph.layers.plain import PlainLayers
from vivace.backends.cuda_graph.layers.selection import pick_layers
from vivace.backends.cuda_graph.slots.memory import pool_size
from vivace.backends.cuda_graph.slots.table import Number
from vivace.backends.cuda_graph.step import LOOKAHEAD, ShortStep
from vivace.backends.cuda_graph.stepper import QueuedFrames
from vivace.backends.kernel_cache import Comparison
from vivace.errors import BackendError, BackendUnavailableError
from vivace.prompt import Prompt, build_prompt
from vivace.speech import SamplingParams

SETTINGS: tuple[dict[str, float], ...] = (
    {},
    {"temperature": 0},
    {"temperature": 0, "predictor_temperature": 0.9},
    {"temperature": 1.7, "top_k": 0, "repetition_penalty": 1.4},
    {"top_p": 0.6, "predictor_top_p": 0.8, "top_k": 0},
    {"top_k": 3, "predictor_top_k": 1, "repetition_penalty": 0.8},
)


@pytest.fixture(scope="module")
def part(few_codebooks: Tiny) -> Tiny:
    return few_codebooks


@pytest.fixture(scope="module")
def stopping(tiny: Callable[[str], Tiny]) -> tuple[Tiny, OfficialItem]:
    """A short official call of more than two groups of frames that ends by itself."""
    items = [item for item in official_items("custom_voice") if item.raw["finish"] == "eos"]
    long = [item for item in items if len(item.codes) > 2 * LOOKAHEAD]
    return tiny("custom_voice"), min(long, key=lambda item: len(item.codes))


def graph_backend(part: Tiny, max_streams: int = 8, max_frames: int = 320) -> CudaGraphBackend:
    return CudaGraphBackend(part.model, part.codec, max_streams=max_streams, max_frames=max_frames)


class StubStream:
    """Records at each wait whether the backend's memory still exists."""

    def __init__(self, backend: CudaGraphBackend) -> None:
        self._keys = weakref.ref(backend._table.keys)
        self.found = list[bool]()

    def synchronize(self) -> None:
        self.found.append(self._keys() is not None)
        raise RuntimeError("the device has failed")


def test_end_of_backend_waits_for_queued_work_before_its_memory_is_freed(part: Tiny) -> None:
    backend = graph_backend(part)
    streams: list[Any] = [StubStream(backend) for _ in range(2)]
    backend.graphs.stream, backend.codec_graphs.stream = streams
    del backend
    gc.collect()
    assert [stream.found for stream in streams] == [[True], [True]]
    assert streams[0]._keys() is None


def graph_keys(graphs: GraphPool) -> list[tuple[Any, ...]]:
    """Keys of the captured graphs, in the order of their capture."""
    return [key for key in graphs._ready if isinstance(key, tuple)]


def speak_and_render(
    backend: SteppedBackend, prompt: Prompt, sampling: SamplingParams, sizes: Sequence[int]
) -> NDArray[np.float32]:
    slot = backend.admit(prompt, sampling)
    pieces = [backend.render([slot], backend.step([slot], size))[0] for size in sizes]
    backend.release(slot)
    return np.concatenate(pieces)


# --- Codes ------------------------------------------------------------------------------------


QUICK = ("custom_voice_projected", "base")  # between them every kind of prompt
NUM_COMPARED = 9  # frames, two steps and one frame


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(
    "model",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in TINY_NAMES],
)
def test_greedy_codes_equal_official_ones_as_slots_join_and_leave(
    tiny: Callable[[str], Tiny], model: str
) -> None:
    part = tiny(model)
    items = [item for item in official_items(model) if len(item.codes) <= 64][::4]
    backend = graph_backend(part, max_streams=3)
    waiting, running = list(range(len(items))), dict[int, int]()
    codes: dict[int, list[NDArray[np.int64]]] = {i: [] for i in waiting}
    while waiting or running:
        if waiting and len(running) < 3:
            index = waiting.pop(0)
            sampling = items[index].sampling.replace(max_frames=NUM_COMPARED)
            running[index] = backend.admit(items[index].prompt(part), sampling)
        frames = backend.step(list(running.values()), 4)
        for row, index in enumerate(list(running)):
            codes[index].append(frames.of(row))
            if frames.status[row] != "running":
                backend.release(running.pop(index))
    for index, item in enumerate(items):
        assert np.array_equal(np.concatenate(codes[index]), item.codes[:NUM_COMPARED]), item.call


@pytest.mark.ci
def test_mixed_sampling_settings_equal_reference_draws(part: Tiny) -> None:
    backend, eager = graph_backend(part), part.backend()
    prompts = [make_prompt(part, text) for text in ("Hay.", "More hay.", "A needle!")] * 2
    settings = [params(2**40 + i, **changes) for i, changes in enumerate(SETTINGS)]
    slots = [backend.admit(*pair) for pair in zip(prompts, settings, strict=True)]
    steps = [backend.step(slots, size) for size in (1, 5, 18)]
    for row, pair in enumerate(zip(prompts, settings, strict=True)):
        found = np.concatenate([step.of(row) for step in steps])
        assert np.array_equal(found, speak(eager, *pair)), SETTINGS[row]


def test_graph_of_several_frames_equals_single_frames(
    part: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlainLayers, "frames_per_graph", 4)
    backend, prompt, sampling = graph_backend(part), make_prompt(part, "Hay."), params(5)
    slot = backend.admit(prompt, sampling)
    steps = [backend.step([slot], size).of(0) for size in (1, 4, 11, 8)]
    assert np.array_equal(np.concatenate(steps), speak(part.backend(), prompt, sampling))
    sizes = {key[-1] for key in backend.graphs._ready if key[0] == "frame"}  # type: ignore[index]
    assert sizes == {1, 4}


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("plan", range(2))
def test_slot_is_independent_of_batch_neighbours(part: Tiny, plan: int) -> None:
    backend, choice = graph_backend(part), random.Random(plan)
    prompt = make_prompt(part, "The needle in the haystack.")
    alone = speak(part.backend(), prompt, params(plan))
    slot, others = backend.admit(prompt, params(plan)), list[int]()
    pieces: list[NDArray[np.int64]] = []
    while sum(map(len, pieces)) < NUM_FRAMES:
        while len(others) < choice.randint(0, 5):
            sampling = params(choice.randrange(2**40), top_p=choice.choice([0.5, 1.0]))
            others.append(backend.admit(make_prompt(part, "Hay."), sampling))
        order = choice.sample([slot, *others], 1 + len(others))
        frames = backend.step(order, choice.randint(1, 7))
        pieces.append(frames.of(order.index(slot)))
        for other, status in zip(order, frames.status, strict=True):
            if other != slot and (status != "running" or choice.random() < 0.3):
                backend.release(other)
                others.remove(other)
    assert np.array_equal(np.concatenate(pieces), alone)


def test_reused_row_has_no_state_of_previous_slot(part: Tiny) -> None:
    backend = graph_backend(part, max_streams=1)
    prompt = make_prompt(part, "Afresh.")
    first = speak_and_render(backend, prompt, params(3), [2, 2])
    speak_and_render(backend, make_prompt(part, "Something else, and longer."), params(4), [5])
    assert np.array_equal(speak_and_render(backend, prompt, params(3), [2, 2]), first)


def test_slot_can_be_released_during_its_step(part: Tiny) -> None:
    backend = graph_backend(part, max_streams=1)
    slot = backend.admit(make_prompt(part, "Gone before it was heard."), params(4))
    wait = backend.start_step([slot], 16)
    backend.release(slot)
    prompt = make_prompt(part, "In the same row.")
    slot = backend.admit(prompt, params(3))
    wait()
    assert np.array_equal(backend.step([slot], 24).of(0), speak(part.backend(), prompt, params(3)))


def test_interrupted_wait_can_be_repeated(part: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = graph_backend(part)
    prompt = make_prompt(part, "Where were we?")
    slot = backend.admit(prompt, params(3))
    queue, interruptions = backend._queue, [False, False, True, False, True]

    def interrupted_queue(*args: Any) -> QueuedFrames:
        queued = queue(*args)

        def interrupt_and_read() -> Frames:
            if interruptions and interruptions.pop():
                raise KeyboardInterrupt
            return queued.read()

        return replace(queued, read=interrupt_and_read)

    monkeypatch.setattr(backend, "_queue", interrupted_queue)
    wait = backend.start_step([slot], 24)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            wait()
    assert np.array_equal(wait().of(0), speak(part.backend(), prompt, params(3)))


def test_interrupt_during_step_loses_and_repeats_no_frame(
    part: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupts after each queued group, then during the update of each slot."""
    prompt = make_prompt(part, "Where were we?")
    expected = speak(part.backend(), prompt, params(3))
    backend = graph_backend(part)
    slots = [backend.admit(prompt, params(3)) for _ in range(2)]
    queue, settle, is_due = backend._queue, stepper_module._settle, [True]

    def interrupted_queue(*args: Any) -> Any:
        wait = queue(*args)
        if is_due and is_due.pop():
            raise KeyboardInterrupt
        return wait

    def interrupted_settle(*args: Any) -> Any:
        result = settle(*args)
        if is_due and is_due.pop():
            raise KeyboardInterrupt
        return result

    wait = backend.start_step(slots, 12)
    made: list[NDArray[np.int64]] = []
    for name, owner, spy in (
        ("_queue", wait, interrupted_queue),
        ("_settle", stepper_module, interrupted_settle),
    ):
        monkeypatch.setattr(owner, name, spy)
        is_due[:] = [True]
        with pytest.raises(KeyboardInterrupt):
            wait()
        made.append(wait().of(1))
        wait = backend.start_step(slots, 12)
    made.append(wait().of(1))
    found = np.concatenate(made)[: len(expected)]
    assert np.array_equal(found, expected[: len(found)])
    assert len(found) == len(expected)


@pytest.mark.ci
def test_span_covers_all_keys_of_a_step(part: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many spans, a step that counts one frame too few would omit keys."""
    monkeypatch.setattr(stepper_module, "spans", lambda count: (*range(1, count), count))
    prompts = [make_prompt(part, text) for text in ("Where were we?", "Here.")]
    expected = [speak(part.backend(), prompt, params(3)) for prompt in prompts]
    backend = graph_backend(part)
    slots = [backend.admit(prompt, params(3)) for prompt in prompts]
    made = [[frames.of(row) for row in range(2)] for frames in (
        backend.step(slots, size) for size in (1, 7, 16)
    )]  # fmt: skip
    for row, codes in enumerate(expected):
        assert np.array_equal(np.concatenate([part[row] for part in made]), codes)


@pytest.mark.ci
def test_more_slots_than_largest_graph_are_stepped_in_parts(
    part: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stepper.BATCHES", "codec.graphs.BATCHES", "backend.BATCHES"):
        monkeypatch.setattr(f"vivace.backends.cuda_graph.{name}", (1, 2))
    backend = graph_backend(part)
    prompt = make_prompt(part, "Many.")
    slots = [backend.admit(prompt, params(seed)) for seed in range(3)]
    frames = backend.step(slots, 3)
    samples = backend.render(slots, frames)
    eager = part.backend()
    for row in range(3):
        assert np.array_equal(
            frames.of(row), speak(eager, prompt, params(row, max_frames=3, min_frames=3))
        )
        alone = speak_and_render(eager, prompt, params(row), [3])
        assert np.allclose(samples[row], alone, rtol=0, atol=5e-5)


def test_codec_pass_is_limited_to_its_memory(part: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five slots with six frames each: no pass exceeds four frames, and the audio is the same."""
    for name in ("buckets.CODEC_PASS", "codec.graphs.CODEC_PASS"):
        monkeypatch.setattr(f"vivace.backends.cuda_graph.{name}", 4)
    backend, prompt = graph_backend(part), make_prompt(part, "Many.")
    slots = [backend.admit(prompt, params(row % 2)) for row in range(5)]
    frames = backend.step(slots, 6)
    samples = backend.render(slots, frames)
    passes = {key[1:] for key in graph_keys(backend.codec_graphs)}
    assert passes == {(1, 4), (2, 2), (1, 2)}
    alone = [speak_and_render(part.backend(), prompt, params(seed), [6]) for seed in range(2)]
    for row in range(5):
        assert np.allclose(samples[row], alone[row % 2], rtol=0, atol=5e-5)


def test_first_frame_is_rendered_exactly_once(part: Tiny) -> None:
    """The codec is queued with the frame, before `start_render`."""
    backend, prompt = graph_backend(part), make_prompt(part, "First.")
    expected = speak_and_render(part.backend(), prompt, params(5), [1, 3])
    slots = [backend.admit(prompt, params(5)) for _ in range(2)]
    steps = [backend.step(slots, 1), backend.step(slots, 3)]
    apart = [backend.render(slots[:1], step.take([0]))[0] for step in steps]
    both = Frames(np.concatenate([step.codes for step in steps], axis=1), (4, 4), steps[1].status)
    together = backend.render(slots[1:], both.take([1]))[0]
    assert np.allclose(np.concatenate(apart), expected, rtol=0, atol=5e-5)
    assert np.allclose(together, expected, rtol=0, atol=5e-5)


def test_slot_that_ends_at_first_frame_has_no_audio(part: Tiny) -> None:
    backend, prompt = graph_backend(part), make_prompt(part, "None.")
    slot = backend.admit(prompt, params(5))
    frames = backend.step([slot], 1)
    ended = Frames(frames.codes[:, :0], (0,), ("stop",))
    assert not len(backend.render([slot], ended)[0])
    assert not backend._slots[slot].ahead


def test_step_queues_no_frames_beyond_the_limits_of_its_slots(
    part: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, prompt = graph_backend(part), make_prompt(part, "Six.")
    queue, sizes = backend._queue, list[int]()

    def counted(live: Any, num_frames: int) -> Any:
        sizes.append(num_frames)
        return queue(live, num_frames)

    monkeypatch.setattr(backend, "_queue", counted)
    limits = (6, 3)
    slots = [backend.admit(prompt, params(5, max_frames=n, min_frames=n)) for n in limits]
    frames = backend.step(slots, 16)
    assert (frames.lengths, frames.status) == (limits, ("length", "length"))
    assert sum(sizes) == 6
    sizes.clear()
    assert backend.step(slots[1:], 16).lengths == (0,)
    assert sizes == [1]


@pytest.mark.ci
def test_codec_is_queued_behind_the_frames_of_its_step(part: Tiny) -> None:
    """The audio is the same for all step lengths."""
    prompt = make_prompt(part, "Ahead of the host.")
    settings = [params(seed, max_frames=17, min_frames=17) for seed in (5, 6)]
    expected = [speak_and_render(part.backend(), prompt, each, [17]) for each in settings]
    for sizes in ([1, 2, 4], [3, 8], [16, 1]):
        backend, sounds = graph_backend(part), []
        slots = [backend.admit(prompt, each) for each in settings]
        for size in sizes:
            frames = backend.step(slots, size)
            is_ahead = [bool(backend._slots[slot].ahead) for slot in slots]
            assert is_ahead == [size in CODEC_FRAMES] * 2
            sounds.append(backend.render(slots, frames))
        for row in range(2):
            made = np.concatenate([sound[row] for sound in sounds])
            assert len(made) == 1920 * sum(sizes)
            assert np.allclose(made, expected[row][: len(made)], rtol=0, atol=5e-5)


def test_slot_that_ends_within_a_step_keeps_audio_to_its_end(part: Tiny) -> None:
    prompt, short = make_prompt(part, "Short."), params(5, max_frames=6, min_frames=1)
    expected = speak_and_render(part.backend(), prompt, short, [6])
    backend = graph_backend(part)
    slots = [backend.admit(prompt, short), backend.admit(prompt, params(6))]
    sounds = [backend.render(slots, backend.step(slots, 4)) for _ in range(2)]
    made = np.concatenate([sound[0] for sound in sounds])
    assert len(made) == len(expected)
    assert np.allclose(made, expected, rtol=0, atol=5e-5)


def test_codec_is_not_queued_ahead_for_slot_that_may_pause(part: Tiny) -> None:
    """One live text ends in the middle of a step, another does not."""
    backend, ids = graph_backend(part), part.tokenizer.encode("abcd")
    slot = backend.admit(make_prompt(part, "a", is_complete=False), params(9))
    other = backend.admit(make_prompt(part, "Hay."), params(1))
    sounds, made = [], []
    for text in (None, ids[1:2], ids[2:], None):
        if text is not None:
            backend.extend(slot, text, is_last=len(text) > 1)
        frames = backend.step([slot, other], 4)
        made.append(frames.of(0))
        sounds.append(backend.render([slot, other], frames)[0])
    codes = np.concatenate(made)
    whole = params(9, max_frames=len(codes))
    expected = speak_and_render(part.backend(), make_prompt(part, "abcd"), whole, [len(codes)])
    assert [len(part) for part in made[:2]] == [1, 1]
    assert np.allclose(np.concatenate(sounds), expected, rtol=0, atol=5e-5)


def test_prompt_longer_than_any_graph_is_prefilled_without_graph(
    part: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_module, "PROMPT_ROWS", (4, 8))
    prompt = make_prompt(part, "Long enough.")
    assert np.array_equal(
        speak(graph_backend(part), prompt, params(1)), speak(part.backend(), prompt, params(1))
    )


# --- Text, ends and failures ------------------------------------------------------------------


def test_waiting_slot_resumes_after_new_text(part: Tiny) -> None:
    backend = graph_backend(part)
    ids = part.tokenizer.encode("abcd")
    slot = backend.admit(make_prompt(part, "a", is_complete=False), params(9))
    other = backend.admit(make_prompt(part, "Hay."), params(1))
    first = backend.step([slot, other], 5)
    assert (first.lengths, first.status) == ((1, 5), ("waiting", "running"))
    second = backend.step([slot], 5)
    assert (second.lengths, second.status) == ((0,), ("waiting",))
    backend.extend(slot, ids[1:], is_last=True)
    third = backend.step([slot], NUM_FRAMES)
    whole = speak(part.backend(), make_prompt(part, "abcd"), params(9))
    assert np.array_equal(np.concatenate([first.of(0), third.of(0)]), whole)
    with pytest.raises(BackendError, match="complete"):
        backend.extend(slot, [1], is_last=False)


def test_text_beyond_the_last_frame_is_dropped(part: Tiny) -> None:
    backend = graph_backend(part, max_frames=8)
    slot = backend.admit(make_prompt(part, "a", is_complete=False), params(9))
    backend.extend(slot, [1] * 5, is_last=False)
    backend.extend(slot, [1] * 5, is_last=True)
    assert backend.step([slot], 20).lengths == (8,)


def test_slot_with_non_finite_logits_fails_alone(part: Tiny) -> None:
    backend, prompt = graph_backend(part), make_prompt(part, "Steady.")
    broken, healthy = (backend.admit(prompt, params(seed)) for seed in (4, 3))
    with torch.inference_mode():
        backend._table.hidden[backend._slots[broken].row] = torch.nan
    frames = backend.step([broken, healthy], NUM_FRAMES)
    assert (frames.lengths[0], frames.status) == (0, ("failed", "length"))
    assert np.array_equal(frames.of(1), speak(part.backend(), prompt, params(3)))
    assert backend.step([broken], 1).status == ("failed",)


def test_stop_and_length_have_different_status(stopping: tuple[Tiny, OfficialItem]) -> None:
    part, item = stopping
    backend = graph_backend(part)
    slots = [
        backend.admit(item.prompt(part), item.sampling),
        backend.admit(make_prompt(part, "Bounded."), params(1, max_frames=5, min_frames=5)),
    ]
    frames = backend.step(slots, len(item.codes) + 20)
    assert frames.status == ("stop", "length")
    assert frames.lengths == (len(item.codes), 5)
    assert backend.step(slots, 3).lengths == (0, 0)
    assert backend.step([], 3).codes.shape == (0, 0, 16)


def test_step_does_not_wait_for_frames_queued_behind_the_end(
    stopping: tuple[Tiny, OfficialItem], monkeypatch: pytest.MonkeyPatch
) -> None:
    part, item = stopping
    backend = graph_backend(part)
    queue, num_queued, num_read = backend._queue, [0], [0]

    def counted_queue(live: Any, num_frames: int) -> QueuedFrames:
        queued = queue(live, num_frames)
        num_queued[0] += 1

        def counted_read() -> Frames:
            num_read[0] += 1
            return queued.read()

        return replace(queued, read=counted_read)

    monkeypatch.setattr(backend, "_queue", counted_queue)
    slot = backend.admit(item.prompt(part), item.sampling)
    wait = backend.start_step([slot], len(item.codes) + 20)
    num_groups = len(item.codes) // LOOKAHEAD + 1  # the end of speech is one more frame
    for _ in range(2):  # a repeated call waits for no more frames
        frames = wait()
        assert frames.status == ("stop",)
        assert np.array_equal(frames.of(0), item.codes)
        assert (num_read[0], num_queued[0]) == (num_groups, num_groups + 1)
    backend.release(slot)
    prompt = make_prompt(part, "In the same row.")
    slot = backend.admit(prompt, params(3))
    assert np.array_equal(backend.step([slot], 24).of(0), speak(part.backend(), prompt, params(3)))


@pytest.mark.parametrize("num_frames", [1, 4, ShortStep.MAX_FRAMES])
def test_step_may_be_followed_before_its_frames_are_there(part: Tiny, num_frames: int) -> None:
    """Frames and samples are those of one step after another, also of a slot that ends first."""
    prompts = [make_prompt(part, text) for text in ("One.", "Two, with a longer text.")]
    given = [(prompts[0], params(3, max_frames=5)), (prompts[1], params(4, max_frames=12))]
    backend = graph_backend(part)
    slots = [backend.admit(*one) for one in given]
    steps = [backend.start_step(slots, num_frames)]
    found: tuple[list[NDArray[np.int64]], ...] = [], []
    sounds: tuple[list[Samples], ...] = [], []
    for _ in range(-(-12 // num_frames)):
        steps.append(backend.start_step(slots, num_frames))
        frames = steps.pop(0)()
        rendered = backend.start_render(slots, frames)()
        for row in range(2):
            found[row].append(frames.of(row))
            sounds[row].append(rendered.samples[row])
    assert steps.pop()().lengths == (0, 0)
    for row, one in enumerate(given):
        slot = backend.admit(*one)
        expected = backend.step([slot], one[1].max_frames)
        assert np.array_equal(np.concatenate(found[row]), expected.of(0))
        [samples] = backend.render([slot], expected)
        assert np.allclose(np.concatenate(sounds[row]), samples, rtol=0, atol=5e-5)
        backend.release(slot)


def test_long_step_may_not_be_followed(part: Tiny) -> None:
    """Two of them would not fit in the ring of codes."""
    backend = graph_backend(part)
    slot = backend.admit(make_prompt(part, "Long."), params(3, max_frames=40))
    assert isinstance(backend.start_step([slot], ShortStep.MAX_FRAMES), FollowedStep)
    assert not isinstance(backend.start_step([slot], ShortStep.MAX_FRAMES + 1), FollowedStep)


# --- Samples ----------------------------------------------------------------------------------


def test_samples_equal_reference_for_any_chunks(tiny: Callable[[str], Tiny]) -> None:
    part = tiny("base")
    item = next(i for i in official_items("base") if i.call.startswith("icl_text_longer"))
    sampling = params(5, max_frames=11, min_frames=11)
    whole = speak_and_render(part.backend(), item.prompt(part), sampling, [11])
    pieces = speak_and_render(graph_backend(part), item.prompt(part), sampling, [1, 2, 3, 5])
    assert np.allclose(pieces, whole, rtol=0, atol=5e-5)


@pytest.mark.ci
def test_ragged_batch_render_equals_single_slots(part: Tiny) -> None:
    backend, prompt = graph_backend(part), make_prompt(part, "Ragged.")
    limits = (3, 7, NUM_FRAMES, 1)
    slots = [
        backend.admit(prompt, params(seed, min_frames=0, max_frames=limit))
        for seed, limit in enumerate(limits)
    ]
    samples = backend.render(slots, backend.step(slots, NUM_FRAMES))
    for seed, (limit, found) in enumerate(zip(limits, samples, strict=True)):
        alone = speak_and_render(part.backend(), prompt, params(seed), [limit])
        assert np.allclose(found, alone, rtol=0, atol=5e-5)


# --- Slots, memory and graphs -----------------------------------------------------------------


def test_released_slots_can_be_admitted_again(part: Tiny) -> None:
    backend, prompt = graph_backend(part, max_streams=2), make_prompt(part, "Full.")
    slots = [backend.admit(prompt, params(seed)) for seed in (1, 2)]
    with pytest.raises(BackendError, match="max_streams"):
        backend.admit(prompt, params(3))
    backend.release(slots[0])
    backend.admit(prompt, params(3))
    for call in (
        lambda: backend.step([slots[0]], 1),
        lambda: backend.extend(slots[0], [], True),
        lambda: backend.release(slots[0]),
    ):
        with pytest.raises(BackendError, match="released"):
            call()


def test_admission_without_seed_or_positions_fails(part: Tiny) -> None:
    backend = graph_backend(part)
    with pytest.raises(BackendError, match="seed"):
        backend.admit(make_prompt(part, "Hm."), SamplingParams())
    limit = backend_module.PROMPT_POSITIONS + backend.max_frames
    config = part.checkpoint.config
    with pytest.raises(BackendError, match="rows"):
        backend.admit(
            build_prompt(config, [1] * limit, role_ids=[1, 2, 3], layout="whole"), params(1)
        )


def test_memory_is_reported_and_out_of_memory_names_the_settings(
    part: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = graph_backend(part, max_streams=3), graph_backend(part, max_streams=6)
    page_bytes = few.memory()["keys and values"] / (few._pool.size + 1)
    assert many.memory()["keys and values"] == page_bytes * (many._pool.size + 1)

    def refuse(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("out of memory")

    monkeypatch.setattr(backend_module, "SlotTable", refuse)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**30, 2**31))
    with pytest.raises(BackendError, match=r"lower max_streams or max_frames"):
        graph_backend(part)


def test_pool_size_holds_usual_texts_and_one_longest_within_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu, cuda, size = torch.device("cpu"), torch.device("cuda"), 7 * 2**20
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10 * 2**30, 80 * 2**30))
    assert [pool_size(n, 3072, size, cpu) for n in (1, 8, 256)] == [48, 104, 1840]
    assert [pool_size(n, 3072, size, cuda) for n in (1, 8, 256)] == [48, 104, 1243]
    assert pool_size(8, 3072, 2**40, cuda) == 48  # less would refuse some texts forever
    assert pool_size(8, 128, size, cpu) == 16  # all that slots can hold


def test_warmup_changes_no_slot(part: Tiny) -> None:
    backend, prompt = graph_backend(part, max_streams=2), make_prompt(part, "Warm.")
    slot = backend.admit(prompt, params(1))
    before = backend.step([slot], 4).of(0)
    backend.warmup((1, 2))
    after = backend.step([slot], NUM_FRAMES).of(0)
    expected = speak(part.backend(), prompt, params(1))
    assert np.array_equal(np.concatenate([before, after]), expected)


def test_warmup_captures_the_largest_first(part: Tiny) -> None:
    backend = graph_backend(part)
    backend.warmup((1, 2, 4, 8), codec_frames=(1, 16))
    codec = [batch * frames for _, batch, frames in graph_keys(backend.codec_graphs)]
    assert codec == sorted(codec, reverse=True)
    for kind in ("prefill", "frame"):
        sizes = [key[1] for key in graph_keys(backend.graphs) if key[0] == kind]
        assert sizes == sorted(sizes, reverse=True)


def test_no_request_needs_a_graph_after_warmup(part: Tiny) -> None:
    backend = graph_backend(part, max_streams=3)
    backend.warmup()
    pools = (backend.graphs, backend.codec_graphs)
    before = [set(graph_keys(pool)) for pool in pools]
    few = [params(1, max_frames=21), params(2, max_frames=21, top_p=0.5)]
    kept = params(3, top_k=40)
    for sampling, sizes in ((few, (16, 5)), ([*few, kept], (2, 1)), ([kept], (1, 7))):
        prompts = [make_prompt(part, "Warm. " * 40 * number) for number in range(1, 4)]
        slots = [backend.admit(*pair) for pair in zip(prompts, sampling, strict=False)]
        for num_frames in sizes:
            backend.render(slots, backend.step(slots, num_frames))
        for slot in slots:
            backend.release(slot)
    assert [set(graph_keys(pool)) - known for pool, known in zip(pools, before, strict=True)] == [
        set(),
        set(),
    ]


def test_noted_work_is_compiled_together_and_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []

    def compile_all(works: Sequence[Callable[[], object]]) -> None:
        compiled.append(len(works))
        for work in works:
            work()

    pool = GraphPool(torch.device("cpu"), compile=compile_all)
    monkeypatch.setattr(pool, "_is_capturing", True)
    monkeypatch.setattr(pool, "_compile", compile_all)
    monkeypatch.setattr(pool, "_capture", lambda work: lambda: done.append("replay"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    done: list[str] = []

    def get(key: str) -> Callable[[], object]:
        return pool.get(key, lambda: done.append(key), lambda: done.append("park"))

    with pool.noting() as noted:
        get("a")()
        get("b")
        get("a")
    assert done == []
    assert len(pool) == 0
    compile_all(noted)
    assert compiled == [2]
    assert done == ["park", "a", "park", "b"]
    get("a")()
    assert compiled == [2]  # it was noted
    get("c")()
    assert compiled == [2, 1]
    get("c")()
    assert done[4:] == ["park", "a", "replay", *["park", "c"] * 2, "replay", "replay"]


def test_work_that_cannot_be_captured_runs_without_a_graph_and_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = GraphPool(torch.device("cpu"))

    def refuse(work: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore words")

    monkeypatch.setattr(pool, "_is_capturing", True)
    monkeypatch.setattr(pool, "_capture", refuse)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    done: list[str] = []
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            pool.get(("frame", 1), lambda: done.append("work"), lambda: done.append("park"))()
    assert done == ["park", "work", "work", "work", "work"]
    assert len(caplog.records) == 1
    assert pool.fallbacks == {"('frame', 1)": "operation not permitted when stream is capturing"}


def test_gpu_backends_refuse_a_cpu(part: Tiny) -> None:
    refusals = {entry.name: refusal for entry, refusal in survey(torch.device("cpu"))}
    assert "NVIDIA GPU" in (refusals["cuda_graph"] or "")
    assert graph_backend(part).layers == "plain"
    for name in ("fused", "quantum"):
        with pytest.raises(BackendUnavailableError):
            CudaGraphBackend(part.model, part.codec, layers=name)
    with pytest.raises(BackendUnavailableError, match="split"):
        CudaGraphBackend(part.model, part.codec, codec_precision="split")


def test_failing_kernels_fall_back_to_plain_layers(
    part: Tiny, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(selection, "fused_refusal", lambda _: None)
    with caplog.at_level(logging.WARNING):
        assert graph_backend(part).layers == "plain"  # no kernel runs on a CPU
    assert "fused kernels failed" in caplog.text
    with pytest.raises(BackendUnavailableError, match="do not work"):
        CudaGraphBackend(part.model, part.codec, max_streams=1, layers="fused")


def test_weights_keep_their_addresses_once_the_layers_are_built(
    part: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The persistent kernels store addresses of weights."""
    seen: dict[str, int] = {}

    def spy(name: str, model: Any, table: Any) -> Any:
        seen.update((key, each.data_ptr()) for key, each in model.named_parameters())
        return pick_layers(name, model, table)

    monkeypatch.setattr(backend_module, "pick_layers", spy)
    backend = graph_backend(part)
    assert seen == {key: each.data_ptr() for key, each in backend.model.named_parameters()}


def test_facts_name_layers_memory_and_work_without_a_graph(part: Tiny) -> None:
    backend = graph_backend(part, max_streams=2)
    backend.graphs.fallbacks["frame 1"] = "no memory"
    facts = backend.facts()
    assert facts["layers"] == "plain, up to 2 streams of 320 frames"
    assert "keys and values" in facts["memory"]
    assert facts["without a graph: frame 1"] == "no memory"


def test_failing_or_inexact_codec_kernels_fall_back_to_pytorch(
    part: Tiny, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(codec_graphs, "split_refusal", lambda _: None)
    fused = types.ModuleType("fused")
    monkeypatch.setitem(sys.modules, "vivace.backends.cuda_graph.codec.fused", fused)

    class Loud(PlainDecoder):
        def decode(self, rows: Tensor, codes: Tensor) -> Tensor:
            return 1.01 * super().decode(rows, codes)

    made: list[bool] = []

    def maker(kind: type[PlainDecoder]) -> Callable[..., PlainDecoder]:
        def make(codec: Any, num_rows: int, *, is_half: bool) -> PlainDecoder:
            made.append(is_half)
            return kind(codec, num_rows)

        return make

    with torch.inference_mode():
        fused.FusedDecoder = maker(PlainDecoder)  # type: ignore[attr-defined]
        pick_decoder("split", part.codec, 3)
        pick_decoder("half", part.codec, 3)
        assert made == [False, True]
        fused.FusedDecoder = maker(Loud)  # type: ignore[attr-defined]
        assert type(pick_decoder("half", part.codec, 3)) is Loud  # 40 dB: less exact, as allowed
        with caplog.at_level(logging.WARNING):
            assert type(pick_decoder("auto", part.codec, 3)) is PlainDecoder
        assert "off by" in caplog.text
        assert len(caplog.records) == 1
        described = graph_backend(part).facts()["codec"]
        assert described.startswith("plain PyTorch, because they do not work: ")
        with pytest.raises(BackendUnavailableError, match="do not work"):
            pick_decoder("split", part.codec, 3)


def test_codec_kernels_are_compared_again_for_other_weights(
    part: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []

    class Recorded(Comparison):
        def __init__(self, parts: Sequence[str], device: torch.device) -> None:
            super().__init__(parts, device)
            keys.append(tuple(parts))

    fused = types.ModuleType("fused")
    fused.FusedDecoder = lambda codec, num_rows, is_half: PlainDecoder(codec, num_rows)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vivace.backends.cuda_graph.codec.fused", fused)
    monkeypatch.setattr(codec_graphs, "split_refusal", lambda _: None)
    monkeypatch.setattr(codec_graphs, "Comparison", Recorded)
    other = copy.deepcopy(part.codec)
    with torch.inference_mode():
        next(other.decoder.parameters()).mul_(2)
        for codec in (part.codec, part.codec, other):
            pick_decoder("half", codec, 3)
    assert keys[0] == keys[1] != keys[2]


# --- Sizes ------------------------------------------------------------------------------------


def test_bucket_sizes_are_large_enough() -> None:
    assert [fit(n, (1, 2, 4)) for n in (1, 3, 4, 5)] == [1, 4, 4, None]
    assert spans(3072) == (256, 1024, 3072)
    assert spans(200) == (200,)
    for num_frames in range(70):
        parts = split_frames(num_frames)
        assert sum(parts) == num_frames
        assert set(parts) <= set(CODEC_FRAMES)


def test_slots_with_equal_draw_kind_share_a_graph() -> None:
    usual = DrawKind.of([SamplingParams(), SamplingParams(temperature=0.1, top_k=7)])
    assert usual == DrawKind(64, has_top_p=False)
    assert DrawKind.of([SamplingParams(), SamplingParams(top_k=0)]).num_ranked is None
    assert DrawKind.of([SamplingParams(predictor_top_p=0.9)]).has_top_p


def test_slot_numbers_match_its_sampling(part: Tiny) -> None:
    backend = graph_backend(part)
    slot = backend.admit(make_prompt(part, "Numbers."), params(2**63 - 1, top_k=0))
    numbers = backend._table.numbers[:, backend._slots[slot].row].tolist()
    vocabulary = part.checkpoint.config.talker_config.vocab_size
    assert numbers[Number.SEED] == 2**63 - 1
    assert numbers[Number.LAST] == vocabulary - 1
    assert numbers[Number.MAX_FRAMES] == NUM_FRAMES
