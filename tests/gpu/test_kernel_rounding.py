"""What the kernels are compiled to rounds where the reference does; needs Triton, and no GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vivace.backends.cuda_graph import attention_kernels, launch, product_kernels

pytestmark = pytest.mark.gpu

FUSED = re.compile(r"fma\.rn\.\S*bf16")
NUMBERS = {
    **dict.fromkeys(("first", "size", "x_stride", "num_rows", "n_size", "k_size"), "i32"),
    **dict.fromkeys(("slot_stride", "head_stride", "num_positions"), "i32"),
    **dict.fromkeys(("eps", "softmax_scale"), "fp32"),
    **dict.fromkeys(("slots", "positions", "num_keys"), "*i64"),
    **dict.fromkeys(("part_out", "part_max", "part_sum"), "*fp32"),
}
ATTENTION = {"NUM_KV": 8, "GROUP": 2, "D": 128, "OVERLAPS": False}
PRODUCT = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 64, "DEPTH": 1024, "IS_EVEN": True}
KERNELS: list[tuple[Any, dict[str, Any]]] = [
    (
        attention_kernels.attend_frame_kernel,
        {**ATTENTION, "NUM_NEW": 1, "NUM_POSITIONS": 16, "BLOCK": 16},
    ),
    (attention_kernels.attend_slots_kernel, {**ATTENTION, "CHUNK": 64, "NUM_CHUNKS": 4}),
    (attention_kernels.store_keys_kernel, {**ATTENTION, "BLOCK": 8}),
    (attention_kernels.attend_prompts_kernel, {**ATTENTION, "ROWS": 8, "BLOCK": 16, "CHUNK": 64}),
    (product_kernels.rms_norm_kernel, {"BLOCK": 1024, "OVERLAPS": False}),
    (
        product_kernels.linear_kernel,
        {**PRODUCT, "NORM_ROWS": 1, "HAS_BIAS": True, "IS_GATED": True, "OVERLAPS": False},
    ),
    (product_kernels.residual_linear_kernel, {**PRODUCT, "PARTS": 4, "OVERLAPS": False}),
]


def compiled(kernel: Any, constants: dict[str, Any], *, is_rotating: bool) -> str:
    signature = {
        name: "constexpr" if name in constants else NUMBERS.get(name, "*bf16")
        for name in kernel.arg_names
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places)
    fusion = launch.options(torch.empty(0), is_rotating=is_rotating)["enable_fp_fusion"]
    hopper = GPUTarget("cuda", 90, 32)
    made = triton.compile(source, target=hopper, options={"enable_fp_fusion": fusion})
    code: str = made.asm["ptx"]
    return code


@pytest.mark.parametrize(("kernel", "constants"), KERNELS)
def test_no_product_and_sum_in_bfloat16_are_one_operation(
    kernel: Any, constants: dict[str, Any]
) -> None:
    is_rotating = kernel.__module__ == attention_kernels.__name__
    assert not FUSED.search(compiled(kernel, constants, is_rotating=is_rotating))


def test_those_of_a_rotation_would_be() -> None:
    assert FUSED.search(compiled(*KERNELS[0], is_rotating=False))
