"""The codec equals the official one; decoding in chunks equals decoding at once."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.support.project import ROOT, load_script
from tests.support.tiny import Tiny
from vivace.model.codec_decoder import SnakeBeta
from vivace.model.conv import CausalState

GOLDEN = Path(__file__).parent.parent / "golden"
SECONDS = {"long": 3.3, "short": 0.61, "beyond_window": 13.0}
SAMPLES_PER_FRAME = 1920
NUM_FRAMES = 90
ROUNDING = 5e-5  # the random codec plays at full scale and amplifies the last bit


@pytest.fixture(scope="module")
def official() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "codec.safetensors")


@pytest.mark.parametrize(
    ("num_frames", "dtype", "tolerance"),
    [
        (1, torch.float64, 1e-5),
        (7, torch.float64, 1e-5),
        (100, torch.float64, 1e-5),
        pytest.param(300, torch.float64, 1e-5, marks=pytest.mark.slow),
        (7, torch.float32, ROUNDING),
        (300, torch.float32, ROUNDING),
    ],
)
def test_decoded_samples_equal_official_ones(
    tiny: Callable[[str], Tiny],
    official: dict[str, torch.Tensor],
    num_frames: int,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    """In float64 the only difference is the rounding of the official code."""
    codec = copy.deepcopy(tiny("base").codec).to(dtype)
    samples = codec.decode(official["decode.codes"][:num_frames].long()).float()
    assert len(samples) == num_frames * SAMPLES_PER_FRAME
    stride = len(samples) // len(official[f"decode.{num_frames}.strided"])
    parts = {"head": samples[:480], "tail": samples[-480:], "strided": samples[::stride]}
    for name, part in parts.items():
        expected = official[f"decode.{num_frames}.{name}"]
        assert torch.allclose(part[: len(expected)], expected, rtol=0, atol=tolerance), name


def test_decode_beyond_300_frames_keeps_full_context_unlike_official(
    tiny: Callable[[str], Tiny], official: dict[str, torch.Tensor]
) -> None:
    """The official code decodes in chunks of 300 frames with 25 frames of context."""
    codec, codes = tiny("base").codec, official["decode.codes"].long()
    whole = codec.decode(codes)
    cut = codec.decode(codes[300 - 25 :])[25 * SAMPLES_PER_FRAME :]
    assert torch.allclose(cut[-480:], official["decode.330.tail"], rtol=0, atol=ROUNDING)
    assert not torch.allclose(whole[-480:], official["decode.330.tail"], rtol=0, atol=1e-3)
    assert torch.allclose(whole[:480], official["decode.330.head"], rtol=0, atol=ROUNDING)


@pytest.fixture(scope="module")
def codes() -> torch.Tensor:
    """More frames than the attention window, which has 72."""
    return torch.randint(0, 64, (NUM_FRAMES, 16), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def whole(tiny: Callable[[str], Tiny], codes: torch.Tensor) -> torch.Tensor:
    """The samples of all frames, decoded at once."""
    return tiny("base").codec.decoder(codes[None], CausalState())[0]


@given(cuts=st.lists(st.integers(1, NUM_FRAMES - 1), max_size=12, unique=True))
@settings(deadline=None, max_examples=5)
def test_chunked_decode_equals_whole_decode(
    tiny: Callable[[str], Tiny], codes: torch.Tensor, whole: torch.Tensor, cuts: list[int]
) -> None:
    codec, state = tiny("base").codec, CausalState()
    edges = [0, *sorted(cuts), NUM_FRAMES]
    pieces = [codec.decode(codes[a:b], state) for a, b in itertools.pairwise(edges)]
    assert torch.allclose(torch.cat(pieces), whole, rtol=0, atol=ROUNDING)


def test_decoding_a_prefix_equals_the_prefix_of_decoding_the_whole(
    tiny: Callable[[str], Tiny], codes: torch.Tensor, whole: torch.Tensor
) -> None:
    for length in (1, 2, 33, 73):
        prefix = tiny("base").codec.decode(codes[:length])
        assert torch.allclose(prefix, whole[: len(prefix)], rtol=0, atol=ROUNDING)


def test_decode_with_25_frames_of_context_differs(
    tiny: Callable[[str], Tiny], codes: torch.Tensor, whole: torch.Tensor
) -> None:
    """Control: decoding with limited context fails the comparison."""
    cut = tiny("base").codec.decode(codes[-35:])[25 * SAMPLES_PER_FRAME :]
    assert not torch.allclose(cut, whole[-10 * SAMPLES_PER_FRAME :], rtol=0, atol=ROUNDING)


def test_activation_with_vanishing_gain_is_finite() -> None:
    """The logarithms of a trained gain may be so low that float32 rounds the gain to 0."""
    activation = SnakeBeta(3)
    with torch.no_grad():
        activation.alpha.zero_()
        activation.beta.copy_(torch.tensor([-200.0, math.log(1e-9), 0.0]))
    frequency, inverse_gain = activation.exponentials()
    assert torch.equal(frequency, torch.ones(3, 1))
    assert torch.allclose(inverse_gain, torch.tensor([[1e9], [5e8], [1.0]]))


def test_samples_are_clamped_to_full_scale(tiny: Callable[[str], Tiny]) -> None:
    codec = copy.deepcopy(tiny("base").codec)
    layers: Any = codec.decoder.decoder
    for offset, limit in ((9.0, 1.0), (-9.0, -1.0)):
        layers[-1].conv.bias.data.fill_(offset)
        samples = codec.decode(torch.zeros(2, 16, dtype=torch.long))
        assert torch.equal(samples, torch.full_like(samples, limit))


def test_copied_state_is_independent(tiny: Callable[[str], Tiny]) -> None:
    codec = tiny("base").codec
    codes = torch.randint(0, 64, (20, 16), generator=torch.Generator().manual_seed(7))
    state = CausalState()
    codec.decode(codes[:10], state)
    branch = state.copy()
    codec.decode(codes[:3], state)  # must not disturb the branch
    expected = codec.decode(codes)[10 * SAMPLES_PER_FRAME :]
    assert torch.allclose(codec.decode(codes[10:], branch), expected, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("name", list(SECONDS))
def test_encoded_codes_equal_official_ones(
    tiny: Callable[[str], Tiny], official: dict[str, torch.Tensor], name: str
) -> None:
    """13 s exceed the attention window, which the official code does not apply."""
    waves = load_script(ROOT / "scripts" / "official" / "waves.py")
    samples = torch.from_numpy(waves.synthetic_wave(SECONDS[name]))
    codes = tiny("base").codec.encode(samples)
    assert np.array_equal(codes.numpy(), official[f"encode.{name}"].numpy())


@pytest.mark.parametrize("num_samples", [4 * SAMPLES_PER_FRAME, 4 * SAMPLES_PER_FRAME - 700])
def test_encoder_delay_drops_first_codes_and_reads_silence(
    tiny: Callable[[str], Tiny], num_samples: int
) -> None:
    codec = copy.copy(tiny("base").codec)
    samples = 0.1 * torch.randn(num_samples, generator=torch.Generator().manual_seed(8))
    silence = torch.zeros(7 * SAMPLES_PER_FRAME - num_samples)
    expected = codec.encode(torch.cat((samples, silence)))[3:]
    codec.config = dataclasses.replace(codec.config, encoder_delay=3)
    codes = codec.encode(samples)
    assert codes.shape == (4, codec.config.encoder_valid_num_quantizers)
    assert torch.equal(codes, expected)
