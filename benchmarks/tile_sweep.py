"""Microseconds of Triton's fused products by shape, rows and tile size; the basis of tiles.py.

    python benchmarks/tile_sweep.py --rows 64 --cases "0.6B down" --json benchmarks/results/x.json

Each product runs as one graph over more copies of its weight than the L2 cache holds, a residual
product together with the following norm. `--compile` only compiles the kernels.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from report import write_report
from torch import Tensor
from triton.runtime.errors import OutOfResources

from vivace.backends.cuda_graph.layers import product_wgmma, products
from vivace.backends.cuda_graph.layers.products import Residual
from vivace.backends.cuda_graph.layers.tiles import Tiles
from vivace.cli.bench.machine import machine
from vivace.model.layers import RMSNorm

CASES = {  # columns, depth, what is fused
    "0.6B qkv": (4096, 1024, "norm"),
    "0.6B o": (1024, 2048, "residual"),
    "0.6B gate-up": (3072, 1024, "gated"),
    "0.6B down": (1024, 3072, "residual"),
    "1.7B qkv": (4096, 2048, "norm"),
    "1.7B o": (2048, 2048, "residual"),
    "1.7B gate-up": (6144, 2048, "gated"),
    "1.7B down": (2048, 6144, "residual"),
}
ROWS = (1, 8, 32, 64, 128, 256, 512, 1024)
LARGE = [
    Tiles(32, 64, 256, 3),
    Tiles(32, 128, 128, 3),
    Tiles(64, 32, 128, 4),
    Tiles(64, 64, 128, 4),
    Tiles(64, 128, 64, 4),
    Tiles(128, 128, 64, 3, num_warps=8),
]
LARGE_RESIDUAL = [  # of one depth, which the sum's order follows
    Tiles(32, 16, 256, 3),
    Tiles(32, 32, 256, 3),
    Tiles(64, 32, 256, 2),
    Tiles(64, 64, 256, 2),
]
SPLIT = [
    Tiles(rows, columns, depth, stages, warps)
    for rows, columns, depth, stages, warps in (
        (32, 32, 128, 4, 4),
        (32, 64, 128, 4, 4),
        (64, 16, 128, 4, 4),
        (64, 32, 64, 4, 4),
        (64, 32, 128, 3, 4),
        (64, 32, 128, 4, 4),
        (64, 64, 64, 4, 4),
        (64, 64, 128, 3, 4),
        (64, 128, 64, 4, 4),
        (128, 32, 128, 3, 4),
        (128, 64, 64, 4, 4),
        (128, 64, 128, 3, 8),
        (128, 128, 64, 4, 8),
        (256, 64, 64, 3, 8),
    )
]
BYTES = 200e6  # of weights in one graph: several times the cache


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--compile", action="store_true", help="compile, measure nothing")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    results: list[dict[str, Any]] = []
    with torch.inference_mode():
        for name, rows in itertools.product(arguments.cases, arguments.rows):
            case = CASES[name]
            found = measure(case, rows, deadline, is_timed=not arguments.compile)
            results.append({"case": name, "rows": rows, "us": found})
            best = sorted(found.items(), key=lambda item: item[1])[:4]
            floor = weight_bytes(case) / 4.3e6
            print(f"{name:<14} rows {rows:<3} floor {floor:5.2f} us;", best, flush=True)
    if arguments.json:
        report = {"benchmark": "tile_sweep", "machine": machine(), "results": results}
        write_report(arguments.json, report)


def weight_bytes(case: tuple[int, int, str]) -> int:
    columns, depth, fused = case
    return 2 * columns * depth * (2 if fused == "gated" else 1)


@dataclass(frozen=True)
class Choice:
    """The tiles of a product, or of a residual product that is made in parts."""

    cut: Tiles
    is_split: bool = False

    def __str__(self) -> str:
        cut = self.cut
        name = f"{cut.rows}x{cut.columns}x{cut.depth} {cut.num_stages} {cut.num_warps}"
        return f"split {name}" if self.is_split else name


def candidates(num_rows: int, depth: int, fused: str) -> list[Choice]:
    if fused == "residual" and num_rows > 16:
        return [*map(Choice, LARGE_RESIDUAL), *(Choice(cut, is_split=True) for cut in SPLIT)]
    if num_rows > 64:
        return [Choice(cut) for cut in LARGE]
    rows = 16 if num_rows <= 16 else 32
    columns = (8, 16, 32) if rows == 16 else (16, 32, 64)
    cuts = itertools.product(columns, (128, 256, 512), (2, 4))
    small = [Tiles(rows, n, k, stages) for n, k, stages in cuts if depth % k == 0]
    return [Choice(cut) for cut in (small if rows == 16 else [*small, *LARGE])]


def measure(
    case: tuple[int, int, str], num_rows: int, deadline: float, *, is_timed: bool
) -> dict[str, float]:
    columns, depth, fused = case
    count = max(8, int(BYTES / weight_bytes(case))) if is_timed else 1
    height = 2 * columns if fused == "gated" else columns
    weights = torch.randn(count, height, depth, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(num_rows, depth, device="cuda", dtype=torch.bfloat16)
    before, after = Residual(x, make_norm(depth)), make_norm(columns)
    stream = Residual(torch.randn(num_rows, columns, device="cuda", dtype=torch.bfloat16), after)
    made: dict[str, Callable[[Tensor], Tensor]] = {
        "norm": before.linear,
        "gated": lambda weight: before.linear(weight, is_gated=True),
        "residual": lambda weight: stream.add_linear(x, weight, after).normalised(),
    }
    found = {}
    for choice in candidates(num_rows, depth, fused):
        if time.monotonic() > deadline:
            break
        choose(choice)
        try:
            made[fused](weights[0])
            if is_timed:
                found[str(choice)] = time_products(made[fused], weights)
        except (RuntimeError, OutOfResources) as error:  # too much shared memory
            print(choice, str(error).splitlines()[0])
    return found


def choose(choice: Choice) -> None:
    product_wgmma.find_tiles = lambda *_: None
    products.split_tiles = lambda *_: choice.cut if choice.is_split else None  # type: ignore
    if not choice.is_split:
        products.tiles = lambda *_, **__: choice.cut  # type: ignore


def make_norm(size: int) -> RMSNorm:
    norm = RMSNorm(size, 1e-6).to("cuda", torch.bfloat16)
    norm.weight.data.fill_(1.0)
    return norm


def time_products(product: Callable[[Tensor], Tensor], weights: Tensor) -> float:
    """Microseconds per product in a sequence of products."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            product(weight)
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(5):
        graph.replay()
    end.record()
    end.synchronize()
    return round(1000 * float(start.elapsed_time(end)) / 5 / len(weights), 3)


if __name__ == "__main__":
    main()
