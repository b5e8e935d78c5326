"""Loads the weights of a checkpoint and starts its engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch

from vivace.backends import Capacity
from vivace.backends.base import Backend
from vivace.checkpoint import Checkpoint
from vivace.device import can_fork, pick_device, pick_dtype, pick_threads, use_threads
from vivace.engine.engine import Engine
from vivace.engine.loaded import LoadedCheckpoint, Parts
from vivace.engine.scheduler import EngineLimits
from vivace.model.codec import Codec
from vivace.model.fp8 import Weights
from vivace.model.talker import Qwen3TTS

log = logging.getLogger(__name__)

FP8_BACKEND = "megakernel"  # the only backend that reads fp8 weights in their own format


def load_checkpoint(
    checkpoint: Checkpoint,
    *,
    build: Callable[[str, Qwen3TTS, Codec, Capacity], Backend],
    device: str,
    dtype: str | torch.dtype,
    weights: Weights,
    backend: str,
    threads: int | None,
    limits: EngineLimits,
    capacity: Capacity,
    split_camel_case: bool,
) -> LoadedCheckpoint:
    """Arguments are those of `TTS.load`, which documents them."""
    tokenizer = checkpoint.load_tokenizer(split_camel_case=split_camel_case)
    where = pick_device(device, checkpoint.num_bytes if backend == "auto" else None)
    precision = pick_dtype(dtype, where)
    threads = pick_threads(threads, where, checkpoint.num_bytes)
    with use_threads(threads):
        model = checkpoint.load_model(where, precision, weights)
        codec = checkpoint.load_codec(where)
        rebuild = partial(build, backend, model, codec, capacity)
        first = rebuild()
    if weights == "fp8" and first.name != FP8_BACKEND:
        log.warning("backend %s reads fp8 weights no faster; %s does", first.name, FP8_BACKEND)
    can_be_forked = can_fork(where, threads)
    engine = Engine(first, limits, threads=threads, can_fork=can_be_forked, rebuild=rebuild)
    return LoadedCheckpoint(checkpoint, tokenizer, Parts(model, codec, engine))
