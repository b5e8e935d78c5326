"""The single-row path on a CPU equals the transformer blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.tiny import Tiny
from vivace.backends.frame_maker import FrameMaker
from vivace.model.cache import KeyValueCache
from vivace.model.ops import rms_norm
from vivace.model.row import RowStack, normalise


def rows(count: int, width: int) -> torch.Tensor:
    return torch.randn(1, count, width, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("name", ["custom_voice", "base_projected"])
@torch.inference_mode()
def test_row_stack_equals_talker(tiny: Callable[[str], Tiny], name: str) -> None:
    talker = tiny(name).model.talker
    x = rows(9, talker.config.hidden_size)
    expected = talker(x, talker.rope.span(0, 9, x), KeyValueCache(talker.config.num_hidden_layers))
    stack = RowStack(talker)
    cache = KeyValueCache(talker.config.num_hidden_layers)
    found = torch.stack([stack(row, cache.length, cache) for row in x[0]])
    assert torch.allclose(found, expected[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["custom_voice", "base_projected"])
@torch.inference_mode()
def test_row_stack_equals_predictor(tiny: Callable[[str], Tiny], name: str) -> None:
    talker = tiny(name).model.talker
    predictor, num_layers = talker.code_predictor, talker.code_predictor.config.num_hidden_layers
    x = rows(5, talker.config.hidden_size)
    expected = predictor(x, 0, KeyValueCache(num_layers))
    stack = RowStack(predictor)
    cache = KeyValueCache(num_layers)
    found = torch.stack([stack(row, cache.length, cache) for row in x[0]])
    assert torch.allclose(found, expected[0], rtol=0, atol=1e-5)


def test_row_norm_equals_reference_and_propagates_nan() -> None:
    x, weight = rows(1, 64)[0, 0], rows(2, 64)[0, 1]
    assert torch.allclose(normalise(x, weight, 1e-6), rms_norm(x, weight, 1e-6), atol=1e-6)
    for broken in (torch.nan, torch.inf):
        x[3] = broken
        assert not torch.isfinite(normalise(x, weight, 1e-6)[3])


def test_one_row_in_float32_on_a_cpu_uses_the_row_path(tiny: Callable[[str], Tiny]) -> None:
    part = tiny("custom_voice")
    half = part.checkpoint.load_model(torch.device("cpu"), torch.bfloat16)
    with torch.inference_mode():
        assert FrameMaker(part.model, 1)._row_talker is not None
        assert FrameMaker(part.model, 4)._row_talker is None
        assert FrameMaker(half, 1)._row_talker is None
