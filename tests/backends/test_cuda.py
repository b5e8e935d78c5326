"""On a GPU: the official codes in float32, and in bfloat16 the same codes in any batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.support.official_calls import official_items
from tests.support.slots import assert_official_codes_in_a_batch
from tests.support.tiny import TINY_NAMES, Tiny
from tests.support.utterances import generate
from vivace.backends.eager import EagerBackend
from vivace.speech import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def cuda_backend(part: Tiny, dtype: torch.dtype) -> EagerBackend:
    cuda = torch.device("cuda")
    return EagerBackend(part.checkpoint.load_model(cuda, dtype), part.checkpoint.load_codec(cuda))


@pytest.mark.parametrize("model", TINY_NAMES)
def test_greedy_codes_in_a_batch_equal_official_ones(
    tiny: Callable[[str], Tiny], model: str
) -> None:
    part = tiny(model)
    backend = cuda_backend(part, torch.float32)
    assert_official_codes_in_a_batch(backend, part, model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_seeded_codes_are_equal_alone_and_in_a_batch(
    tiny: Callable[[str], Tiny], dtype: torch.dtype
) -> None:
    part = tiny("custom_voice_projected")
    backend = cuda_backend(part, dtype)
    prompts = [item.prompt(part) for item in official_items("custom_voice_projected")][:11]
    params = [SamplingParams(seed=seed, max_frames=20, min_frames=20) for seed in range(11)]
    slots = [backend.admit(*pair) for pair in zip(prompts, params, strict=True)]
    frames = [backend.step(slots, 5) for _ in range(4)]
    for row in (0, 7, 10):
        alone = generate(backend, prompts[row], params[row]).codes
        assert np.array_equal(np.concatenate([step.of(row) for step in frames]), alone)


def test_seeded_codes_equal_those_of_the_cpu(tiny: Callable[[str], Tiny]) -> None:
    part = tiny("base")
    item = next(official_items("base"))
    sampling = SamplingParams(seed=11, max_frames=32, min_frames=32)
    prompt = item.prompt(part)
    there = generate(cuda_backend(part, torch.float32), prompt, sampling)
    here = generate(part.backend(), prompt, sampling)
    assert np.array_equal(there.codes, here.codes)
    assert np.allclose(there.samples, here.samples, rtol=0, atol=1e-3)
