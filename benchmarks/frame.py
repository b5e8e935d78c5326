"""Milliseconds per frame of the eager backend and of the official code in the same run.

    python benchmarks/frame.py 0.6B-CustomVoice --device cuda --json benchmarks/results/x.json

Random weights of the released shape, sampling on, end of speech banned. A shape is a released
model's name or a checkpoint folder (for its config.json).
`--compare` needs qwen-tts 0.1.1 and transformers 4.57.3 (scripts/official/README.md).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from released import RELEASED_MODELS
from report import write_report
from shapes import load_configs, random_module

from vivace.backends.eager import EagerBackend
from vivace.cli.bench.machine import machine
from vivace.model.codec import Codec
from vivace.model.config import CodecConfig
from vivace.model.config_file import parse_model_config
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt, build_prompt
from vivace.speech import SamplingParams

FRAMES_PER_STEP = 16
NUM_TEXT_IDS = 20
T = TypeVar("T")


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    results = [measure(shape, arguments) for shape in arguments.shapes]
    report = {"benchmark": "frame", "machine": machine(), "results": results}
    print_table(results)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_report(arguments.json, report)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "shapes", nargs="+", help=f"a checkpoint folder, or {', '.join(RELEASED_MODELS)}"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None, help="default: bfloat16 on CUDA, else float32")
    parser.add_argument("--talker-layers", type=int, help="fewer than the configuration says")
    parser.add_argument("--frames", type=int, default=64, help="per repeat, a multiple of 16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of PyTorch on the CPU")
    parser.add_argument("--compare", action="store_true", help="measure the official code too")
    parser.add_argument("--json", type=Path, help="where to write the results")
    arguments = parser.parse_args()
    default = "bfloat16" if arguments.device.startswith("cuda") else "float32"
    arguments.dtype = getattr(torch, arguments.dtype or default)
    return arguments


def measure(shape: str, arguments: argparse.Namespace) -> dict[str, Any]:
    config, codec_config = load_configs(shape)
    if arguments.talker_layers:
        config["talker_config"]["num_hidden_layers"] = arguments.talker_layers
    result = {
        "shape": shape if shape in RELEASED_MODELS else f"tiny {Path(shape).name}",
        "talker_layers": config["talker_config"]["num_hidden_layers"],
        "device": arguments.device,
        "dtype": str(arguments.dtype).removeprefix("torch."),
        "batch": 1,
        "frames": arguments.frames,
        "repeats": arguments.repeats,
        **measure_ours(config, codec_config, arguments),
    }
    if arguments.compare:
        from official import official_ms_per_frame

        official = official_ms_per_frame(
            config, arguments.dtype, arguments.device, arguments.frames, repeats=arguments.repeats
        )
        result["official_ms_per_frame"] = round(official, 3)
        result["times_faster"] = round(official / result["ms_per_frame"], 2)
    return result


def measure_ours(
    config: dict[str, Any], codec_config: CodecConfig, arguments: argparse.Namespace
) -> dict[str, float]:
    device = torch.device(arguments.device)
    model = random_module(Qwen3TTS, parse_model_config(config), device, arguments.dtype)
    codec = random_module(Codec, codec_config, device, torch.float32)
    backend = EagerBackend(model, codec)
    prompt = build_prompt(
        model.config,
        list(range(NUM_TEXT_IDS)),
        role_ids=[0, 1, 2],
        layout="whole",
        preset=next(iter(model.config.talker_config.spk_id), None),
    )
    runs = [
        time_once(backend, prompt, seed, arguments.frames) for seed in range(arguments.repeats + 1)
    ]
    figures = zip(*runs[1:], strict=True)  # the first one warms up
    names = ("prefill_ms", "ms_per_frame", "codec_ms_per_frame")
    return {
        name: round(1000 * statistics.median(seconds), 3)
        for name, seconds in zip(names, figures, strict=True)
    }


def time_once(
    backend: EagerBackend, prompt: Prompt, seed: int, num_frames: int
) -> tuple[float, float, float]:
    """Seconds of the prefill, of one frame and of one frame's samples."""
    device = backend.model.device
    sampling = SamplingParams(seed=seed, min_frames=10_000, max_frames=10_000)
    num_steps = num_frames // FRAMES_PER_STEP
    prefill, slot = timed(lambda: backend.admit(prompt, sampling), device)
    loop, made = timed(
        lambda: [backend.step([slot], FRAMES_PER_STEP) for _ in range(num_steps)], device
    )
    render, _ = timed(lambda: backend.render([slot], made[0]), device)
    backend.release(slot)
    return prefill, loop / (num_steps * FRAMES_PER_STEP), render / FRAMES_PER_STEP


def timed(work: Callable[[], T], device: torch.device) -> tuple[float, T]:
    """Seconds of `work`, and its result."""
    synchronize(device)
    start = time.perf_counter()
    result = work()
    synchronize(device)
    return time.perf_counter() - start, result


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def print_table(results: list[dict[str, Any]]) -> None:
    columns = ["shape", "talker_layers", "dtype", "prefill_ms", "ms_per_frame"]
    columns += ["codec_ms_per_frame", "official_ms_per_frame", "times_faster"]
    print(" | ".join(columns))
    for result in results:
        print(" | ".join(str(result.get(column, "-")) for column in columns))


if __name__ == "__main__":
    main()
