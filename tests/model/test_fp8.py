"""Weights in fp8: rounded once, exact in bfloat16, packed as the kernels read them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.support.slots import auto_backend_name
from tests.support.tiny import Tiny, block_of
from vivace.backends.megakernel.fp8 import BIAS, DEPTH, pack_fp8
from vivace.errors import CheckpointError, RequestError
from vivace.model.fp8 import power_of_two, round_weights, rounded_layers, to_fp8
from vivace.tts import TTS


def rounded(weight: Tensor) -> Tensor:
    codes, exponents = to_fp8(weight)
    return codes.float() * power_of_two(exponents)


def test_fp8_scale_is_smallest_power_of_two_within_e4m3() -> None:
    most = torch.tensor([[448.0], [449.0], [0.875], [0.8750001], [1.0], [-2.0], [57344.0]])
    _, exponents = to_fp8(torch.cat((most, most / 3), dim=1))
    assert exponents.flatten().tolist() == [0, 1, -9, -8, -8, -7, 7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounded_numbers_have_four_significant_bits_and_are_exact_in_bfloat16(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    sizes = 10.0 ** torch.linspace(-20, 4, 64)[:, None]
    weight = (torch.randn(64, 512) * sizes).to(dtype)
    found = rounded(weight)
    assert torch.equal(found.bfloat16().float(), found)
    mantissas = torch.frexp(found).mantissa * 16
    assert torch.equal(mantissas, mantissas.round())
    step = torch.maximum(
        weight.float().abs() / 16, weight.float().abs().amax(1, keepdim=True) / 2**17
    )
    assert bool(((found - weight.float()).abs() <= step).all())


def test_rounding_twice_changes_nothing() -> None:
    """Includes rows whose largest number rounds down to the limit of a smaller scale."""
    torch.manual_seed(0)
    weight = torch.cat((torch.randn(256, 128), torch.tensor([[224.5] + [0.002] * 127])))
    once = rounded(weight)
    assert torch.equal(rounded(once), once)


def test_rows_of_zeros_and_of_tiny_numbers_stay_finite() -> None:
    weight = torch.zeros(3, 16)
    weight[1] = 1e-38
    weight[2, 3] = -3e-36
    found = rounded(weight)
    assert not found[:2].any()
    assert bool(found.isfinite().all())


@pytest.mark.parametrize(
    ("number", "reason"),
    [(float("inf"), "not finite"), (float("nan"), "not finite"), (1e5, r"largest value is 1e\+05")],
)
def test_weights_out_of_fp8_range_are_refused_by_name(
    tiny: Callable[[str], Tiny], number: float, reason: str
) -> None:
    model = copy.deepcopy(tiny("custom_voice").model)
    block_of(model.talker.model.layers, 1).mlp.down_proj.weight[2, 3] = number
    with pytest.raises(CheckpointError, match=rf"layers\.1\.mlp\.down_proj\.weight .*{reason}"):
        round_weights(model)


def test_round_weights_changes_only_predictor_and_talker_mlps(
    tiny: Callable[[str], Tiny],
) -> None:
    part = tiny("custom_voice")
    model = part.checkpoint.load_model(torch.device("cpu"), torch.float32, "fp8")
    assert (part.model.weights, model.weights) == ("full", "fp8")
    before = part.model.state_dict()
    changed = {name for name, after in model.state_dict().items() if not after.equal(before[name])}
    expected = {name for name, _ in rounded_layers(model)}
    assert changed == expected
    mlp = {name for name in expected if ".code_predictor." not in name}
    assert len(mlp) == 3 * len(model.talker.model.layers)
    assert all(".mlp." in name for name in mlp)
    assert any(".lm_head." in name for name in expected)
    for name in expected:
        weight = model.state_dict()[name]
        assert torch.equal(rounded(weight), weight)
        assert torch.equal(rounded(before[name]), weight)


def test_fused_weights_are_rounded_too(tiny: Callable[[str], Tiny]) -> None:
    model = tiny("custom_voice").checkpoint.load_model(torch.device("cpu"), torch.bfloat16, "fp8")
    block = block_of(model.talker.code_predictor.model.layers, 0)
    attention, mlp = block.self_attn, block.mlp
    joined = torch.cat(
        [each.weight for each in (attention.q_proj, attention.k_proj, attention.v_proj)]
    )
    assert attention.qkv_weight is not None
    assert mlp.gate_up_weight is not None
    assert torch.equal(attention.qkv_weight, joined)
    assert torch.equal(rounded(mlp.gate_up_weight), mlp.gate_up_weight.float())


def lanes_words(chunk: Tensor, warp: int) -> Tensor:
    """The words that `ldmatrix` loads into the 32 lanes of a warp: [8 blocks, 32, 4 bytes]."""
    lanes = torch.arange(32)
    first = 128 * warp + 16 * torch.arange(8)[:, None, None] + 4 * (lanes % 4)[:, None]
    return chunk[(lanes // 4)[:, None], first + torch.arange(4)]


def widen(words: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """`widen` of common.cuh: bits of bfloat16, times the scale."""
    bits = words.int()
    placed = (bits & 0x80) << 8 | (bits & 0x7F) << 4
    numbers = placed.to(torch.uint16).view(torch.bfloat16).double() * scale.double()[:, None]
    return numbers[..., 0::2], numbers[..., 1::2]


def test_packed_fp8_weights_have_the_order_of_mma_lanes() -> None:
    """Lane l takes numbers 2(l % 4), and the next, of row l / 4, and those eight further on."""
    torch.manual_seed(0)
    weight = rounded(torch.randn(16, 2 * DEPTH) * 10.0 ** torch.linspace(-4, 1, 16)[:, None])
    weight[3] = rounded(torch.randn(1, 2 * DEPTH) ** 5)  # subnormal numbers too
    assert bool((to_fp8(weight)[0].view(torch.uint8)[3] & 0x7F < 8).any())
    packed = pack_fp8(weight.bfloat16())
    assert packed.shape == (2, 2, 8, DEPTH + 16)
    lanes = torch.arange(32)
    for unit, part, warp in ((0, 0, 0), (0, 1, 3), (1, 0, 7)):
        chunk = packed[unit, part]
        scale = chunk[lanes // 4, DEPTH : DEPTH + 2].contiguous().view(torch.bfloat16)[:, 0]
        _, exponents = to_fp8(weight[8 * unit : 8 * unit + 8])
        assert torch.equal(scale.float(), power_of_two(exponents + BIAS)[lanes // 4, 0])
        near, far = widen(lanes_words(chunk, warp), scale)
        k = DEPTH * part + 128 * warp + 16 * torch.arange(8)[:, None, None]
        k = k + 2 * (lanes % 4)[:, None] + torch.arange(2)
        rows = 8 * unit + (lanes // 4)[:, None]
        assert torch.equal(near, weight[rows, k].double())
        assert torch.equal(far, weight[rows, k + 8].double())


def test_weights_option_is_checked_before_loading() -> None:
    with pytest.raises(
        RequestError, match="weights must be one of full, fp8, int8, int4, not 'fp4'"
    ):
        TTS.load("no/such-model", weights="fp4", offline=True)  # type: ignore[arg-type]


def test_fp8_model_reports_its_weights_and_speaks(
    tiny: Callable[[str], Tiny], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny("custom_voice").checkpoint.folder
    with TTS.load(folder, weights="fp8") as tts, TTS.load(folder) as full:
        assert "weights in fp8" in repr(tts)
        assert "fp8" not in repr(full)
        assert [record.getMessage() for record in caplog.records if "fp8" in record.message] == [
            f"only backend megakernel is faster with fp8, not {auto_backend_name()}"
        ]
        codes = [each.speak("Hello.", seed=1, max_frames=6).codes for each in (tts, tts, full)]
    assert (codes[0] == codes[1]).all()
    assert codes[0].shape != codes[2].shape or (codes[0] != codes[2]).any()
