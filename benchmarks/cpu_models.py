"""Milliseconds per frame of the released shapes on this CPU, by weights, threads and streams.

    python benchmarks/cpu_models.py 0.6B-CustomVoice --threads 1 2 8 --streams 1 4 --json FILE

Weights are random, so times are real and the audio is not. Every row is measured in this process:
float32 with the eager backend, and the `cpu` backend with the weights of `--weights`. `official` is
the talker of qwen-tts in float32, without its codec; it needs the packages of official.py.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import torch
from report import write_report
from shapes import fill_randomly, load_configs, random_module
from torch import Tensor, nn

from vivace.backends.base import Frames
from vivace.backends.cpu.backend import CpuBackend
from vivace.backends.cpu.build import load_library
from vivace.backends.cpu.codec import pack_decoder
from vivace.backends.eager import EagerBackend
from vivace.cli.bench.machine import machine
from vivace.model.codec import Codec
from vivace.model.config import ModelConfig
from vivace.model.config_file import parse_model_config
from vivace.model.layers import Block, Linear
from vivace.model.quantized import QuantizedLinear
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt, build_prompt
from vivace.speech import SamplingParams

FRAME_MS = 80.0
CPU = torch.device("cpu")


def main() -> None:
    arguments = parse_arguments()
    raw, codec_config = load_configs(arguments.shape)
    config = parse_model_config(raw)
    model: Qwen3TTS = random_module(Qwen3TTS, config, CPU, torch.float32)
    codec: Codec = random_module(Codec, codec_config, CPU, torch.float32)
    codec.fold()
    rows: list[dict[str, Any]] = []
    for weights in arguments.weights:
        if weights == "official":
            found = measure_official(raw, arguments)
        else:
            found = measure_weights(model, codec, weights, arguments)
        for row in found:
            rows.append(row)
            print(json.dumps(row), flush=True)
            report = {"benchmark": "cpu_models", "shape": arguments.shape, "machine": machine()}
            write_report(arguments.json, report | {"note": arguments.note, "results": rows})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "shape", help="a released name such as 0.6B-CustomVoice, or a checkpoint folder"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--streams", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--weights",
        nargs="+",
        default=["eager", "int8", "int4"],
        choices=["official", "eager", "float32", "int8", "int4"],
        help="`eager` is float32 with the eager backend",
    )
    parser.add_argument("--frames", type=int, default=12, help="frames per measurement")
    parser.add_argument(
        "--beside",
        type=parse_pair,
        nargs="*",
        default=[],
        metavar="MODEL+CODEC",
        help="decode on threads of their own beside the next frames, such as 6+2 threads",
    )
    parser.add_argument("--note", default="", help="kept in the JSON, such as how quiet it was")
    parser.add_argument("--json", type=Path, help="where to write the results")
    return parser.parse_args()


def measure_weights(
    model: Qwen3TTS, codec: Codec, weights: str, arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    if weights in ("int8", "int4"):
        quantize_randomly(model, 8 if weights == "int8" else 4)
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        backend: CpuBackend | EagerBackend
        backend = EagerBackend(model, codec) if weights == "eager" else CpuBackend(model, codec)
        for streams in arguments.streams:
            if weights == "eager" and streams > 1:
                continue  # one row after another
            figures = measure(backend, streams, arguments.frames)
            yield {"weights": weights, "threads": threads, "streams": streams, **figures}
    for pair in arguments.beside if weights != "eager" else ():
        yield measure_beside(model, codec, weights, pair, arguments.frames)


def parse_pair(text: str) -> tuple[int, int]:
    model, codec = map(int, text.split("+"))
    return model, codec


def measure_beside(
    model: Qwen3TTS, codec: Codec, weights: str, threads: tuple[int, int], num_frames: int
) -> dict[str, Any]:
    """The codec decodes frames while the model makes the next ones."""
    model_threads, codec_threads = threads
    backend = CpuBackend(model, codec, num_threads=model_threads)
    decoder = pack_decoder(codec.decoder, load_library(), codec_threads, "half")
    state = decoder.new_state()
    slot = backend.admit(make_prompt(backend.config), SamplingParams(seed=1, min_frames=1000))
    frames, times = backend.step([slot], num_frames), []
    for _ in range(4):
        began = time.perf_counter()
        decoding = Thread(target=decoder.decode, args=(frames.of(0), state))
        decoding.start()
        frames = backend.step([slot], num_frames)
        decoding.join()
        times.append(time.perf_counter() - began)
    backend.release(slot)
    frame_ms = 1000 * min(times) / num_frames
    return {
        "weights": weights,
        "threads": model_threads + codec_threads,
        "model_threads": model_threads,
        "codec_threads": codec_threads,
        "ms_per_frame": round(frame_ms, 2),
        "times_real_time": round(FRAME_MS / frame_ms, 2),
    }


def measure_official(
    config: dict[str, Any], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    from official import generate_frames, import_official, load_official

    import_official()
    modeling = importlib.import_module("transformers.modeling_utils")
    with modeling.no_init_weights():  # drawing all numbers takes half a minute
        talker = load_official(config, torch.float32, "cpu")
    fill_randomly(talker)
    num_rows = len(make_prompt(parse_model_config(config)))
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        generate_frames(talker, 1, num_rows, 1)
        began = time.perf_counter()
        generate_frames(talker, 1, num_rows, 0)
        prefilled = time.perf_counter()
        generate_frames(talker, 1, num_rows, arguments.frames)
        prefill_s = prefilled - began
        frame_s = (time.perf_counter() - prefilled - prefill_s) / arguments.frames
        yield {
            "weights": "official",
            "threads": threads,
            "streams": 1,
            "prompt_rows": num_rows,
            "prefill_ms": round(1000 * prefill_s, 1),
            "model_ms_per_frame": round(1000 * frame_s, 2),
        }


def measure(
    backend: CpuBackend | EagerBackend, num_streams: int, num_frames: int
) -> dict[str, float]:
    prompt = make_prompt(backend.config)
    sampling = SamplingParams(seed=1, min_frames=10 * num_frames)
    began = time.perf_counter()
    slots = [backend.admit(prompt, sampling) for _ in range(num_streams)]
    prefill_ms = (time.perf_counter() - began) * 1000 / num_streams
    backend.step(slots, 2)
    model_ms = []
    for _ in range(3):
        began = time.perf_counter()
        frames = backend.step(slots, num_frames)
        model_ms.append((time.perf_counter() - began) * 1000 / num_frames)
    codec_ms = time_codec(backend, slots[0], frames)
    for slot in slots:
        backend.release(slot)
    best = min(model_ms)
    return {
        "prompt_rows": len(prompt),
        "prefill_ms": round(prefill_ms, 1),
        "model_ms_per_frame": round(best, 2),
        "model_ms_per_frame_median": round(sorted(model_ms)[1], 2),
        "codec_ms_per_frame": round(codec_ms, 2),
        "times_real_time": round(num_streams * FRAME_MS / (best + num_streams * codec_ms), 2),
    }


def time_codec(backend: CpuBackend | EagerBackend, slot: int, frames: Frames) -> float:
    one = frames.take([0])
    backend.render([slot], one)
    began = time.perf_counter()
    backend.render([slot], one)
    return (time.perf_counter() - began) * 1000 / max(1, one.lengths[0])


def make_prompt(config: ModelConfig) -> Prompt:
    most = min(50_000, config.talker_config.text_vocab_size)
    ids = torch.randint(0, most, (30,), generator=torch.Generator().manual_seed(1)).tolist()
    speaker = next(iter(config.talker_config.spk_id), None)
    return build_prompt(
        config, ids, role_ids=[1, 2, 3], layout="streamed", language="english", preset=speaker
    )


def quantize_randomly(model: Qwen3TTS, bits: int) -> None:
    """Give every matrix random integers of a model whose signals keep their size."""
    for block in (each for each in model.modules() if isinstance(each, Block)):
        attention, mlp = block.self_attn, block.mlp
        attention.qkv_proj = joined(attention.q_proj, attention.k_proj, attention.v_proj, bits=bits)
        mlp.gate_up_proj = joined(mlp.gate_proj, mlp.up_proj, bits=bits)
        set_linear(attention.o_proj, bits)
        set_linear(mlp.down_proj, bits)
    predictor = model.talker.code_predictor
    heads: list[nn.Module] = [model.talker.codec_head, *predictor.lm_head]
    for head in [*heads, predictor.small_to_mtp_projection]:
        set_linear(head, 8)


def joined(*layers: Linear, bits: int) -> Any:
    rows = sum(layer.out_features for layer in layers)
    return SimpleNamespace(linear=random_linear(rows, layers[0].in_features, bits))


def set_linear(layer: nn.Module, bits: int) -> None:
    if isinstance(layer, Linear):
        object.__setattr__(
            layer, "linear", random_linear(layer.out_features, layer.in_features, bits)
        )


def random_linear(rows: int, columns: int, bits: int) -> QuantizedLinear:
    deviation = columns**-0.5
    if bits == 8:
        weight = torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
        return QuantizedLinear(weight, torch.full((rows,), deviation / 73.3), 8)
    packed: Tensor = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
    scale = torch.full((rows, columns // 32), deviation / 4.6, dtype=torch.float16)
    return QuantizedLinear(packed, scale, 4)


if __name__ == "__main__":
    main()
