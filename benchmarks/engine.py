"""`vivace bench` with random weights of a released shape: whole calls, from text to samples.

    python benchmarks/engine.py 0.6B-CustomVoice --backend cuda_graph --streams 1,8,32,64 \
        --rates 5,10,20 --json benchmarks/results/engine-0.6B.json --plot build/load.png

The first argument is a released model's name or a checkpoint folder, with an optional codec
precision as in `0.6B-CustomVoice:split`; the other arguments are those of `vivace bench`. Released
names use the embedded voice's tokenizer.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import torch
from released import RELEASED_MODELS
from shapes import load_configs, random_module

from vivace.backends import Capacity, build_backend
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.cli.bench.bench import check, deliver, measure, num_slots
from vivace.cli.bench.latency import Subject
from vivace.cli.parser import build_parser
from vivace.device.choice import pick_device, pick_dtype
from vivace.engine.checkpoints.loaded import LoadedCheckpoint, Runtime
from vivace.engine.engine import Engine
from vivace.engine.limits import EngineLimits
from vivace.model.codec import Codec
from vivace.model.config import check_weights
from vivace.model.config_file import parse_model_config
from vivace.model.fp8 import round_weights
from vivace.model.talker import Qwen3TTS
from vivace.tts import TTS


def main() -> None:
    shape, *rest = sys.argv[1:] or ["--help"]
    arguments = build_parser()[0].parse_args(["bench", *rest] if shape[0] != "-" else [shape])
    check(arguments)
    check_weights(arguments.weights)
    name, _, precision = shape.partition(":")
    began = time.perf_counter()
    with random_tts(
        name,
        device=arguments.device,
        dtype=arguments.dtype,
        backend=arguments.backend,
        weights=arguments.weights,
        max_streams=num_slots(arguments),
        codec_precision=precision or "auto",
    ) as tts:
        load_s = time.perf_counter() - began
        report = measure(Subject(tts, {"language": "english"}), load_s, arguments)
    kind = "random weights" + (" in fp8" if arguments.weights == "fp8" else "")
    deliver(report | {"benchmark": "engine", "model": f"{shape}, {kind}"}, arguments)


def random_tts(
    shape: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    backend: str = "auto",
    weights: str = "full",
    max_streams: int,
    codec_precision: Any = "auto",
) -> TTS:
    """A model of this shape with random weights; `shape` is a released name or a folder."""
    torch.manual_seed(0)
    where = pick_device(device)
    precision = pick_dtype(dtype, where)
    config, codec_config = load_configs(shape)
    checkpoint = Checkpoint.open(EMBEDDED if shape in RELEASED_MODELS else Path(shape))
    tokenizer = checkpoint.load_tokenizer()
    checkpoint = dataclasses.replace(
        checkpoint, config=parse_model_config(config), codec_config=codec_config
    )
    model = random_module(Qwen3TTS, checkpoint.config, where, precision)
    if weights == "fp8":
        round_weights(model)
    codec = random_module(Codec, codec_config, where, torch.float32)
    codec.fold()
    capacity = Capacity(max_streams=max_streams, codec_precision=codec_precision)
    engine = Engine(
        build_backend(backend, model, codec, capacity), EngineLimits(max_streams=max_streams)
    )
    return TTS(LoadedCheckpoint(checkpoint, tokenizer, Runtime.of(model, codec, engine)))


if __name__ == "__main__":
    main()
