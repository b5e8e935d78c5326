"""Run a backend for a million frames and check for hangs, leaks, changed codes and samples.

    python benchmarks/endurance.py 0.6B-CustomVoice --seconds 420 \
        --json benchmarks/results/endurance-0.6B-h200.json
    python benchmarks/endurance.py 0.6B-CustomVoice --backend cuda_graph --batch 256 --codec half \
        --json benchmarks/results/endurance-0.6B-256-h200.json

Random weights of the released shape, sampling on, always `--batch` slots: an ended slot is replaced
by another text. Frames are counted over all slots; `--seconds` may end the run earlier, and the
report gives the number reached. The same texts of 125 frames are made before and after, and one
text repeatedly in between: their codes must be equal. With `--codec` the codec renders all frames
in this precision, and the samples of the repeated text must be equal, too.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from report import write_report
from shapes import load_configs, random_module
from torch import Tensor

from vivace.backends.base import CodecPrecision
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.buckets import BATCHES
from vivace.backends.cuda_graph.layers.frame import KvPositions, SamplingState
from vivace.backends.frame_maker import FrameCodes
from vivace.backends.megakernel.backend import MegakernelBackend
from vivace.cli.bench.machine import machine
from vivace.model.codec import Codec
from vivace.model.config_file import parse_model_config
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt, build_prompt
from vivace.speech import SamplingParams

KINDS = {"megakernel": MegakernelBackend, "cuda_graph": CudaGraphBackend}
STEP = 16  # frames of one call
OPENING_FRAMES = 125  # of each of eight slots: a thousand
PROBE, PROBE_EVERY = 0, 40  # the request that is repeated, and after how many others
Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Request:
    prompt: Prompt
    sampling: SamplingParams


def make_request(model: Qwen3TTS, number: int, num_frames: int | None = None) -> Request:
    """10 to 60 text ids, read in 60 to 340 frames."""
    choice = random.Random(number)
    ids = [choice.randrange(50, 250) for _ in range(choice.randint(10, 60))]
    length = num_frames or choice.randint(60, 340)
    prompt = build_prompt(model.config, ids, role_ids=[1, 2, 3], layout="whole", preset="ryan")
    return Request(prompt, SamplingParams(seed=number, min_frames=length, max_frames=length))


@dataclass(slots=True)
class Run:
    """Counters of a run."""

    goal: int
    num_joined: int = 0
    num_frames: int = 0  # of all slots
    num_launched: int = 0  # frames of the batch
    num_failed: int = 0  # slots
    probes: list[str] = field(default_factory=list)  # hashes of codes and of samples
    steps: list[float] = field(default_factory=list)  # ms per frame
    memory: dict[str, dict[str, int]] = field(default_factory=dict)

    def count(self, lengths: Sequence[int], seconds: float) -> None:
        self.num_frames += sum(lengths)
        self.num_launched += max(lengths)
        self.steps.append(1000 * seconds / max(1, *lengths))

    @property
    def share(self) -> float:
        return self.num_frames / self.goal


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shape", help="a released model's name or a checkpoint folder")
    parser.add_argument("--backend", choices=KINDS, default="megakernel")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--codec", choices=("half", "split", "float32"), help="render all frames")
    parser.add_argument("--seconds", type=float, default=420.0, help="end after these")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report = measure(arguments)
    print(json.dumps(report, indent=1))
    write_report(arguments.json, report)
    sys.exit(0 if all(report["checks"].values()) else 1)


@torch.inference_mode()
def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    raw, codec_config = load_configs(arguments.shape)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = random_module(Qwen3TTS, parse_model_config(raw), device, dtype)
    codec = random_module(Codec, codec_config, device, torch.float32)
    codec.fold()

    def build(name: str) -> CudaGraphBackend:
        batch, kind = arguments.batch, KINDS[name]
        precision: CodecPrecision = arguments.codec or "float32"
        return kind(model, codec, max_streams=batch, max_frames=512, codec_precision=precision)

    reference = build("cuda_graph")
    graph_codes = speak_opening(reference)
    del reference
    free_memory(device)
    backend = build(arguments.backend)
    # No graph is captured on the way.
    codec_frames = (STEP, 8, 4, 2, 1) if arguments.codec else ()
    batches = BATCHES if arguments.codec else (arguments.batch,)
    backend.warmup([size for size in batches if size <= arguments.batch], codec_frames=codec_frames)
    opening = speak_opening(backend)
    pages = backend._pool.num_free
    run = Run(arguments.frames)
    began = time.perf_counter()
    run_rounds(backend, run, arguments, began + arguments.seconds)
    seconds = time.perf_counter() - began
    again = speak_opening(backend)
    tenth = max(1, len(run.steps) // 10)
    first, last = statistics.median(run.steps[:tenth]), statistics.median(run.steps[-tenth:])
    checks = {
        "the first thousand frames are the same at the end": hash_of(again) == hash_of(opening),
        **check_run(run, backend, arguments.batch, pages),
    }
    return {
        "benchmark": "endurance",
        "model": f"{arguments.shape}, random weights",
        "backend": backend.name,
        "layers": backend.layers,
        "machine": machine(),
        "batch": arguments.batch,
        "codec": arguments.codec,
        "frames_of_all_slots": run.num_frames,
        "goal": run.goal,
        "frames_of_the_batch": run.num_launched,
        "seconds": round(seconds, 1),
        "joins": run.num_joined,
        "repeats_of_one_text": len(run.probes),
        "ms_per_frame": {"first tenth": round(first, 3), "last tenth": round(last, 3)},
        "memory": run.memory,
        "pages": {"before": pages, "after": backend._pool.num_free},
        "checks": checks,
        "first_thousand": {
            "hash": hash_of(opening),
            "hash_at_the_end": hash_of(again),
            "cuda_graph_hash": hash_of(graph_codes),
            "frames_equal_to_cuda_graph": count_equal(opening, graph_codes),
            **compare(backend, opening),
        },
    }


def check_run(run: Run, backend: CudaGraphBackend, batch: int, pages: int) -> dict[str, bool]:
    """`pages` is the number of free pages before the run."""
    return {
        "a repeated text has the same codes and samples": len(set(run.probes)) <= 1,
        "no slot failed": run.num_failed == 0,
        "no block timed out": getattr(backend._layers, "num_faults", 0) == 0,
        "no page is left behind": backend._pool.num_free == pages,
        "no slot is left behind": len(backend._reservations.free) == batch,
        "allocated memory is the same at a tenth and at the end": len(
            {sizes["allocated"] for sizes in run.memory.values()}
        )
        == 1,
    }


def run_rounds(
    backend: CudaGraphBackend, run: Run, arguments: argparse.Namespace, deadline: float
) -> None:
    """Step a full batch until the goal or the deadline, then release all slots."""
    batch: int = arguments.batch
    live: dict[int, int] = {}  # the numbers of requests, by slot
    made: dict[int, Any] = {}  # hashes of codes and samples, by slot
    while run.share < 1 and time.perf_counter() < deadline:
        numbers = [next_number(run.num_joined + n) for n in range(batch - len(live))]
        requests = [make_request(backend.model, number) for number in numbers]
        slots = backend.admit_many([(each.prompt, each.sampling) for each in requests])
        for slot, number in zip(slots, numbers, strict=True):
            assert isinstance(slot, int), slot
            live[slot], made[slot] = number, hashlib.sha256()
        run.num_joined += len(slots)
        began = time.perf_counter()
        frames = backend.step(list(live), STEP)
        samples = backend.render(list(live), frames) if arguments.codec else []
        run.count(frames.lengths, time.perf_counter() - began)
        for row, (slot, number) in enumerate(list(live.items())):
            if number == PROBE:
                for each in (frames.of(row), *samples[row : row + 1]):
                    made[slot].update(np.ascontiguousarray(each).tobytes())
            if frames.status[row] == "running":
                continue
            run.num_failed += frames.status[row] == "failed"
            if number == PROBE:
                run.probes.append(made[slot].hexdigest()[:16])
            backend.release(slot)
            del live[slot], made[slot]
        note_memory(run, backend)
    note_memory(run, backend, "at the end")
    for slot in live:
        backend.release(slot)


def next_number(joined: int) -> int:
    return PROBE if joined % PROBE_EVERY == 0 else 1 + joined


def note_memory(run: Run, backend: CudaGraphBackend, when: str | None = None) -> None:
    done = len(run.memory) + 1
    if when is None and (run.share < done / 10 or done >= 10):
        return
    name = when or f"at {10 * done} %"
    gc.collect()
    allocated = reserved = 0
    if backend.model.device.type == "cuda":
        torch.cuda.synchronize()
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    host = pages * 4096
    run.memory[name] = {"allocated": allocated, "reserved": reserved, "host": host}
    print(f"{name}: {run.num_frames} frames, {run.num_joined} joins, {allocated} B", flush=True)


def speak_opening(backend: CudaGraphBackend) -> list[Codes]:
    """A thousand frames: 125 of each of eight slots."""
    num_slots = backend.max_streams
    requests = [make_request(backend.model, 10**6 + n, OPENING_FRAMES) for n in range(num_slots)]
    slots = [backend.admit(each.prompt, each.sampling) for each in requests]
    frames = backend.step(slots, OPENING_FRAMES)
    for slot in slots:
        backend.release(slot)
    return [frames.of(row) for row in range(num_slots)]


class ComparedLayers:
    """Layers, with the fused kernels run on the same inputs and their draws compared."""

    def __init__(self, layers: Any, fused: Any) -> None:
        self._layers, self._fused = layers, fused
        self.name, self.packs_prompts = layers.name, layers.packs_prompts
        self.frames_per_graph, self.slot_updater = layers.frames_per_graph, layers.slot_updater
        self.kind = layers.kind
        self.read_prompts, self.text_vectors = layers.read_prompts, layers.text_vectors
        self.num_draws = self.num_equal = self.num_frames = 0
        self.distances: list[float] = []

    def read(self, x: Tensor, place: KvPositions) -> Tensor:
        expected = self._fused.read(x, place).float()  # its keys are overwritten by the next call
        found: Tensor = self._layers.read(x, place)
        self.distances.append(float((found.float() - expected).norm() / expected.norm()))
        return found

    def draw_frame(self, hidden: Tensor, draws: SamplingState) -> FrameCodes:
        expected: FrameCodes = self._fused.draw_frame(hidden, draws)
        found: FrameCodes = self._layers.draw_frame(hidden, draws)
        same = (found.codes == expected.codes).int().cumprod(1).sum(1)  # [B], of 16
        self.num_equal += int(same.sum())
        self.num_draws += int((same + 1).clamp(max=found.codes.shape[1]).sum())
        self.num_frames += int((same == found.codes.shape[1]).sum())
        return found


def compare(backend: CudaGraphBackend, opening: list[Codes]) -> dict[str, Any]:
    """Repeat the first thousand frames, and compare each with the fused kernels on the same state.

    Codes of a frame after the first difference are not counted: their inputs differ.
    """
    if backend.name != "megakernel":
        return {}
    from vivace.backends.cuda_graph.layers.fused import FusedLayers

    compared = ComparedLayers(backend._layers, FusedLayers(backend.model, backend._table))
    backend.graphs._is_capturing = False
    backend.graphs._ready.clear()
    backend._stepper._loop._layers = compared  # its slot updater stays
    codes = speak_opening(backend)
    return {
        "hash_without_graphs": hash_of(codes),
        "frames_drawn_alike_from_the_same_past": compared.num_frames,
        "draws_alike_from_the_same_past": round(compared.num_equal / compared.num_draws, 5),
        "distance_of_the_talkers_states": round(statistics.mean(compared.distances), 5),
    }


def count_equal(some: list[Codes], others: list[Codes]) -> int:
    pairs = zip(np.concatenate(some), np.concatenate(others), strict=True)
    return sum(np.array_equal(*pair) for pair in pairs)


def hash_of(codes: Sequence[Codes]) -> str:
    return hashlib.sha256(np.concatenate(codes).tobytes()).hexdigest()[:16]


def free_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
