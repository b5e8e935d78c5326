"""Milliseconds of the codec's decoder by precision, slots and frames, and its distance to float32.

    python benchmarks/codec.py --json benchmarks/results/x.json

Times are those of CUDA graphs of a codec with the released shape and random weights. The distance
is measured on a spoken sentence of the embedded voice.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from persistent import CUDA, time_graph
from report import write_report
from shapes import load_configs, random_module
from torch import Tensor

from vivace.backends.cuda_graph.codec.fused import FusedDecoder
from vivace.backends.cuda_graph.codec.plain import PlainDecoder, SlotDecoder
from vivace.backends.cuda_graph.compile import kernel_compiler
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.cli.bench.machine import machine
from vivace.model.codec import Codec
from vivace.tts import TTS

SIZES = ((1, 1), (1, 8), (8, 1), (8, 8), (64, 1), (64, 4), (64, 8))  # slots, frames
TEXT = "The quick brown fox jumps over the lazy dog, and nobody in the village knows why."


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with torch.inference_mode():
        results = [measure(is_half) for is_half in (False, True)]
        for result, error in zip(results, distances(), strict=True):
            result["db_from_float32"] = error
            print(result, flush=True)
    if arguments.json:
        report = {"benchmark": "codec", "machine": machine(), "results": results}
        write_report(arguments.json, report)


def measure(is_half: bool) -> dict[str, Any]:
    _, config = load_configs("0.6B-CustomVoice")
    codec = random_module(Codec, config, CUDA, torch.float32)
    codec.fold()
    decoder = FusedDecoder(codec, 65, is_half=is_half)
    passes = {f"{slots} x {frames}": decode_pass(decoder, slots, frames) for slots, frames in SIZES}
    if (compile_kernels := kernel_compiler(CUDA)) is not None:
        compile_kernels(passes.values())
    figures = {name: round(time_graph(work, 20), 3) for name, work in passes.items()}
    return {"precision": "half" if is_half else "split", "ms": figures}


def decode_pass(decoder: SlotDecoder, num_slots: int, num_frames: int) -> Callable[[], Tensor]:
    rows = torch.arange(num_slots, device=CUDA)
    codes = torch.randint(2048, (num_slots, num_frames, 16), device=CUDA)
    return lambda: decoder.decode(rows, codes)


def distances() -> list[float]:
    """Decibels between the fused decoders and plain float32, over a spoken sentence."""
    codec = Checkpoint.open(EMBEDDED).load_codec(CUDA)
    with TTS.load(device="cuda", dtype="float32", backend="eager") as tts:
        spoken = [chunk.codes for chunk in tts.stream(TEXT, seed=1)]
    codes = torch.cat([torch.as_tensor(each) for each in spoken if each is not None])
    codes = codes.to(CUDA)[None]
    row = torch.zeros(1, dtype=torch.int64, device=CUDA)

    def decoded(decoder: SlotDecoder) -> Tensor:
        return torch.cat([decoder.decode(row, part) for part in codes.split(8, dim=1)], dim=1)

    expected = decoded(PlainDecoder(codec, 2))
    found = [decoded(FusedDecoder(codec, 2, is_half=is_half)) for is_half in (False, True)]
    ratios = [expected.norm() / (each - expected).norm() for each in found]
    return [round(float(20 * ratio.log10()), 1) for ratio in ratios]


if __name__ == "__main__":
    main()
