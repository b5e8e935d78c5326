"""A roofline of the GPU kernels: error, time, bytes, FLOPs and share of the measured peaks.

    python benchmarks/kernels.py 0.6B-CustomVoice 1.7B-CustomVoice --batches 1 8 64 256 \
        --json benchmarks/results/kernels-h200.json

One frame of talker and predictor (CUDA graph backend, and megakernel up to batch 8), a prompt and
eight frames of the codec, random weights of the released shapes and random keys. A kernel is timed
alone; the frame as a graph, in which kernels overlap. Bytes count every operand once. The error is
that of a kernel's first launch against float64 on the same inputs (kernel_errors.py), relative to
the size of the result, beside the error of one rounding. The error of a draw is the share of
different codes.
"""

from __future__ import annotations

import argparse
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cuda_kernels import Watch, watched_launches
from kernel_errors import REFERENCES, Error, Pair, measure_error
from persistent import CUDA, copy_bandwidth, default_draws, give_pages, time_graph
from report import write_report
from shapes import load_configs, random_module
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from triton.runtime.jit import JITFunction

from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.codec.fused import FusedDecoder
from vivace.backends.cuda_graph.layers.frame import KvPositions
from vivace.backends.cuda_graph.layers.plain import PlainLayers
from vivace.backends.cuda_graph.slots.table import Number
from vivace.backends.megakernel.backend import MegakernelBackend
from vivace.backends.megakernel.kernel import MAX_BATCH
from vivace.backends.megakernel.layers import MegakernelLayers
from vivace.cli.bench.machine import machine
from vivace.model.cache import KeyValueCache
from vivace.model.codec import Codec
from vivace.model.config_file import parse_model_config
from vivace.model.talker import Qwen3TTS

NUM_POSITIONS = 200  # keys in every slot
PROMPT_ROWS = 64  # of every slot
CODEC_FRAMES = 8
TABLES = {"embedding", "tables", "keys", "values", "history", "cos", "sin", "ring"}  # read in part


@dataclass(slots=True)
class Kernel:
    """All launches of one kernel with the same operands' shapes."""

    name: str
    shape: str
    num_bytes: int
    flops: int
    times_us: list[float] = field(default_factory=list)
    error: Error | None = None

    def report(self, peaks: dict[str, float]) -> dict[str, Any]:
        us = sum(self.times_us) / max(1, len(self.times_us))
        bytes_s = self.num_bytes / peaks["bytes_per_s"]
        floor_us = 1e6 * max(bytes_s, self.flops / peaks["float16_flops_per_s"])
        return {
            "kernel": self.name,
            "shape": self.shape,
            "launches": len(self.times_us),
            "us": round(us, 2),
            "total_us": round(sum(self.times_us), 1),
            "bytes": self.num_bytes,
            "flops": self.flops,
            "share_of_peak": round(floor_us / us, 3) if us else None,
            "error": None if self.error is None else float(f"{self.error.relative:.3g}"),
            "rounding": None if self.error is None else float(f"{self.error.rounding:.3g}"),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shapes", nargs="+", help="names of released models")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--no-codec", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with torch.inference_mode():
        peaks = measure_peaks()
        print(peaks, flush=True)
        results = [
            result
            for shape in arguments.shapes
            for result in (
                *measure_model(shape, arguments.batches, peaks),
                *measure_megakernel(shape, arguments.batches, peaks),
            )
        ]
        if not arguments.no_codec:
            results += measure_codec(arguments.batches, peaks)
    if arguments.json:
        report = {"benchmark": "kernels", "machine": machine(), "peaks": peaks, "results": results}
        write_report(arguments.json, report)


def measure_peaks() -> dict[str, float]:
    a, b = (torch.randn(8192, 8192, device=CUDA, dtype=torch.float16) for _ in range(2))
    product_ms = time_graph(lambda: a @ b, 10)
    return {
        "bytes_per_s": copy_bandwidth(),
        "float16_flops_per_s": 2 * 8192**3 / (product_ms / 1000),
    }


def measure_model(
    shape: str, batches: list[int], peaks: dict[str, float]
) -> Iterator[dict[str, Any]]:
    config, codec_config = load_configs(shape)
    model = random_module(Qwen3TTS, parse_model_config(config), CUDA, torch.bfloat16)
    codec = random_module(Codec, codec_config, CUDA, torch.float32)
    codec.fold()
    backend = CudaGraphBackend(
        model, codec, max_streams=max(batches), max_frames=256, is_capturing=False
    )
    layers, width = backend._layers, backend.model.config.talker_config.hidden_size
    give_pages(backend._table, max(batches), 256)
    for batch in batches:
        x = torch.randn(batch, width, device=CUDA).bfloat16()
        position = torch.full((batch,), NUM_POSITIONS, device=CUDA)
        place = KvPositions(torch.arange(batch, device=CUDA), position, position + 1, 256)
        draws, rows = default_draws(batch), torch.arange(batch, device=CUDA)
        parts: dict[str, Callable[[], object]] = {
            "talker": partial(layers.read, x, place),
            "predictor": partial(layers.draw_frame, x, draws),
            "frame": partial(backend._stepper._loop.make, rows, 256, draws.kind),
        }
        if batch <= MAX_BATCH:
            x = torch.randn(PROMPT_ROWS * batch, width, device=CUDA).bfloat16()
            slots = rows.repeat_interleave(PROMPT_ROWS)
            steps = torch.arange(PROMPT_ROWS, device=CUDA).repeat(batch)
            parts[f"prompt, {PROMPT_ROWS} rows"] = partial(layers.read_prompts, x, slots, steps)
        numbers = backend._table.numbers
        numbers[Number.HAS_SUM] = numbers[Number.IS_COMPLETE] = 1
        numbers[Number.MIN_FRAMES] = numbers[Number.MAX_FRAMES] = 10**6
        numbers[Number.NUM_FRAMES], numbers[Number.POSITION] = 0, NUM_POSITIONS
        for part, work in parts.items():
            yield show(f"{shape} {part}", batch, work, peaks)


def measure_megakernel(
    shape: str, batches: list[int], peaks: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """The megakernel's two kernels; the predictor reads its weights in each of its 15 sweeps."""
    config, codec_config = load_configs(shape)
    model = random_module(Qwen3TTS, parse_model_config(config), CUDA, torch.bfloat16)
    codec = random_module(Codec, codec_config, CUDA, torch.float32)
    codec.fold()
    backend = MegakernelBackend(
        model, codec, max_streams=MAX_BATCH, max_frames=256, codec_precision="float32",
        is_capturing=False,
    )  # fmt: skip
    layers, table = backend._layers, backend._table
    assert isinstance(layers, MegakernelLayers)
    give_pages(table, MAX_BATCH, 256)
    wide = copy.deepcopy(model).float()
    wide_table = copy.copy(table)
    wide_table.keys, wide_table.values = table.keys.float(), table.values.float()
    exact = PlainLayers(wide, wide_table)
    predictor = model.talker.code_predictor
    talker_bytes = sum(p.nbytes for p in model.talker.model.layers.parameters())
    sweep_bytes = sum(p.nbytes for p in predictor.model.layers.parameters())
    heads_bytes = sum(p.nbytes for p in predictor.lm_head.parameters())
    for batch in [batch for batch in batches if batch <= MAX_BATCH]:
        x = torch.randn(batch, table.hidden.shape[1], device=CUDA).bfloat16()
        position = torch.full((batch,), NUM_POSITIONS, device=CUDA)
        place = KvPositions(torch.arange(batch, device=CUDA), position, position + 1, 256)
        codes = torch.randint(2048, (batch, 16), device=CUDA)
        keys_bytes = 2 * batch * NUM_POSITIONS * table.keys[:, 0, :, 0].nbytes
        num_bytes = 15 * sweep_bytes + heads_bytes
        known = {
            "talker_kernel": Kernel(
                "talker_kernel", f"{batch} rows", talker_bytes + keys_bytes, batch * talker_bytes,
                error=distance(layers.read(x, place), exact.read(x.float(), place)),
            ),
            "predictor_kernel": Kernel(
                "predictor_kernel", f"{batch} rows", num_bytes, batch * num_bytes,
                error=distance(layers.force(x, codes), forced_logits(wide, x.float(), codes)),
            ),
        }  # fmt: skip
        draws = default_draws(batch)
        parts: dict[str, Callable[[], object]] = {
            "talker": partial(layers.read, x, place),
            "predictor": partial(layers.draw_frame, x, draws),
        }
        for part, work in parts.items():
            yield show(f"{shape} {part}, megakernel", batch, work, peaks, known)


def forced_logits(model: Qwen3TTS, hidden: Tensor, codes: Tensor) -> Tensor:
    """Hidden states [B, hidden] and codes [B, books] to logits [B, books - 1, codes]."""
    predictor, tables = model.talker.code_predictor, model.talker.code_tables
    cache = KeyValueCache(predictor.config.num_hidden_layers, codes.shape[1])
    logits = []
    for book in range(1, codes.shape[1]):
        x = tables[book - 1](codes[:, book - 1])[:, None]
        x = torch.cat((hidden[:, None], x), dim=1) if book == 1 else x
        out = predictor(x, cache.length, cache)
        logits.append(predictor.lm_head[book - 1](out[:, -1]))
    return torch.stack(logits, dim=1)


def distance(found: Tensor, expected: Tensor) -> Error:
    """Relative distance of a whole model's output to float32."""
    return measure_error([Pair(expected, lambda: found, found.dtype)])


def measure_codec(batches: list[int], peaks: dict[str, float]) -> Iterator[dict[str, Any]]:
    _, config = load_configs("0.6B-CustomVoice")
    codec = random_module(Codec, config, CUDA, torch.float32)
    codec.fold()
    decoder = FusedDecoder(codec, 65, is_half=True)
    for batch in [batch for batch in batches if batch <= 64]:
        rows = torch.arange(batch, device=CUDA)
        codes = torch.randint(2048, (batch, CODEC_FRAMES, 16), device=CUDA)
        work = partial(decoder.decode, rows, codes)
        yield show(f"codec, half, {CODEC_FRAMES} frames", batch, work, peaks)


def show(
    name: str,
    batch: int,
    work: Callable[[], object],
    peaks: dict[str, float],
    known: dict[str, Kernel] | None = None,  # kernels that are not Triton's, by name
) -> dict[str, Any]:
    graph_ms = round(time_graph(work, 20), 3)
    kernels = sorted(profiled(work, known or {}), key=lambda each: -sum(each.times_us))
    for kernel, error in errors_of(work).items():
        for each in kernels:
            if (each.name, each.shape) == kernel:
                each.error = error
    reports = [each.report(peaks) for each in kernels]
    print(f"\n{name}, batch {batch}: {graph_ms} ms as a graph", flush=True)
    for row in reports[:14]:
        print(
            f"  {row['total_us']:8.1f} us {row['launches']:4d} x {row['us']:7.2f} "
            f"{row['share_of_peak']} {row['error']} {row['kernel']} {row['shape']}"
        )
    return {"part": name, "batch": batch, "graph_ms": graph_ms, "kernels": reports}


def profiled(work: Callable[[], object], known: dict[str, Kernel]) -> list[Kernel]:
    """The kernels of one run, with their times."""
    work()
    torch.cuda.synchronize()
    with (
        profile(activities=[ProfilerActivity.CUDA], acc_events=True) as run,
        recorded() as launches,
    ):
        work()
        torch.cuda.synchronize()
    events = [e for e in run.events() if e.device_type == DeviceType.CUDA]
    kernels: dict[tuple[str, str], Kernel] = {}
    left = {name: iter(calls) for name, calls in launches.items()}
    for event in sorted(events, key=lambda e: e.time_range.start):
        call = next(left.get(event.name, iter(())), None)
        new = call or known.get(event.name) or Kernel("PyTorch: " + event.name[:60], "", 0, 0)
        kernel = kernels.setdefault((new.name, new.shape), new)
        kernel.times_us.append(event.time_range.elapsed_us())
    return list(kernels.values())


@contextmanager
def recorded() -> Iterator[dict[str, list[Kernel]]]:
    """Launches of Triton kernels in their order, by name."""
    launches: dict[str, list[Kernel]] = defaultdict(list)

    def record(name: str, given: dict[str, Any], launch: Callable[[], Any]) -> Any:
        launches[name].append(describe(name, given))
        return launch()

    with launched(record):
        yield launches


def errors_of(work: Callable[[], object]) -> dict[tuple[str, str], Error]:
    """The error of each Triton kernel's first launch, by its name and shape."""
    errors: dict[tuple[str, str], Error] = {}

    def check(name: str, given: dict[str, Any], launch: Callable[[], Any]) -> Any:
        kernel = describe(name, given)
        key = kernel.name, kernel.shape
        if key in errors or name not in REFERENCES:
            return launch()
        torch.cuda.synchronize()
        pairs = list(REFERENCES[name](given))  # first: some change what they read
        made = launch()
        torch.cuda.synchronize()
        errors[key] = measure_error(pairs)
        return made

    with launched(check):
        work()
    return errors


@contextmanager
def launched(watch: Watch) -> Iterator[None]:
    """Pass every launch of a kernel to `watch`: name, arguments and the launch call."""
    run = JITFunction.run

    def run_watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self.arg_names, args, strict=False)) | kwargs
        return watch(self.__name__, given, lambda: run(self, *args, **kwargs))

    JITFunction.run = run_watched
    try:
        with watched_launches(watch):
            yield
    finally:
        JITFunction.run = run


def describe(name: str, given: dict[str, Any]) -> Kernel:
    tensors = {key: value for key, value in given.items() if isinstance(value, Tensor)}
    whole = {key: tensor for key, tensor in tensors.items() if key not in TABLES}
    num_bytes = sum(tensor.nbytes for tensor in whole.values())
    if "num_keys" in tensors and "keys" in tensors:
        keys = tensors["keys"]
        num_bytes += 2 * len(tensors["num_keys"]) * NUM_POSITIONS * keys[0, :, 0].nbytes
    flops, shape = 0, ""
    if "weight" in tensors and tensors["weight"].dim() > 1:
        x, weight = tensors["x"], tensors["weight"]
        rows = x.numel() // x.shape[-1]
        flops = 2 * rows * weight.numel()
        shape = f"{rows} rows x {list(weight.shape)}"
    return Kernel(name, shape, num_bytes, flops)


if __name__ == "__main__":
    main()
