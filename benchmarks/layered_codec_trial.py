"""The codec with a kernel per layer beside the one in the package: error and milliseconds.

    python benchmarks/layered_codec_trial.py --json build/x.json [--sweep-s 120]

Times are of graphs of a codec of true shape with random weights. `--sweep-s` then tries other tiles
for every convolution, until that many seconds are over.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from codec import CUDA, SIZES, decode_ms
from layered_codec.decoder import LayeredDecoder
from layered_codec.layers import Past, Product
from layered_codec.tiles import Tile, pick_tile
from persistent import time_graph
from shapes import load_configs, random_module

from vivace.backends.cuda_graph.codec_fused import FusedDecoder
from vivace.backends.cuda_graph.codec_plain import PlainDecoder
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.cli.bench.machine import machine
from vivace.model.codec import Codec

SWEPT = ((1, 1), (64, 1), (64, 8))  # slots, frames
TILES = (
    Tile(16, 16, 128, 4, 4), Tile(16, 32, 128, 4, 4), Tile(16, 64, 64, 4, 4),
    Tile(32, 16, 128, 4, 4), Tile(32, 32, 128, 4, 3), Tile(32, 64, 64, 4, 4),
    Tile(64, 32, 64, 4, 4), Tile(64, 64, 64, 4, 4), Tile(64, 128, 64, 4, 3),
    Tile(128, 32, 32, 4, 4), Tile(128, 64, 64, 4, 3), Tile(128, 128, 32, 8, 4),
    Tile(128, 128, 64, 8, 3), Tile(128, 256, 64, 8, 3), Tile(256, 128, 32, 8, 3),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sweep-s", type=float, default=0.0)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"benchmark": "layered codec", "machine": machine(), "results": []}
    with torch.inference_mode():
        for is_half in (False, True):
            report["results"].append(measure(is_half))
            print(report["results"][-1], flush=True)
            write(arguments.json, report)
        report["sweep"] = sweep(arguments.sweep_s)
    write(arguments.json, report)


def write(path: Path | None, report: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n")


def measure(is_half: bool) -> dict[str, Any]:
    codec = true_codec()
    old = FusedDecoder(codec, 65, is_half=is_half)
    new = LayeredDecoder(codec, 65, is_half=is_half)
    return {
        "precision": "half" if is_half else "split",
        "db_from_float32": distance(is_half),
        "fused_ms": {f"{b} x {t}": decode_ms(old, b, t) for b, t in SIZES},
        "layered_ms": {f"{b} x {t}": decode_ms(new, b, t) for b, t in SIZES},
    }


def true_codec() -> Codec:
    _, config = load_configs("0.6B-CustomVoice")
    codec = random_module(Codec, config, CUDA, torch.float32)
    codec.fold()
    return codec


def distance(is_half: bool) -> float:
    """Decibels from plain float32: the codec of the voice in the package, slots in any order."""
    codec = Checkpoint.open(EMBEDDED).load_codec(CUDA)
    config = codec.config.decoder_config
    plain, new = PlainDecoder(codec, 6), LayeredDecoder(codec, 6, is_half=is_half)
    error = power = 0.0
    for rows, frames in (([0, 1], 1), ([1], 8), ([2, 0, 1, 4, 3], 4), ([4], 16), ([4, 0], 2)):
        slots = torch.tensor(rows, device=CUDA)
        shape = (len(rows), frames, config.num_quantizers)
        codes = torch.randint(config.codebook_size, shape, device=CUDA)
        expected, found = plain.decode(slots, codes), new.decode(slots, codes)
        error += float((expected - found).double().square().sum())
        power += float(expected.double().square().sum())
    return round(10 * float(torch.tensor(power / error).log10()), 1)


def sweep(seconds: float) -> list[dict[str, Any]]:
    """The quickest tiles of every product in half precision, by number of slots and frames."""
    deadline, found = time.monotonic() + seconds, []
    decoder = LayeredDecoder(true_codec(), 65, is_half=True)
    for slots, frames in SWEPT:
        past = Past(decoder._histories, torch.arange(slots, device=CUDA), decoder._num_seen)
        length, seen = frames, set[object]()
        for product in decoder.products():
            taps, columns, depth = product.weight.shape
            shape = (length, taps, columns, depth, product.activation is None)
            length *= 1 if product.bias is None else max(1, columns // len(product.bias))
            if shape in seen or time.monotonic() > deadline:
                continue
            seen.add(shape)
            found.append({"slots": slots, "frames": frames, "shape": shape[:4]})
            found[-1]["ms"] = fastest(product, slots, shape[0], past, deadline)
            print(found[-1], flush=True)
    return found


def fastest(
    product: Product, num_slots: int, length: int, past: Past, deadline: float
) -> list[tuple[float, str]]:
    """The four best, and the one that `pick_tile` takes."""
    _, columns, depth = product.weight.shape
    x = torch.randn(num_slots, length, depth, device=CUDA).to(product.weight.dtype)
    chosen = pick_tile(num_slots * length, columns, depth, CUDA, product.weight.dtype)
    times = []
    for tile in dict.fromkeys((chosen, *TILES)):
        if time.monotonic() > deadline or tile.columns > 2 * columns:
            continue
        tried = replace(product, tile=tile)
        run = tried.run if product.activation is None else tried.activate
        try:
            times.append((round(time_graph(lambda run=run: run(x, past), 20), 4), str(tile)))
        except Exception as error:  # too much shared memory
            print(tile, str(error).splitlines()[-1][:100])
    return [*sorted(times)[:4], *((t, f"chosen: {n}") for t, n in times if n == str(chosen))]


if __name__ == "__main__":
    main()
