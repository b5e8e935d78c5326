"""The CUDA graph backend on a GPU: codes equal the reference in any batch."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from threading import Thread

import numpy as np
import pytest
import torch

from tests.support.official_calls import official_items
from tests.support.slots import assert_official_codes_in_a_batch, speak
from tests.support.tiny import TINY_NAMES, Tiny
from vivace.backends.cuda_graph import prefill as prefill_module
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.slots.staging import HostCopies
from vivace.backends.eager import EagerBackend
from vivace.prompt import build_prompt
from vivace.speech import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SETTINGS: tuple[dict[str, float], ...] = (
    {},
    {"temperature": 0},
    {"temperature": 1.7, "top_k": 0, "repetition_penalty": 1.4},
    {"top_p": 0.6, "predictor_top_p": 0.8, "top_k": 0},
    {"top_k": 3, "predictor_top_k": 1, "repetition_penalty": 0.8},
)


def load(part: Tiny, dtype: torch.dtype, **options: object) -> CudaGraphBackend:
    cuda = torch.device("cuda")
    model, codec = part.checkpoint.load_model(cuda, dtype), part.checkpoint.load_codec(cuda)
    settings = {"max_streams": 16, "max_frames": 320, **options}
    return CudaGraphBackend(model, codec, **settings)  # type: ignore[arg-type]


def params(seed: int, **changes: float) -> SamplingParams:
    return SamplingParams(seed=seed, max_frames=20, min_frames=20).replace(**changes)


@pytest.mark.parametrize("model", TINY_NAMES)
def test_greedy_float32_codes_in_a_batch_equal_official_ones(
    tiny: Callable[[str], Tiny], model: str
) -> None:
    part = tiny(model)
    backend = load(part, torch.float32)
    assert_official_codes_in_a_batch(backend, part, model)
    assert backend.fallbacks == {}
    assert len(backend.graphs) > 0


@pytest.mark.parametrize("model", TINY_NAMES)
def test_seeded_float32_codes_equal_reference(tiny: Callable[[str], Tiny], model: str) -> None:
    part = tiny(model)
    backend = load(part, torch.float32)
    eager = EagerBackend(backend.model, backend.codec)
    items = list(official_items(model))
    chosen = items[:: -(-len(items) // 10)]  # every mode and both layouts
    requests = [
        (item.prompt(part), params(seed, **SETTINGS[seed % len(SETTINGS)]))
        for seed, item in enumerate(chosen)
    ]
    frames = backend.step([backend.admit(*request) for request in requests], 20)
    for row, (item, request) in enumerate(zip(chosen, requests, strict=True)):
        assert np.array_equal(frames.of(row), speak(eager, *request)), item.call


@pytest.mark.parametrize("layers", ["fused", "plain"])
def test_seeded_bfloat16_codes_do_not_depend_on_step_sizes(
    tiny: Callable[[str], Tiny], layers: str
) -> None:
    part = tiny("custom_voice_projected")
    backend = load(part, torch.bfloat16, layers=layers)
    prompt = next(official_items("custom_voice_projected")).prompt(part)
    whole = speak(backend, prompt, params(7))
    slot = backend.admit(prompt, params(7))
    pieces = [backend.step([slot], size).of(0) for size in (1, 2, 4, 13)]
    assert np.array_equal(np.concatenate(pieces), whole)


def test_seeded_bfloat16_codes_are_equal_alone_and_in_any_batch(
    tiny: Callable[[str], Tiny],
) -> None:
    """The order of sums in the fused kernels does not depend on the batch."""
    part = tiny("custom_voice_projected")
    backend = load(part, torch.bfloat16, layers="fused")
    prompts = [item.prompt(part) for item in official_items("custom_voice_projected")][:11]
    settings = [params(seed, **SETTINGS[seed % len(SETTINGS)]) for seed in range(11)]
    slots = [backend.admit(*pair) for pair in zip(prompts, settings, strict=True)]
    frames = [backend.step(slots, 5) for _ in range(4)]
    for row in range(11):
        alone = speak(backend, prompts[row], settings[row])
        assert np.array_equal(np.concatenate([step.of(row) for step in frames]), alone)


def test_seeded_bfloat16_codes_are_equal_alone_batched_and_cached(
    tiny: Callable[[str], Tiny], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cloned voices and a prompt of several passes; shared prefixes are cached and copied."""
    part = tiny("base")
    backend = load(part, torch.bfloat16, layers="fused")
    prompts = [item.prompt(part) for item in official_items("base")][:10]
    config = part.checkpoint.config
    prompts.append(build_prompt(config, [5] * 1200, role_ids=[1, 2, 3], layout="whole"))
    requests = [(prompt, params(seed)) for seed, prompt in enumerate(prompts)]
    alone = [speak(backend, *request) for request in requests]
    for num_shared in (64, 8, 8):  # nothing is shared, then all is kept, then all is copied
        monkeypatch.setattr(prefill_module, "FEWEST_SHARED", num_shared)
        slots = [slot for slot in backend.admit_many(requests) if isinstance(slot, int)]
        frames = backend.step(slots, 20)
        for row, codes in enumerate(alone):
            assert np.array_equal(frames.of(row), codes), (num_shared, row)
        for slot in slots:
            backend.release(slot)
    assert len(backend._prefill._kept) > 1
    assert backend.fallbacks == {}


def test_cloned_voice_is_identical_after_cache_hit(tiny: Callable[[str], Tiny]) -> None:
    part = tiny("base")
    backend = load(part, torch.bfloat16)
    item = next(i for i in official_items("base") if i.call.startswith("icl"))
    made = []
    for _ in range(2):
        slot = backend.admit(item.prompt(part), params(5))
        made.append(backend.render([slot], backend.step([slot], 8))[0])
        backend.release(slot)
    assert np.array_equal(made[0], made[1])
    assert backend.memory()["voice cache"] > 0


def test_samples_equal_reference(tiny: Callable[[str], Tiny]) -> None:
    part = tiny("base")
    backend = load(part, torch.float32)
    eager = EagerBackend(backend.model, backend.codec)
    item = next(i for i in official_items("base") if i.call.startswith("icl"))
    made = []
    for each in (backend, eager):
        slot = each.admit(item.prompt(part), params(5))
        sizes = (1, 2, 17) if each is backend else (20,)
        pieces = [each.render([slot], each.step([slot], size))[0] for size in sizes]
        made.append(np.concatenate(pieces))
    assert np.allclose(made[0], made[1], rtol=0, atol=5e-5)


def test_steps_and_renders_can_overlap(tiny: Callable[[str], Tiny]) -> None:
    part = tiny("custom_voice")
    backend = load(part, torch.float32)
    prompts = [item.prompt(part) for item in official_items("custom_voice")][:4]
    slots = [backend.admit(prompt, params(seed)) for seed, prompt in enumerate(prompts)]
    renders, frames = [], [backend.start_step(slots, 4)]
    for _ in range(4):
        frames.append(backend.start_step(slots, 4))
        renders.append(backend.start_render(slots, frames.pop(0)()))
    renders.append(backend.start_render(slots, frames.pop()()))
    samples = [
        np.concatenate(parts) for parts in zip(*(wait().samples for wait in renders), strict=True)
    ]
    eager = EagerBackend(backend.model, backend.codec)
    for seed, prompt in enumerate(prompts):
        slot = eager.admit(prompt, params(seed))
        alone = eager.render([slot], eager.step([slot], 20))[0]
        assert np.allclose(samples[seed], alone, rtol=0, atol=5e-5)


def test_results_dropped_by_another_thread_do_not_disturb_a_capture() -> None:
    """PyTorch's pinned memory would record an event on the stream that captures."""
    copies, source = HostCopies(), torch.arange(5000, device="cuda")
    source += 0  # loads the kernel
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        pending = [copies.start(source) for _ in range(4)]
        stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        source += 1
        dropping = Thread(target=pending.clear)
        dropping.start()
        dropping.join()
        graph.capture_end()
        graph.replay()
        reads = [copies.start(source) for _ in range(6)]  # four reuse memory
    for read in reads:
        assert np.array_equal(read(), np.arange(1, 5001))


def test_work_that_cannot_be_captured_runs_without_a_graph(
    tiny: Callable[[str], Tiny], monkeypatch: pytest.MonkeyPatch
) -> None:
    part = tiny("custom_voice")
    prompt = next(official_items("custom_voice")).prompt(part)
    expected = speak(load(part, torch.float32), prompt, params(1))
    backend = load(part, torch.float32)
    make = backend._stepper._loop.make

    def make_and_sync(*args: object) -> None:
        make(*args)  # type: ignore[arg-type]
        torch.cuda.current_stream().synchronize()

    monkeypatch.setattr(backend._stepper._loop, "make", make_and_sync)
    assert np.array_equal(speak(backend, prompt, params(1)), expected)
    assert any("frame" in name for name in backend.fallbacks)
    assert torch.rand(1, device="cuda") < 1  # fails while PyTorch's generator is in capture mode


def test_random_slot_lifetimes_leak_no_slot_or_memory(tiny: Callable[[str], Tiny]) -> None:
    part, choice = tiny("custom_voice"), random.Random(0)
    backend = load(part, torch.bfloat16)
    prompts = [item.prompt(part) for item in official_items("custom_voice")]
    backend.warmup((1, 2, 4, 8, 16))
    before, live = None, list[int]()
    for turn in range(100):
        while len(live) < choice.randint(1, 16):
            live.append(backend.admit(choice.choice(prompts), params(turn)))
        frames = backend.step(live, choice.randint(1, 4))
        backend.render(live, frames)
        for slot, status in zip(list(live), frames.status, strict=True):
            if status != "running" or choice.random() < 0.3:
                backend.release(slot)
                live.remove(slot)
        if turn == 30:
            gc.collect()
            before = torch.cuda.memory_allocated()
    for slot in live:
        backend.release(slot)
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    assert len(backend._reservations.free) == backend.max_streams
    assert backend._pool.num_free == backend._pool.size
