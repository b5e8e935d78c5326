"""Compiled kernels: rounding, shared memory and prefetches. Needs Triton, but no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from vivace.backends.cuda_graph.launch_sizes import power_of_two
from vivace.backends.cuda_graph.layers import attention_kernels, product_kernels, products, tiles

pytestmark = pytest.mark.gpu

UNALIGNED = ("num_rows", "first", "pages_stride")  # numbers that a kernel is not compiled anew for
NUMBERS = {
    **dict.fromkeys(("first", "size", "x_stride", "num_rows", "n_size", "k_size"), "i32"),
    **dict.fromkeys(("pages_stride", "page_stride", "head_stride", "num_positions"), "i32"),
    **dict.fromkeys(("score_stride", "layer"), "i32"),
    **dict.fromkeys(("pages", "watch"), "*i32"),
    **dict.fromkeys(("eps", "softmax_scale"), "fp32"),
    **dict.fromkeys(("slots", "positions", "num_keys"), "*i64"),
    **dict.fromkeys(("part_out", "part_max", "part_sum", "parts", "watched_scores"), "*fp32"),
}
ATTENTION = {"NUM_KV": 8, "GROUP": 2, "D": 128, "OVERLAPS": False}
NO_TILES = {"x_tiles": None, "weight_tiles": None}
PRODUCT = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 64, "DEPTH": 1024, "IS_EVEN": True}
KERNELS: list[tuple[Any, dict[str, Any]]] = [
    (
        attention_kernels.attend_frame_kernel,
        {**ATTENTION, "NUM_NEW": 1, "NUM_POSITIONS": 16, "BLOCK": 16, "ROWS": 2},
    ),
    (
        attention_kernels.attend_slots_kernel,
        {**ATTENTION, "CHUNK": 64, "SPAN": 4, "NUM_SPANS": 1},
    ),
    (attention_kernels.store_keys_kernel, {**ATTENTION, "BLOCK": 8, "CHUNK": 64}),
    (attention_kernels.attend_prompts_kernel, {**ATTENTION, "ROWS": 8, "BLOCK": 16, "CHUNK": 64}),
    (product_kernels.rms_norm_kernel, {"BLOCK": 1024, "IS_EARLY": True, "OVERLAPS": False}),
    (
        product_kernels.linear_kernel,
        PRODUCT
        | NO_TILES
        | {"NORM_ROWS": 1, "HAS_BIAS": True, "IS_GATED": True, "OVERLAPS": False},
    ),
    (product_kernels.residual_linear_kernel, {**PRODUCT, "OVERLAPS": False}),
    (product_kernels.residual_norm_kernel, {"BLOCK": 1024, "IS_EARLY": True, "OVERLAPS": False}),
]


def compiled(
    kernel: Any,
    constants: dict[str, Any],
    capability: int = 90,
    types: dict[str, str] | None = None,
    **options: Any,
) -> CompiledKernel:
    """Compile a kernel as for aligned tensors; `types` are those of some arguments."""
    names = kernel.arg_names
    known = NUMBERS | (types or {})
    signature = {n: "constexpr" if n in constants else known.get(n, "*bf16") for n in names}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(names)
            if signature[name][0] in "*i" and name not in UNALIGNED
        },
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def has_fused_rounding(kernel: Any, constants: dict[str, Any], *, is_rotating: bool) -> bool:
    fusion = products.options(torch.empty(0), is_rotating=is_rotating)["enable_fp_fusion"]
    code = compiled(kernel, constants, enable_fp_fusion=fusion).asm["ptx"]
    return re.search(r"fma\.rn\.\S*bf16", code) is not None


@pytest.mark.parametrize(("kernel", "constants"), KERNELS)
def test_no_bfloat16_kernel_uses_fma(kernel: Any, constants: dict[str, Any]) -> None:
    is_rotating = kernel.__module__ == attention_kernels.__name__
    assert not has_fused_rounding(kernel, constants, is_rotating=is_rotating)


def test_rope_kernels_use_fma_without_the_option() -> None:
    assert has_fused_rounding(*KERNELS[0], is_rotating=False)


@pytest.mark.parametrize("num_rows", [1, 32, 1024])
@pytest.mark.parametrize(("capability", "kib"), [(80, 163), (86, 99), (90, 227), (120, 99)])
def test_products_fit_shared_memory_of_every_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: int, kib: int, num_rows: int
) -> None:
    monkeypatch.setattr(tiles, "_shared_memory", lambda device: 2**10 * kib - tiles.RESERVE)
    monkeypatch.setattr(tiles, "_is_hopper", lambda device: capability == 90)
    for columns, depth, shape in (
        (4096, 1024, {}),
        (6144, 2048, {"is_gated": True}),
        (1024, 3072, {"has_residual": True}),
    ):
        out = torch.empty(num_rows, columns, dtype=torch.bfloat16, device="meta")
        cut = tiles.tiles(out, depth, **shape)
        constants: dict[str, Any] = {"BLOCK_M": cut.rows, "BLOCK_N": cut.columns}
        constants |= {
            "BLOCK_K": cut.depth,
            "DEPTH": power_of_two(depth),
            "IS_EVEN": True,
            "OVERLAPS": False,
        }
        kernel: Any = product_kernels.residual_linear_kernel
        if "has_residual" not in shape:
            kernel = product_kernels.linear_kernel
            constants |= {"NORM_ROWS": 0, "HAS_BIAS": False, "IS_GATED": "is_gated" in shape}
        options = {"num_warps": cut.num_warps, "num_stages": cut.num_stages}
        types = {}
        if "has_residual" not in shape and capability == 90 and num_rows > 16:
            types["x_tiles"] = f"tensordesc<bf16[{cut.rows}, {cut.depth}]>"
            types["weight_tiles"] = f"tensordesc<bf16[{cut.columns}, {cut.depth}]>"
        elif "has_residual" not in shape:
            constants |= NO_TILES
        found = compiled(kernel, constants, capability, types, **options)
        assert found.metadata.shared <= 2**10 * kib


@pytest.mark.parametrize("num_rows", [64, 128, 256])
def test_split_products_copy_tiles_and_fit_shared_memory(
    monkeypatch: pytest.MonkeyPatch, num_rows: int
) -> None:
    monkeypatch.setattr(tiles, "_is_hopper", lambda device: True)
    out = torch.empty(num_rows, 2048, dtype=torch.bfloat16, device="meta")
    cut = tiles.split_tiles(out, 6144)
    assert cut is not None
    constants = {"BLOCK_M": cut.rows, "BLOCK_N": cut.columns, "BLOCK_K": cut.depth}
    constants |= {"GROUP": tiles.GROUP, "DEPTH": 8192, "OVERLAPS": False}
    types = {
        "x_tiles": f"tensordesc<bf16[{cut.rows}, {cut.depth}]>",
        "weight_tiles": f"tensordesc<bf16[{cut.columns}, {cut.depth}]>",
    }
    options = {"num_warps": cut.num_warps, "num_stages": cut.num_stages}
    found = compiled(product_kernels.split_linear_kernel, constants, 90, types, **options)
    assert found.metadata.shared <= 2**10 * 227
    assert "cp.async.bulk.tensor" in found.asm["ptx"]
    assert "wgmma" in found.asm["ptx"]


PREFETCHED = """
import numpy as np
import torch
from triton import language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from vivace.backends.cuda_graph.layers import product_kernels

NUM_COLUMNS, DEPTH, LINE_BYTES = 64, 768, 128
addresses = []

def prefetch(builder, code, constraints, values, *rest):
    addresses.extend(values[0].data.ravel().tolist())
    handle = TensorHandle(np.zeros(values[0].data.shape, np.int32), tl.int32)
    handle.get_result = lambda number: handle
    return handle

InterpreterBuilder.create_inline_asm = prefetch
product_kernels.gdc_wait = product_kernels.gdc_launch_dependents = lambda: None
product_kernels.range = lambda *bounds: ()  # no products, only prefetches
x, weight = (torch.zeros(n, DEPTH, dtype=torch.bfloat16) for n in (16, NUM_COLUMNS))
product_kernels.split_linear_kernel[1, 1, 4](
    x, weight, torch.empty(4, len(x), NUM_COLUMNS), None, None, len(x), NUM_COLUMNS, DEPTH, DEPTH,
    GROUP=256, BLOCK_M=16, BLOCK_N=NUM_COLUMNS, BLOCK_K=64, DEPTH=1024, OVERLAPS=True,
)
begin = weight.data_ptr()
lines = set(range(begin, begin + weight.nbytes, LINE_BYTES))
print(len(lines - set(addresses)), len(set(addresses) - lines))
"""


def test_split_products_prefetch_every_line_of_their_weight_and_none_beyond_it() -> None:
    """With a depth that is no power of two, in Triton's interpreter."""
    command = [sys.executable, "-c", PREFETCHED]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["0", "0"]
