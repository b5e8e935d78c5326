"""Products and draws of the C++ library against their definitions in PyTorch."""

from __future__ import annotations

from ctypes import byref
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vivace.backends.cpu import binding, torch_tensors
from vivace.backends.cpu.build import find_refusal
from vivace.model.quantized import QuantizedLinear, multiply, quantize
from vivace.sampling import NoiseTable, Shape, draw, talker_scores

INSTRUCTION_SETS = ("portable", "dotprod", "i8mm", "avx2", "avx512f", "avx512", "amx")
SHAPES = [(1, 32), (7, 96), (16, 160), (37, 1024), (21, 1152), (6, 84), (9, 20)]

pytestmark = pytest.mark.skipif(find_refusal() is not None, reason="the library cannot be built")


@pytest.fixture(params=INSTRUCTION_SETS)
def name(request: pytest.FixtureRequest) -> str:
    if binding.instructions(request.param) is None:
        pytest.skip(f"this CPU does not have {request.param}")
    return str(request.param)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_integer_products_equal_the_reference(
    name: str, shape: tuple[int, int], bits: Literal[4, 8]
) -> None:
    if bits == 4 and shape[1] % 32:
        pytest.skip("int4 needs whole groups")
    linear = quantize(random(*shape), bits)
    for num_rows in (1, 2, 3, 4, 9):
        x = random(num_rows, shape[1], seed=num_rows)
        found, wanted = torch_tensors.multiply(x, linear, name), multiply(x, linear)
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_float_products_equal_pytorch(
    name: str, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    weight = random(*shape).to(dtype)
    for num_rows in (1, 5, 19):
        x = random(num_rows, shape[1], seed=1)
        wanted = (x.double() @ weight.double().t()).float()
        found = torch_tensors.multiply(x, weight, name)
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [*SHAPES, (70, 4100)])
def test_float16_weights_give_the_bits_of_float32_weights(
    name: str, shape: tuple[int, int]
) -> None:
    weight = random(*shape).half()
    weight[0, :3] = torch.tensor([6e-8, -65504.0, -0.0])  # subnormal, largest, negative zero
    for num_rows in (1, 2, 7, 8, 21):
        x = random(num_rows, shape[1], seed=2)
        found = [torch_tensors.multiply(x, each, name) for each in (weight, weight.float())]
        assert torch.equal(*found)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "int8", "int4"])
@pytest.mark.parametrize(("num_inputs", "num_rows"), [(224, 11), (256, 70), (1152, 11)])
def test_a_row_does_not_depend_on_the_other_rows(
    name: str, num_inputs: int, num_rows: int, kind: str
) -> None:
    plain = random(19, num_inputs)
    weight: Tensor | QuantizedLinear = plain
    if kind.startswith("int"):
        weight = quantize(plain, 8 if kind == "int8" else 4)
    elif kind != "float32":
        weight = plain.bfloat16() if kind == "bfloat16" else plain.half()
    x = random(num_rows, num_inputs, seed=2)
    together = torch_tensors.multiply(x, weight, name)
    for row in range(len(x)):
        assert torch.equal(torch_tensors.multiply(x[row : row + 1], weight, name)[0], together[row])
    other = torch_tensors.multiply(torch.cat((x[3:4], 100 * x[5:])), weight, name)
    assert torch.equal(other[0], together[3])


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("num_inputs", [160, 256])
@pytest.mark.parametrize("num_outputs", [1, 2, 3, 5, 8, 13, 23])
def test_an_output_does_not_depend_on_the_other_outputs(
    name: str, num_outputs: int, num_inputs: int, bits: Literal[4, 8]
) -> None:
    """For numbers of outputs that the places to read from and the tiles do not divide."""
    linear = quantize(random(num_outputs, num_inputs), bits)
    each = [
        QuantizedLinear(*row, bits)
        for row in zip(linear.weight[:, None], linear.scale[:, None], strict=True)
    ]
    for num_rows in (1, 2, 3, 8):
        x = random(num_rows, num_inputs, seed=num_rows)
        together = torch_tensors.multiply(x, linear, name)
        alone = [torch_tensors.multiply(x, one, name) for one in each]
        assert torch.equal(together, torch.cat(alone, 1))


@pytest.mark.parametrize("names", [("i8mm", "dotprod"), ("amx", "avx512")])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", [(4, 32), (37, 1024), (12, 160), (11, 84)])
def test_matrix_instructions_equal_dot_products_exactly(
    shape: tuple[int, int], bits: Literal[4, 8], names: tuple[str, str]
) -> None:
    """On a CPU without i8mm: `qemu-aarch64 -cpu max python -m pytest` with this file."""
    if binding.instructions(names[0]) is None:
        pytest.skip(f"this CPU does not have {names[0]}")
    if bits == 4 and shape[1] % 32:
        pytest.skip("int4 needs whole groups")
    linear = quantize(random(*shape), bits)
    for num_rows in (1, 2, 3, 4, 7, 9, 17, 33, 64, 65):
        x = random(num_rows, shape[1], seed=num_rows)
        found = [torch_tensors.multiply(x, linear, name) for name in names]
        assert torch.equal(*found)


@pytest.mark.parametrize("bits", [8, 4])
def test_largest_integers_do_not_overflow(name: str, bits: Literal[4, 8]) -> None:
    x = torch.full((9, 4096), 3.0)
    x[1::2] = -3.0
    if bits == 8:
        weight = torch.full((4, 4096), 127, dtype=torch.int8)
        weight[1::2] = -127
        linear = QuantizedLinear(weight, torch.ones(4), 8)
    else:
        packed = torch.full((4, 2048), 0xFF, dtype=torch.uint8)
        packed[1::2] = 0x00
        linear = QuantizedLinear(packed, torch.ones(4, 128, dtype=torch.float16), 4)
    assert torch.allclose(torch_tensors.multiply(x, linear, name), multiply(x, linear), rtol=1e-6)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_inputs_give_non_finite_outputs_in_their_row(
    name: str, bits: Literal[4, 8], value: float
) -> None:
    linear = quantize(random(8, 64), bits)
    x = random(3, 64, seed=1)
    healthy = torch_tensors.multiply(x, linear, name)
    x[1, 40] = value
    found = torch_tensors.multiply(x, linear, name)
    assert not torch.isfinite(found[1]).any()
    assert torch.equal(found[[0, 2]], healthy[[0, 2]])


def test_zeros_give_zeros(name: str) -> None:
    for bits in (8, 4):
        assert not torch_tensors.multiply(
            torch.zeros(2, 64), quantize(random(8, 64), bits), name
        ).any()


# --- Draws ------------------------------------------------------------------------------------


def draw_native(
    logits: Tensor,
    shape: tuple[float, int, float],
    place: tuple[int, int, int],  # seed, frame, codebook
    *,
    history: Tensor,
    penalty: float,
    banned: Tensor,
) -> int:
    flags = [part.to(torch.uint8).contiguous() for part in (history, banned)]
    code: int = binding.library().vivace_draw(
        logits.data_ptr(), len(logits), byref(binding.Shape(*shape)), *place,
        flags[0].data_ptr(), penalty, flags[1].data_ptr(),
    )  # fmt: skip
    return code


def draw_reference(
    logits: Tensor,
    shape: tuple[float, int, float],
    place: tuple[int, int, int],
    *,
    history: Tensor,
    penalty: float,
    banned: Tensor,
) -> int:
    seed, frame, codebook = place
    size, device = len(logits), torch.device("cpu")
    made = Shape.of([shape], size, device)
    scores = talker_scores(
        logits[None], history[None], torch.tensor([[penalty]]), banned[None], made
    )
    table = NoiseTable([size] * (codebook + 1), device)
    noise = table.frames(torch.tensor([seed]), torch.tensor([frame]), 1)[codebook]
    codes, best = draw(scores, made.zero_greedy_noise(noise)[:, 0])
    return int(codes) if bool(torch.isfinite(best)) else -1


@given(
    seed=st.integers(0, 2**63 - 1),
    frame=st.integers(0, 5000),
    codebook=st.integers(0, 15),
    temperature=st.sampled_from([0.0, 0.3, 0.9, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 50, 300, 5000]),
    top_p=st.sampled_from([0.05, 0.5, 0.95, 1.0]),
    penalty=st.sampled_from([1.0, 1.05, 2.0]),
)
@settings(deadline=None, max_examples=150)
def test_draws_equal_the_reference(
    seed: int,
    frame: int,
    codebook: int,
    temperature: float,
    top_k: int,
    top_p: float,
    penalty: float,
) -> None:
    generator = torch.Generator().manual_seed(seed % 1000)
    logits = 4 * torch.randn(301, generator=generator)
    history, banned = (torch.rand(301, generator=generator) < share for share in (0.2, 0.1))
    shape, place = (temperature, top_k, top_p), (seed, frame, codebook)
    facts = {"history": history, "penalty": penalty, "banned": banned}
    found = draw_native(logits, shape, place, **facts)  # type: ignore[arg-type]
    assert found == draw_reference(logits, shape, place, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("top_k", [0, 3])
def test_ties_with_the_last_kept_code_are_kept(top_k: int) -> None:
    logits = torch.tensor([1.0, 2.0, 2.0, 2.0, 2.0, 0.0])
    none = torch.zeros(6, dtype=torch.bool)
    drawn = set()
    for seed in range(200):
        place = (seed, 0, 0)
        args = (logits, (1.0, top_k, 1.0), place)
        code = draw_native(*args, history=none, penalty=1.0, banned=none)
        assert code == draw_reference(*args, history=none, penalty=1.0, banned=none)
        drawn.add(code)
    assert {1, 2, 3, 4} <= drawn


@pytest.mark.parametrize(
    ("value", "is_banned", "fails"),
    [
        (torch.nan, False, True),
        (torch.inf, False, True),
        (-torch.inf, False, False),
        (torch.nan, True, False),
    ],
)
def test_non_finite_logits_fail_unless_banned(value: float, is_banned: bool, fails: bool) -> None:
    logits = random(40)
    logits[7] = value
    none = torch.zeros(40, dtype=torch.bool)
    banned = none.clone()
    banned[7] = is_banned
    for top_k, top_p in ((0, 1.0), (5, 1.0), (5, 0.8)):
        args = (logits, (0.9, top_k, top_p), (1, 2, 3))
        found = draw_native(*args, history=none, penalty=1.1, banned=banned)
        assert (found == -1) == fails
        assert found == draw_reference(*args, history=none, penalty=1.1, banned=banned)


def test_draw_without_any_allowed_code_fails() -> None:
    every = torch.ones(8, dtype=torch.bool)
    args = (random(8), (0.9, 3, 1.0), (1, 2, 3))
    assert draw_native(*args, history=every, penalty=1.0, banned=every) == -1


def test_noise_equals_the_reference() -> None:
    table = NoiseTable([9, 11], torch.device("cpu"))
    for seed in (0, 7, 2**40 + 3, 2**63 - 1):
        noise = table.frames(torch.tensor([seed]), torch.tensor([5]), 2)[1][0]
        for frame in (0, 1):
            found = [binding.library().vivace_noise(seed, 5 + frame, 1, i) for i in range(11)]
            assert torch.allclose(torch.tensor(found), noise[frame], rtol=1e-5, atol=1e-6)
