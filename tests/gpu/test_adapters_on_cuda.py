"""Adapters that are chosen per row, on a GPU: kernels, batches and rows without an adapter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.support.adapters import random_adapter
from tests.support.cuda import CUDA, make_norm, random_rows
from tests.support.slots import make_prompt, speak
from tests.support.tiny import Tiny
from vivace.adapter_set import AdapterSet
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.model.lora import StackedLora
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
TEXTS = ("Hay.", "More hay in the stack.", "A needle!", "The barn.", "Hay again.")


def params(seed: int) -> SamplingParams:
    return SamplingParams(seed=seed, max_frames=16, min_frames=16)


def random_stack(num_adapters: int, sizes: list[int], depth: int, rank: int) -> StackedLora:
    def pair(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return random_rows(rank, depth, scale=0.05), random_rows(size, rank, scale=0.05)

    pairs = [[pair(size) for size in sizes] for _ in range(num_adapters)]
    return StackedLora.stack(pairs, sizes, random_rows(sizes[0], depth))


@pytest.mark.usefixtures("seeded_inference")
@pytest.mark.parametrize("num_rows", [1, 2, 3, 16, 17, 64, 300])
@pytest.mark.parametrize(
    ("sizes", "depth", "rank"), [([2048, 1024, 1024], 1024, 16), ([96, 32], 64, 5), ([64], 48, 1)]
)
def test_changes_equal_reference_and_do_not_depend_on_other_rows(
    num_rows: int, sizes: list[int], depth: int, rank: int
) -> None:
    from vivace.backends.cuda_graph.layers.lora_products import add_change

    stack = random_stack(3, sizes, depth, rank)
    x, y = random_rows(num_rows, depth), random_rows(num_rows, sum(sizes))
    numbers = torch.randint(0, 4, (num_rows,), device=CUDA)
    found = add_change(y, stack, x, numbers, torch.empty_like(y))
    exact = StackedLora(stack.a.float(), stack.b.float(), sizes)
    expected = y.float() + exact(x.float(), numbers)
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)
    assert torch.equal(found[numbers == 0], y[numbers == 0])
    some = torch.arange(0, num_rows, 3, device=CUDA)
    alone = add_change(y[some], stack, x[some], numbers[some], torch.empty_like(y[some]))
    assert torch.equal(alone, found[some])


@pytest.mark.usefixtures("seeded_inference")
@pytest.mark.parametrize("num_rows", [1, 2, 3, 16, 17, 64, 65, 300])
@pytest.mark.parametrize(("inner", "depth"), [(3072, 1024), (96, 64)])
def test_gate_after_a_product_has_the_bits_of_the_gated_product(
    num_rows: int, inner: int, depth: int
) -> None:
    """Rows without an adapter use this path in an engine with adapters."""
    from vivace.backends.cuda_graph.layers.lora_products import gate
    from vivace.backends.cuda_graph.layers.products import Residual

    x, weight = random_rows(num_rows, depth), random_rows(2 * inner, depth, scale=0.05)
    stream = Residual(x, make_norm(depth))
    assert torch.equal(gate(stream.linear(weight)), stream.linear(weight, is_gated=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["custom_voice", "custom_voice_projected"])
def test_mixed_batch_equals_each_alone_and_the_engine_without_adapters(
    tiny: Callable[[str], Tiny], name: str, dtype: torch.dtype
) -> None:
    part = tiny(name)
    adapters = {
        "whole": random_adapter(part, 1, rank=4),
        "small": random_adapter(part, 2, rank=1, targets=["attention", "text"]),
        "other": random_adapter(part, 3, rank=7, targets=["mlp", "predictor", "heads"]),
    }
    mixed, plain = (load(part, dtype, change) for change in (AdapterSet(adapters).apply, None))
    if dtype == torch.bfloat16:
        assert (mixed.layers, plain.layers) == ("fused", "fused")
    prompts = [with_adapter(part, text, i % 4) for i, text in enumerate(TEXTS)]
    slots = [mixed.admit(prompt, params(i)) for i, prompt in enumerate(prompts)]
    steps = [mixed.step(slots, size) for size in (1, 4, 11)]
    together = [np.concatenate([step.of(row) for step in steps]) for row in range(len(slots))]
    for slot in slots:
        mixed.release(slot)
    for index, prompt in enumerate(prompts):
        base = speak(plain, dataclasses.replace(prompt, adapter=0), params(index))
        assert np.array_equal(together[index], base) == (prompt.adapter == 0)
        if dtype == torch.bfloat16:  # plain layers of PyTorch round by the size of the batch
            assert np.array_equal(together[index], speak(mixed, prompt, params(index)))
    assert mixed.fallbacks == {}


def load(part: Tiny, dtype: torch.dtype, change: object) -> CudaGraphBackend:
    model = part.checkpoint.load_model(CUDA, dtype, "full", change)  # type: ignore[arg-type]
    codec = part.checkpoint.load_codec(CUDA)
    return CudaGraphBackend(model, codec, max_streams=8, max_frames=320)


def with_adapter(part: Tiny, text: str, number: int) -> Prompt:
    return dataclasses.replace(make_prompt(part, text), adapter=number)
