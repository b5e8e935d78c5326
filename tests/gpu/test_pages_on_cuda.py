"""Paged keys on a GPU: joins and leaves, a pause for a page, and the memory of 256 slots."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.official_calls import official_items
from tests.support.slots import make_prompt, params, speak
from tests.support.tiny import Tiny
from vivace.backends.cuda_graph import backend as backend_module
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.slots.pages import PAGE
from vivace.engine.utterances.guard import frame_budget
from vivace.errors import BackendFullError
from vivace.model.codec import Codec
from vivace.model.config_file import parse_model_config
from vivace.model.talker import Qwen3TTS
from vivace.prompt import build_prompt
from vivace.speech import SamplingParams

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from shapes import load_configs, random_module

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CUDA = torch.device("cuda")


def load(part: Tiny, monkeypatch: pytest.MonkeyPatch, size: int, layers: str) -> CudaGraphBackend:
    monkeypatch.setattr(backend_module, "pool_size", lambda *_: size)
    model = part.checkpoint.load_model(CUDA, torch.bfloat16)
    codec = part.checkpoint.load_codec(CUDA)
    return CudaGraphBackend(model, codec, max_streams=8, max_frames=320, layers=layers)


@pytest.mark.parametrize("layers", ["fused", "plain"])
def test_slot_paused_for_a_page_resumes_with_same_codes(
    tiny: Callable[[str], Tiny], monkeypatch: pytest.MonkeyPatch, layers: str
) -> None:
    part = tiny("custom_voice_projected")
    role, num_ids = {"role_ids": [1, 2, 3], "preset": "ryan", "layout": "whole"}, PAGE - 18
    num_ids -= len(build_prompt(part.checkpoint.config, [], **role))  # type: ignore[arg-type]
    prompt = build_prompt(part.checkpoint.config, [5] * num_ids, **role)  # type: ignore[arg-type]
    requests = [(prompt, params(seed, min_frames=24, max_frames=24)) for seed in (1, 2)]
    backend = load(part, monkeypatch, 26, layers)
    expected = [speak(backend, *request) for request in requests]
    backend = load(part, monkeypatch, 3, layers)
    slots = [backend.admit(*request) for request in requests]
    first, second = backend.step(slots[:1], 24), backend.step(slots[1:], 20)
    assert (first.lengths, first.status) == ((24,), ("length",))
    assert (second.lengths, second.status) == ((18,), ("running",))
    assert backend.step(slots[1:], 4).lengths == (0,)
    backend.release(slots[0])
    rest = backend.step(slots[1:], 24)
    assert (rest.lengths, rest.status) == ((6,), ("length",))
    assert np.array_equal(first.of(0), expected[0])
    assert np.array_equal(np.concatenate([second.of(0), rest.of(0)]), expected[1])
    assert backend.fallbacks == {}


def test_thousand_joins_and_leaves_leak_no_page_or_memory(
    tiny: Callable[[str], Tiny], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few pages for eight slots some admissions fail; codes equal those of single slots."""
    part, choice = tiny("custom_voice"), random.Random(0)
    backend = load(part, monkeypatch, 20, "fused")
    prompts = [item.prompt(part) for item in official_items("custom_voice")][:6]
    prompts.append(make_prompt(part, "Live.", is_complete=False))
    limits = [choice.choice([20, 300]) for _ in prompts]
    requests = [
        (prompt, SamplingParams(seed=n, min_frames=limit, max_frames=limit))
        for n, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]
    alone = []
    for request in requests:
        slot = backend.admit(*request)
        alone.append(backend.step([slot], 12).of(0))
        backend.release(slot)
    backend.warmup((1, 2, 4, 8))
    num_joined = num_refused = 0
    live: dict[int, int] = {}
    made: dict[int, list[np.ndarray]] = {}
    before = None
    while num_joined < 1000:
        while len(live) < 8:
            which = choice.randrange(len(requests))
            try:
                slot = backend.admit(*requests[which])
            except BackendFullError:
                num_refused += 1
                break
            live[slot], made[slot] = which, []
            num_joined += 1
        order = choice.sample(list(live), choice.randint(1, len(live)))
        frames = backend.step(order, choice.randint(1, 3))
        for row, slot in enumerate(order):
            made[slot].append(frames.of(row))
            codes = np.concatenate(made[slot])
            if len(codes) >= 12 or choice.random() < 0.4:
                common = min(len(codes), len(alone[live[slot]]))
                assert np.array_equal(codes[:common], alone[live[slot]][:common])
                backend.release(slot)
                del live[slot], made[slot]
        if before is None and num_joined > 300:
            gc.collect()
            before = torch.cuda.memory_allocated()
    for slot in live:
        backend.release(slot)
    gc.collect()
    assert num_refused > 10
    assert torch.cuda.memory_allocated() == before
    assert (backend._pool.num_free, len(backend._reservations.free)) == (20, 8)


def test_256_streams_of_300_characters_fit_in_24_gb() -> None:
    """0.6B, 70 text ids per stream, all at once; sampled streams equal single ones.

    The largest graphs are captured, as after a warm-up; other graphs reuse their memory.
    """
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    raw, codec_config = load_configs("0.6B-CustomVoice")
    config = parse_model_config(raw)
    with torch.inference_mode():
        model = random_module(Qwen3TTS, config, CUDA, torch.bfloat16)
        codec = random_module(Codec, codec_config, CUDA, torch.float32)
        codec.fold()
    backend = CudaGraphBackend(model, codec, max_streams=256)
    backend.warmup((64, 256), prompt_rows=(1024,))
    prompt = build_prompt(
        config, list(range(50, 120)), role_ids=[1, 2, 3], layout="whole", preset="ryan"
    )
    budget = frame_budget(70)
    requests = [
        (prompt, SamplingParams(seed=seed, min_frames=budget, max_frames=budget))
        for seed in range(256)
    ]
    alone = []
    for request in (requests[0], requests[255]):
        slot = backend.admit(*request)
        alone.append(backend.step([slot], 12).of(0))
        backend.release(slot)
    slots = [slot for slot in backend.admit_many(requests) if isinstance(slot, int)]
    assert len(slots) == 256
    frames = backend.step(slots, 12)
    assert np.array_equal(frames.of(0), alone[0])
    assert np.array_equal(frames.of(255), alone[1])
    backend.render(slots, frames)
    torch.cuda.synchronize()
    used = torch.cuda.memory_reserved() - before  # others may use the device at the same time
    peak = torch.cuda.max_memory_allocated() / 1e9
    sizes = {name: round(size / 1e9, 2) for name, size in backend.memory().items()}
    sys.stdout.write(f"256 streams: {used / 1e9:.1f} GB used, peak {peak:.1f}, {sizes}\n")
    assert used < 22 * 2**30  # CUDA's own context takes most of another, and 24 GB are 22.5 GiB
    for slot in slots:
        backend.release(slot)
    assert backend._pool.num_free == backend._pool.size
