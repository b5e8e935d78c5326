"""Microseconds of the fused products by shape, rows and tile size; the basis of tiles.py.

    python benchmarks/kernels.py --json benchmarks/results/x.json

Each product runs over enough copies of its weight that none stays in the cache, as one graph.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vivace.backends.cuda_graph import launch
from vivace.backends.cuda_graph.tiles import Tiles
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
BYTES = 200e6  # of weights in one graph: several times the cache


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    results: list[dict[str, Any]] = []
    with torch.inference_mode():
        for (name, case), rows in itertools.product(CASES.items(), ROWS):
            found = measure(case, rows, deadline)
            results.append({"case": name, "rows": rows, "us": found})
            best = sorted(found.items(), key=lambda item: item[1])[:4]
            floor = weight_bytes(case) / 4.3e6
            print(f"{name:<14} rows {rows:<3} floor {floor:5.2f} us;", best, flush=True)
    if arguments.json:
        report = {"benchmark": "kernels", "machine": machine(), "results": results}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def weight_bytes(case: tuple[int, int, str]) -> int:
    columns, depth, fused = case
    return 2 * columns * depth * (2 if fused == "gated" else 1)


def candidates(num_rows: int, depth: int, fused: str) -> list[Tiles]:
    if num_rows > 64:
        return LARGE_RESIDUAL if fused == "residual" else LARGE
    rows = 16 if num_rows <= 16 else 32
    columns = (8, 16, 32) if rows == 16 else (16, 32, 64)
    cuts = itertools.product(columns, (128, 256, 512), (2, 4))
    small = [Tiles(rows, n, k, stages) for n, k, stages in cuts if depth % k == 0]
    return small if rows == 16 or fused == "residual" else [*small, *LARGE]


def measure(case: tuple[int, int, str], num_rows: int, deadline: float) -> dict[str, float]:
    columns, depth, fused = case
    count = max(8, int(BYTES / weight_bytes(case)))
    height = 2 * columns if fused == "gated" else columns
    weights = torch.randn(count, height, depth, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(num_rows, depth, device="cuda", dtype=torch.bfloat16)
    residual = torch.randn(num_rows, columns, device="cuda", dtype=torch.bfloat16)
    norm = RMSNorm(depth, 1e-6).to("cuda", torch.bfloat16)
    norm.weight.data.fill_(1.0)
    options: dict[str, Any] = {
        "norm": {"norm": norm},
        "gated": {"norm": norm, "is_gated": True},
        "residual": {"residual": residual},
    }[fused]
    product = launch.residual_linear if fused == "residual" else launch.linear
    found = {}
    for cut in candidates(num_rows, depth, fused):
        if time.monotonic() > deadline:
            break
        key = f"{cut.rows}x{cut.columns}x{cut.depth} {cut.num_stages} {cut.num_warps}"
        try:
            found[key] = time_products(lambda weight: product(x, weight, **options), weights, cut)
        except RuntimeError as error:  # too much shared memory
            found[key] = float("inf")
            print(key, str(error).splitlines()[0])
    return found


def time_products(product: Callable[[Tensor], Tensor], weights: Tensor, cut: Tiles) -> float:
    """Microseconds of one product in a chain of them."""
    launch.tiles = lambda *_, **__: cut
    product(weights[0])
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
    return round(1000 * start.elapsed_time(end) / 5 / len(weights), 3)


if __name__ == "__main__":
    main()
