# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Microseconds of a predictor layer by rows and kernel variant; the basis of all tile sizes.

    python benchmarks/layer_chain.py --rows 64 256 --json benchmarks/results/x.json

A graph runs five layers of 0.6B three times, with programmatic dependent launch as in production.
The kernels are varied one after another, and the fastest variant with equal results is kept.
Variants are Triton kernels (tiles.py) and CUDA kernels (product_wgmma.py). The order `megakernel`
is that of the megakernel's sums: eight slices, each in two parts of every other 16 numbers.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from persistent import CUDA, time_graph
from report import write_report
from torch import Tensor
from triton.runtime.errors import OutOfResources

from vivace.backends.cuda_graph.layers import attention, product_wgmma, products
from vivace.backends.cuda_graph.layers.attention import Heads, SlotKeys
from vivace.backends.cuda_graph.layers.product_kernels import wait_for_last
from vivace.backends.cuda_graph.layers.product_wgmma import WgmmaTiles, find_tiles
from vivace.backends.cuda_graph.layers.products import Residual
from vivace.backends.cuda_graph.layers.tiles import Tiles, split_tiles, tiles
from vivace.cli.bench.machine import machine
from vivace.model.layers import RMSNorm

HIDDEN, INNER, NUM_HEADS, NUM_KV, HEAD_DIM, NUM_LAYERS, NUM_BOOKS = 1024, 3072, 16, 8, 128, 5, 16
NUM_PASSES = 3
SHAPES = {  # of the weights
    "qkv": ((NUM_HEADS + 2 * NUM_KV) * HEAD_DIM, HIDDEN),
    "o": (HIDDEN, NUM_HEADS * HEAD_DIM),
    "gate-up": (2 * INNER, HIDDEN),
    "down": (HIDDEN, INNER),
}
WIDE = {
    64: (Tiles(64, 32, 128, 4), Tiles(64, 32, 64, 8), Tiles(64, 64, 128, 3), Tiles(64, 64, 64, 6)),
    256: (
        *(Tiles(64, 128, 64, 4), Tiles(64, 64, 128, 4), Tiles(128, 64, 64, 4)),
        *(Tiles(128, 64, 64, 6), Tiles(128, 64, 64, 4, 8), Tiles(128, 128, 64, 3, 8)),
        *(Tiles(128, 128, 64, 4, 8), Tiles(256, 64, 64, 3, 8)),
    ),
    1024: (Tiles(128, 128, 64, 3, 8), Tiles(128, 128, 64, 4, 8), Tiles(256, 128, 64, 3, 8)),
}
SPLIT = {
    64: (Tiles(64, 32, 64, 4), Tiles(64, 32, 64, 7), Tiles(64, 64, 64, 4), Tiles(64, 64, 64, 6)),
    256: (
        *(Tiles(64, 64, 64, 4), Tiles(128, 32, 64, 6), Tiles(128, 64, 64, 4)),
        *(Tiles(128, 64, 64, 6), Tiles(128, 128, 64, 4, 8), Tiles(256, 64, 64, 4, 8)),
    ),
    1024: (Tiles(128, 64, 64, 4), Tiles(128, 128, 64, 4, 8), Tiles(256, 128, 64, 3, 8)),
}
GATED_WGMMA = {
    64: (WgmmaTiles(64, 24, 6), WgmmaTiles(64, 24, 8), WgmmaTiles(64, 32, 6)),
    256: (WgmmaTiles(128, 48, 4), WgmmaTiles(128, 48, 6), WgmmaTiles(64, 48, 6)),
    1024: (WgmmaTiles(128, 64, 6), WgmmaTiles(256, 48, 4)),
}
SPLIT_WGMMA = {
    64: (WgmmaTiles(64, 32, 6), WgmmaTiles(64, 64, 4), WgmmaTiles(64, 64, 8)),
    256: (WgmmaTiles(128, 64, 4), WgmmaTiles(128, 64, 6), WgmmaTiles(64, 64, 6)),
    1024: (WgmmaTiles(128, 128, 3), WgmmaTiles(256, 128, 4)),
}
ORDERED = {64: (Tiles(64, 32, 64, 6),), 256: (Tiles(128, 64, 64, 4), Tiles(64, 128, 64, 4))}


@triton.jit(do_not_specialize=["num_rows"])
def ordered_kernel(
    x, weight, out, num_rows, n_size, k_size,
    IS_GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """A product in the megakernel's order."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    w_rows = weight + n.to(tl.int64) * k_size
    u_rows = w_rows + n_size.to(tl.int64) * k_size
    wait_for_last(OVERLAPS)
    is_row = m < num_rows
    i = tl.arange(0, 64)
    within = (i // 16 * 32 + i % 16)[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up_acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for part in range(k_size // 64):
        k = part // 2 * 128 + part % 2 * 16 + within
        a = tl.load(x + m[:, None] * k_size + k, mask=is_row[:, None], other=0.0)
        acc += tl.dot(a, tl.trans(tl.load(w_rows[:, None] + k)))
        if IS_GATED:
            up_acc += tl.dot(a, tl.trans(tl.load(u_rows[:, None] + k)))
    y = acc.to(x.dtype.element_ty)
    if IS_GATED:
        y = (y.to(tl.float32) * tl.sigmoid(y.to(tl.float32)) * up_acc).to(x.dtype.element_ty)
    tl.store(out + m[:, None] * n_size + n[None, :], y, mask=is_row[:, None])


@dataclass(frozen=True)
class Variant:
    cut: Tiles | WgmmaTiles
    is_ordered: bool = False

    def report(self) -> dict[str, Any]:
        cut = self.cut
        name = f"{cut.rows}x{cut.columns}, {cut.num_stages} stages"
        order = "megakernel" if self.is_ordered else "sequence"
        if isinstance(cut, WgmmaTiles):
            return {"tiles": f"wgmma {name}", "num_warps": cut.num_threads // 32, "order": order}
        return {"tiles": f"{name} of {cut.depth}", "num_warps": cut.num_warps, "order": order}


class Chain:
    def __init__(self, num_rows: int) -> None:
        self.layers = [
            {name: random_rows(*shape, scale=shape[1] ** -0.5) for name, shape in SHAPES.items()}
            for _ in range(NUM_LAYERS)
        ]
        keys = (num_rows, NUM_KV, NUM_BOOKS, HEAD_DIM)
        self.caches = [SlotKeys(random_rows(*keys), random_rows(*keys)) for _ in self.layers]
        self.norm, head_norm = make_norm(HIDDEN), make_norm(HEAD_DIM)
        self.block: Any = SimpleNamespace(
            self_attn=SimpleNamespace(q_norm=head_norm, k_norm=head_norm)
        )
        cos, sin = random_rows(NUM_BOOKS, HEAD_DIM), random_rows(NUM_BOOKS, HEAD_DIM)
        self.heads = Heads(NUM_HEADS, NUM_KV, HEAD_DIM, cos, sin)
        self.rows, self.normed = random_rows(num_rows, HIDDEN), random_rows(num_rows, HIDDEN)

    def wide(self, name: str, x: Tensor, weight: Tensor, variant: Variant | None) -> Tensor:
        is_gated = name == "gate-up"
        if variant is not None and variant.is_ordered:
            assert isinstance(variant.cut, Tiles)
            return ordered_linear(x, weight, variant.cut, is_gated=is_gated)
        choose(variant)
        return products.linear(x, weight, is_gated=is_gated)

    def add(self, x: Tensor, weight: Tensor, rows: Tensor, variant: Variant | None) -> Residual:
        choose(variant)
        return Residual(rows, self.norm).add_linear(x, weight, self.norm)

    def run(self, variants: dict[str, Variant]) -> None:
        rows, normed = self.rows, self.normed
        for weights, cache in zip(self.layers * NUM_PASSES, self.caches * NUM_PASSES, strict=True):
            qkv = self.wide("qkv", normed, weights["qkv"], variants.get("qkv"))
            x = attention.attend_frame(qkv, self.block, self.heads, cache, 7, 1)
            for name in ("o", "down"):
                if name == "down":
                    gated = variants.get("gate-up")
                    x = self.wide("gate-up", normed, weights["gate-up"], gated)
                stream = self.add(x, weights[name], rows, variants.get(name))
                rows, normed = stream.rows, stream.normalised()

    def outputs(self, name: str, variant: Variant) -> list[Tensor]:
        """The product by the production tiles and by the variant."""
        weight = self.layers[0][name]
        x = random_rows(len(self.rows), weight.shape[1])
        if name in ("qkv", "gate-up"):
            return [self.wide(name, x, weight, each) for each in (None, variant)]
        return [self.add(x, weight, self.rows, each).rows for each in (None, variant)]


def choose(variant: Variant | None) -> None:
    """Let all products use the variant; None: the production tiles."""
    cut = None if variant is None else variant.cut
    is_triton = isinstance(cut, Tiles)
    wide = find_tiles if cut is None else lambda *_: None if is_triton else cut
    setattr(product_wgmma, "find_tiles", wide)  # noqa: B010
    setattr(products, "tiles", (lambda *_, **__: cut) if is_triton else tiles)  # noqa: B010
    setattr(products, "split_tiles", (lambda *_: cut) if is_triton else split_tiles)  # noqa: B010


def ordered_linear(x: Tensor, weight: Tensor, cut: Tiles, *, is_gated: bool) -> Tensor:
    columns = len(weight) // (1 + is_gated)
    out = x.new_empty(len(x), columns)
    ordered_kernel[(-(-len(x) // cut.rows), columns // cut.columns)](
        x, weight, out, len(x), columns, x.shape[1], IS_GATED=is_gated, BLOCK_M=cut.rows,
        BLOCK_N=cut.columns, num_stages=cut.num_stages, num_warps=cut.num_warps,
        **products.options(x),
    )  # fmt: skip
    return out


def random_rows(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, device=CUDA, dtype=torch.bfloat16).mul_(scale)


def make_norm(size: int) -> RMSNorm:
    norm = RMSNorm(size, 1e-6).to(CUDA, torch.bfloat16)
    norm.weight.data.fill_(1.0)
    return norm


def measure(num_rows: int) -> list[dict[str, Any]]:
    chain, best, found = Chain(num_rows), dict[str, Variant](), []
    size = next(size for size in WIDE if num_rows <= size)
    for name in SHAPES:
        is_wide = name in ("qkv", "gate-up")
        times: list[tuple[float, Variant]] = []
        cuts: tuple[Tiles | WgmmaTiles, ...] = (WIDE if is_wide else SPLIT)[size]
        if name != "qkv":
            cuts += (GATED_WGMMA if is_wide else SPLIT_WGMMA)[size]
        variants = [Variant(cut) for cut in cuts]
        ordered = [Variant(cut, is_ordered=True) for cut in ORDERED.get(size, ()) if is_wide]
        for variant in variants + ordered:
            try:
                us = 1000 * time_graph(lambda: chain.run(best | {name: variant}), 10)  # noqa: B023
            except OutOfResources:  # shared memory
                continue
            is_equal = torch.equal(*chain.outputs(name, variant))
            us = round(us / NUM_LAYERS / NUM_PASSES, 2)
            row = {"rows": num_rows, "kernel": name, "us": us, "is_equal": is_equal}
            found.append(row | variant.report())
            print(found[-1], flush=True)
            times += [(us, variant)] if is_equal else []
        best[name] = min(times, key=lambda each: each[0])[1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with torch.inference_mode():
        results = [row for num_rows in arguments.rows for row in measure(num_rows)]
    if arguments.json:
        report = {"benchmark": "layer_chain", "machine": machine(), "results": results}
        write_report(arguments.json, report)


if __name__ == "__main__":
    main()
