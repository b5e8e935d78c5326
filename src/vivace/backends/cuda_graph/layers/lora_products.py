"""Launches the kernels of adapters that are chosen per row, around the products of the layers."""

from __future__ import annotations

import torch
from torch import Tensor

from vivace.backends.cuda_graph.launch_sizes import power_of_two
from vivace.backends.cuda_graph.layers import lora_kernels, products
from vivace.backends.cuda_graph.layers.products import Residual, options
from vivace.backends.cuda_graph.layers.tiles import NUM_WARPS
from vivace.model.layers import Linear, RMSNorm
from vivace.model.lora import StackedLora

# Block sizes depend on the ranks only: the order of a sum must not depend on the batch.
SHRINK_RANKS, SHRINK_DEPTH = 16, 256
EXPAND_NUMBERS = 2048  # columns times ranks
GATE_COLUMNS = 1024


def add_change(y: Tensor, lora: StackedLora, x: Tensor, adapters: Tensor, out: Tensor) -> Tensor:
    """Rows y [M, N] plus the changes of rows x [M, K] by their adapters [M], stored in `out`."""
    (num_rows, depth), (num_columns, rank) = x.shape, lora.b.shape[1:]
    num_ranks = lora.a.shape[1]
    assert adapters.shape == (num_rows,)
    assert adapters.is_contiguous()  # the kernels read it without strides
    inner = torch.empty(num_rows, num_ranks, device=x.device)
    lora_kernels.shrink_kernel[(num_rows, -(-num_ranks // SHRINK_RANKS))](
        x, adapters, lora.a, inner, x.stride(0), depth, num_ranks,
        BLOCK_R=SHRINK_RANKS, BLOCK_K=SHRINK_DEPTH, num_warps=NUM_WARPS, **options(x),
    )  # fmt: skip
    block = power_of_two(rank)
    columns = max(16, EXPAND_NUMBERS // block)
    lora_kernels.expand_kernel[(num_rows, -(-num_columns // columns))](
        inner, adapters, lora.b, lora.starts, y, out, num_columns, num_ranks, rank,
        BLOCK_N=columns, BLOCK_R=block, num_warps=NUM_WARPS, **options(x),
    )  # fmt: skip
    return out


def linear(x: Tensor, layer: Linear, adapters: Tensor | None) -> Tensor:
    """A linear layer of rows [M, K], with the changes of their adapters."""
    product = products.linear(x, layer.weight, bias=layer.bias)
    if adapters is None or layer.lora is None:
        return product
    return add_change(product, layer.lora, x, adapters, product)


def normed_linear(
    stream: Residual,
    weight: Tensor,
    lora: StackedLora | None,
    adapters: Tensor | None,
    *,
    is_gated: bool = False,
) -> Tensor:
    """`Residual.linear`, with the changes of the rows' adapters."""
    if adapters is None or lora is None:
        return stream.linear(weight, is_gated=is_gated)
    normed = stream.normalised()
    product = Residual(stream.rows, stream.norm, normed).linear(weight)
    add_change(product, lora, normed, adapters, product)
    return gate(product) if is_gated else product


def add_linear(
    stream: Residual, x: Tensor, layer: Linear, norm: RMSNorm, adapters: Tensor | None
) -> Residual:
    """`Residual.add_linear`. The changes of the rows' adapters are added before the product."""
    if adapters is not None and layer.lora is not None:
        rows = torch.empty_like(stream.rows)
        add_change(stream.rows, layer.lora, x, adapters, rows)
        stream = Residual(rows, stream.norm)
    return stream.add_linear(x, layer.weight, norm)


def gate(both: Tensor) -> Tensor:
    """silu(gate) * up of rows [M, 2 * N]."""
    num_rows, num_columns = len(both), both.shape[1] // 2
    out = both.new_empty(num_rows, num_columns)
    lora_kernels.gate_kernel[(num_rows, -(-num_columns // GATE_COLUMNS))](
        both, out, num_columns, BLOCK_N=GATE_COLUMNS, num_warps=NUM_WARPS, **options(both)
    )
    return out
