"""Milliseconds of a frame and of its parts with the persistent kernels and with the fused kernels.

    python benchmarks/persistent.py 0.6B-CustomVoice --json benchmarks/results/x.json

Random weights of the released shapes, sampling on, `--positions` keys in every slot. Each part is
timed as a separate CUDA graph, the frame as the backend's step. The share is the time of reading
the weights at the bandwidth of a copy, measured in the same run, over the measured time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from report import write_report
from shapes import load_configs, random_module

from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.layers.frame import DrawKind, KvPositions, SamplingState
from vivace.backends.cuda_graph.slots.pages import num_pages
from vivace.backends.cuda_graph.slots.table import Number, Scale, SlotTable
from vivace.backends.megakernel.backend import MegakernelBackend
from vivace.cli.bench.machine import machine
from vivace.model.codec import Codec
from vivace.model.config_file import parse_model_config
from vivace.model.fp8 import round_weights
from vivace.model.talker import Qwen3TTS
from vivace.prompt import build_prompt
from vivace.speech import SamplingParams

CUDA = torch.device("cuda")
MAX_FRAMES = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shapes", nargs="+", help="names of released models")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--positions", type=int, default=200)
    parser.add_argument("--weights", choices=("full", "fp8"), default="full")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    with torch.inference_mode():
        bandwidth = copy_bandwidth()
        for shape in arguments.shapes:
            for result in measure(arguments, shape, bandwidth):
                results.append(result)
                print(" | ".join(f"{name} {value}" for name, value in result.items()), flush=True)
    if arguments.json:
        report = {"benchmark": "persistent", "machine": machine(), "results": results}
        write_report(arguments.json, report)


def copy_bandwidth() -> float:
    """Bytes per second, read and written, of a large copy on the device."""
    source = torch.ones(2**29, device=CUDA)
    target = torch.empty_like(source)
    return 2 * source.nbytes / (time_graph(lambda: torch.neg(source, out=target), 5) / 1000)


def measure(arguments: argparse.Namespace, shape: str, bandwidth: float) -> list[dict[str, Any]]:
    batches, num_positions = arguments.batches, arguments.positions
    config, codec_config = load_configs(shape)
    model = random_module(Qwen3TTS, parse_model_config(config), CUDA, torch.bfloat16)
    if arguments.weights == "fp8":
        round_weights(model)
    codec = random_module(Codec, codec_config, CUDA, torch.float32)
    codec.fold()
    results: list[dict[str, Any]] = []
    for kind in (MegakernelBackend, CudaGraphBackend):
        backend = kind(model, codec, max_streams=max(batches), max_frames=MAX_FRAMES)
        for batch in batches:
            results.append(
                {
                    "shape": shape,
                    "weights": arguments.weights,
                    "backend": backend.name,
                    "batch": batch,
                    "frame_ms": frame_ms(backend, batch),
                    **parts_ms(backend, batch, num_positions),
                }
            )
        backend = None  # type: ignore[assignment]
        torch.cuda.empty_cache()
    for result in results:
        is_fp8 = arguments.weights == "fp8" and result["backend"] == "megakernel"
        num_bytes = talker_bytes(model, is_fp8)
        result["talker_share"] = round(num_bytes / bandwidth / result["talker_ms"] * 1000, 3)
    return results


def talker_bytes(model: Qwen3TTS, is_fp8: bool) -> int:
    """Bytes of layer weights that one step reads."""
    named = model.talker.model.layers.named_parameters()
    return sum(p.nbytes // 2 if is_fp8 and ".mlp." in name else p.nbytes for name, p in named)


def frame_ms(backend: CudaGraphBackend, batch: int, num_frames: int = 64) -> float:
    """Wall time per frame in a step of many frames."""
    prompt = build_prompt(
        backend.model.config, list(range(50, 70)), role_ids=[1, 2, 3], layout="whole", preset="ryan"
    )
    figures = []
    for seed in range(4):
        sampling = SamplingParams(seed=seed, min_frames=10_000, max_frames=10_000)
        slots = [backend.admit(prompt, sampling) for _ in range(batch)]
        backend.step(slots, 4)
        torch.cuda.synchronize()
        began = time.perf_counter()
        backend.step(slots, num_frames)
        figures.append(1000 * (time.perf_counter() - began) / num_frames)
        for slot in slots:
            backend.release(slot)
    return round(statistics.median(figures[1:]), 3)


def parts_ms(backend: CudaGraphBackend, batch: int, num_positions: int) -> dict[str, float]:
    layers, width = backend._layers, backend.model.config.talker_config.hidden_size
    give_pages(backend._table, batch, num_positions + 1)
    x = torch.randn(batch, width, device=CUDA).bfloat16()
    position = torch.full((batch,), num_positions, device=CUDA)
    place = KvPositions(torch.arange(batch, device=CUDA), position, position + 1, num_positions + 1)
    draws = default_draws(batch)
    torch.cuda.synchronize()  # the backend's stream does not wait for the default stream
    with backend.graphs.on_stream():
        return {
            "talker_ms": round(time_graph(lambda: layers.read(x, place)), 4),
            "speak_ms": round(time_graph(lambda: layers.draw_frame(x, draws)), 4),
        }


def give_pages(table: SlotTable, num_slots: int, num_positions: int) -> None:
    """Assign pages with random keys and values to every slot."""
    count = num_pages(num_positions)
    pages = torch.arange(num_slots * count, device=CUDA)
    table.pages[:num_slots, :count] = pages.view(num_slots, count).int()
    for tensor in (table.keys, table.values):
        tensor[:, : len(pages)].normal_()


def default_draws(batch: int) -> SamplingState:
    numbers = torch.zeros(len(Number), batch, dtype=torch.int64, device=CUDA)
    numbers[Number.SEED] = torch.arange(batch, device=CUDA)
    numbers[Number.LAST] = numbers[Number.PREDICTOR_LAST] = 49
    scales = torch.ones(len(Scale), batch, device=CUDA)
    scales[Scale.TEMPERATURE] = scales[Scale.PREDICTOR_TEMPERATURE] = 0.9
    return SamplingState(
        kind=DrawKind(None, has_top_p=False),
        numbers=numbers,
        scales=scales,
        history=torch.zeros(batch, 3072, dtype=torch.bool, device=CUDA),
        is_early=torch.zeros(batch, dtype=torch.bool, device=CUDA),
    )


def time_graph(work: Callable[[], object], num_replays: int = 50) -> float:
    """Milliseconds of one graph replay of `work`."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        work()
        graph.capture_end()
        for _ in range(5):
            graph.replay()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(num_replays):
            graph.replay()
        end.record()
        end.synchronize()
    return float(start.elapsed_time(end) / num_replays)


if __name__ == "__main__":
    main()
