"""The graph backend at released shapes: cold start, first audio, ms per frame, many streams.

    python benchmarks/latency.py 0.6B-CustomVoice 1.7B-CustomVoice --json benchmarks/results/x.json

Random weights, sampling on, end of speech banned. Every figure is a wall-clock median including the
host, except figures named `gpu`, which are graph replays alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from frame import synchronize, timed
from report import write_report
from shapes import load_configs, random_module

from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.codec.graphs import CodecGraphs
from vivace.backends.cuda_graph.graphs import GraphPool
from vivace.cli.bench.latency import CHUNKS
from vivace.cli.bench.machine import machine
from vivace.model.codec import Codec
from vivace.model.config_file import parse_model_config
from vivace.model.talker import Qwen3TTS
from vivace.prompt import build_prompt
from vivace.speech import SamplingParams

SECONDS_PER_FRAME = 0.08
COMPARED = 24  # frames
NUM_REPLAYS = 20  # of a graph
NUM_SNR_FRAMES = 64


@torch.inference_mode()
def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    results = []
    for shape in arguments.shapes:
        results.append(measure(shape, arguments))
        report = {"benchmark": "latency", "machine": machine(), "results": results}
        if arguments.json:
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            write_report(arguments.json, report)
    print_table(results)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shapes", nargs="+", help="a released model's name or a checkpoint folder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--layers", default="auto", help="auto, fused or plain")
    parser.add_argument("--codec-precision", default="auto", help="auto, float32 or split")
    parser.add_argument("--batches", type=int, nargs="*", default=[8, 32, 64])
    parser.add_argument("--max-streams", type=int, help="default: as many as are measured")
    parser.add_argument("--frames", type=int, default=96, help="of one utterance")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print where a frame's time goes")
    parser.add_argument("--json", type=Path, help="where to write the results")
    return parser.parse_args()


def measure(shape: str, arguments: argparse.Namespace) -> dict[str, Any]:
    bench = Bench(shape, arguments)
    result: dict[str, Any] = {"shape": shape, "layers": bench.backend.layers}
    result |= bench.cold_start()
    result["has_same_codes_in_batch"] = bench.compare_batch()
    result |= bench.one_stream()
    result["gpu"] = bench.replays()
    result["streams"] = {batch: bench.many_streams(batch) for batch in arguments.batches}
    if arguments.device.startswith("cuda"):
        result["memory_mib"] = bench.memory()
    result["codec_snr_db"] = bench.codec_snr()  # makes a codec more
    result["fallbacks"] = bench.backend.fallbacks
    if arguments.profile:
        bench.profile()
    return result


class Bench:
    def __init__(self, shape: str, arguments: argparse.Namespace) -> None:
        self._frames: int = arguments.frames
        self._repeats: int = arguments.repeats
        self._device = torch.device(arguments.device)
        self._precision = arguments.codec_precision
        config, codec_config = load_configs(shape)
        dtype = getattr(torch, arguments.dtype)
        self._model = random_module(Qwen3TTS, parse_model_config(config), self._device, dtype)
        self._codec = random_module(Codec, codec_config, self._device, torch.float32)
        self._codec.fold()
        preset = next(iter(self._model.config.talker_config.spk_id), None)
        self._prompt = build_prompt(
            self._model.config,
            list(range(20)),
            role_ids=[0, 1, 2],
            layout="whole",
            preset=preset,
        )
        start = time.perf_counter()
        self.backend = CudaGraphBackend(
            self._model,
            self._codec,
            max_streams=arguments.max_streams or max([8, *arguments.batches]),
            max_frames=1024,
            layers=arguments.layers,
            codec_precision=arguments.codec_precision,
        )
        self._build_s = time.perf_counter() - start

    # -- what is measured ----------------------------------------------------------------------

    def cold_start(self) -> dict[str, float]:
        warmup = partial(self.backend.warmup, (1,), prompt_rows=(16, 32, 48, 64))
        warm, _ = timed(warmup, self._device)
        return {"build_s": round(self._build_s, 2), "warmup_s": round(warm, 2)}

    def compare_batch(self) -> bool:
        """Compare one seed alone and in a batch with seven others."""
        alone = self._speak([7])[0]
        others = range(8 - min(8, self.backend.max_streams), 8)
        return bool(np.array_equal(self._speak(others)[-1], alone))

    def one_stream(self) -> dict[str, Any]:
        return {
            "admit_ms": self._median(lambda seed: self._open([seed])),
            "first_audio_ms": self._median(self._first_audio),
            "ms_per_frame": self._per_frame(lambda seed: self._step_through([seed], 16)),
            "ms_per_frame_with_codec": {
                chunk: self._per_frame(partial(self._render_through, chunk=chunk))
                for chunk in CHUNKS
            },
            "ms_per_frame_overlapped": self._per_frame(lambda seed: self._overlap([seed], 8)),
        }

    def many_streams(self, batch: int) -> dict[str, float]:
        seeds = range(batch)
        self.backend.warmup((batch,), prompt_rows=(), codec_frames=(8,))
        frame = self._per_frame(lambda _: self._step_through(seeds, 8))
        both = self._per_frame(lambda _: self._overlap(seeds, 8))
        return {
            "ms_per_frame": frame,
            "ms_per_frame_with_codec": both,
            "audio_s_per_s": round(batch * 1000 * SECONDS_PER_FRAME / both, 1),
            "codec_gpu_ms_per_8_frames": self._replay(self.backend._codec._graph(batch, 8)),
        }

    def replays(self) -> dict[str, float]:
        """Milliseconds of single graphs, without the host."""
        stepper, codec = self.backend._stepper, self.backend._codec
        kind = self.backend._layers.kind([SamplingParams()])
        stepper._rows.park()
        whole, speech = (stepper.frames(1, span, kind) for span in (stepper._spans[0], 0))
        figures = {"frame": self._replay(whole), "frame_without_talker": self._replay(speech)}
        figures["prefill_32_rows"] = self._replay(self.backend._prefill._graph(32))
        for frames in (1, 8):
            figures[f"codec_{frames}"] = self._replay(codec._graph(1, frames))
        return figures

    def codec_snr(self) -> float:
        """Signal-to-noise ratio of the codec against float32 in decibels, over random frames."""
        size = self._codec.config.decoder_config.codebook_size
        codes = np.random.default_rng(0).integers(size, size=(NUM_SNR_FRAMES, 16))
        exact, found = (self._decode(codes, each) for each in ("float32", "auto"))
        noise = np.square(found - exact).sum()
        return round(float(10 * np.log10(np.square(exact).sum() / max(noise, 1e-30))), 1)

    def memory(self) -> dict[str, float]:
        sizes = {name: size / 2**20 for name, size in self.backend.memory().items()}
        free, total = torch.cuda.mem_get_info()
        sizes["reserved"] = torch.cuda.memory_reserved() / 2**20
        sizes["everything on the device"] = (total - free) / 2**20
        return {name: round(size, 1) for name, size in sizes.items()}

    def profile(self) -> None:
        activity = torch.profiler.ProfilerActivity.CUDA
        with torch.profiler.profile(activities=[activity]) as profiler:
            self._step_through([1], 16)
        rows = profiler.key_averages()
        print(rows.table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=60))

    # -- how -----------------------------------------------------------------------------------

    def _open(self, seeds: Sequence[int]) -> list[int]:
        most = 1 + max(COMPARED, self._frames)  # no slot ends, and none reserves more keys
        params = [SamplingParams(seed=s, min_frames=most, max_frames=most) for s in seeds]
        return [self.backend.admit(self._prompt, each) for each in params]

    def _close(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.backend.release(slot)

    def _speak(self, seeds: Sequence[int]) -> list[Any]:
        slots = self._open(seeds)
        frames = self.backend.step(slots, COMPARED)
        self._close(slots)
        return [frames.of(row) for row in range(len(slots))]

    def _first_audio(self, seed: int) -> list[int]:
        slots = self._open([seed])
        self.backend.render(slots, self.backend.step(slots, 1))
        return slots

    def _step_through(self, seeds: Sequence[int], chunk: int) -> float:
        """Seconds per frame, without prompt and codec."""
        slots = self._open(seeds)

        def speak() -> None:
            for _ in range(self._frames // chunk):
                self.backend.step(slots, chunk)

        return self._finish(slots, speak)

    def _render_through(self, seed: int, chunk: int) -> float:
        slots = self._open([seed])

        def speak() -> None:
            for _ in range(self._frames // chunk):
                self.backend.render(slots, self.backend.step(slots, chunk))

        return self._finish(slots, speak)

    def _overlap(self, seeds: Sequence[int], chunk: int) -> float:
        """Queue the next frames while the codec renders the previous ones."""
        slots = self._open(seeds)

        def speak() -> None:
            step = self.backend.start_step(slots, chunk)
            render: Callable[[], object] = list
            for index in range(self._frames // chunk):
                frames = step()
                if index + 1 < self._frames // chunk:
                    step = self.backend.start_step(slots, chunk)
                render()
                render = self.backend.start_render(slots, frames)
            render()

        return self._finish(slots, speak)

    def _finish(self, slots: Sequence[int], work: Callable[[], None]) -> float:
        seconds, _ = timed(work, self._device)
        self._close(slots)
        return seconds / self._frames

    def _median(self, work: Callable[[int], list[int]]) -> float:
        """Median milliseconds of `work`; its slots are released afterwards."""
        seconds = []
        for seed in range(self._repeats + 2):
            taken, slots = timed(partial(work, seed), self._device)
            seconds.append(taken)
            self._close(slots)
        return round(1000 * statistics.median(seconds[2:]), 3)

    def _per_frame(self, work: Callable[[int], float]) -> float:
        seconds = [work(seed) for seed in range(self._repeats)]
        return round(1000 * statistics.median(seconds[1:] or seconds), 3)

    def _replay(self, graph: Callable[[], object]) -> float:
        graph()
        seconds, _ = timed(lambda: [graph() for _ in range(NUM_REPLAYS)], self._device)
        return round(1000 * seconds / NUM_REPLAYS, 4)

    def _decode(self, codes: Any, precision: Any) -> Any:
        graphs = GraphPool(self._device, is_capturing=False)
        decoder = CodecGraphs(self._codec, 1, graphs, precision=precision)
        synchronize(self._device)
        decoder.reset([0])
        return decoder.start([0], [codes])().samples[0]


def print_table(results: list[dict[str, Any]]) -> None:
    for result in results:
        streams = result.pop("streams")
        for name, value in result.items():
            print(f"{name:<34} {value}")
        for batch, figures in streams.items():
            print(f"{batch:>3} streams {figures}")


if __name__ == "__main__":
    main()
