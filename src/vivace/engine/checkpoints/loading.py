"""Loads a checkpoint and starts its engine, with PyTorch or without it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivace.arguments import check_flag
from vivace.backends import (
    AUTO_BACKEND,
    Capacity,
    CheckpointFiles,
    build_backend,
    import_backends,
)
from vivace.backends.base import Backend
from vivace.checkpoint import Checkpoint
from vivace.checkpoint_files import trim_heap
from vivace.device.choice import (
    AUTO,
    SMALL_MODEL_BYTES,
    can_fork,
    may_have_gpu,
    pick_device,
    pick_dtype,
)
from vivace.device.gpu_start import early_start
from vivace.device.interpreter import paused_collector, short_switch_interval
from vivace.device.threads import default_threads, pick_threads, use_threads
from vivace.engine.checkpoints.adapted import view_adapters, with_adapter
from vivace.engine.checkpoints.loaded import LoadedCheckpoint, Runtime
from vivace.engine.engine import Engine
from vivace.engine.limits import EngineLimits
from vivace.errors import AdapterError, BackendUnavailableError
from vivace.model.config import Weights, check_weights
from vivace.text.lexicon import Lexicon
from vivace.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    import torch

    from vivace.adapter import Adapter
    from vivace.adapter_set import AdapterSet
    from vivace.model.codec import Codec
    from vivace.model.talker import Qwen3TTS

log = logging.getLogger(__name__)

FP8_BACKEND = "megakernel"  # the only backend that reads fp8 weights in their own format
# Pairs of device and backend that may run a model on the CPU.
ON_CPU = ((AUTO, AUTO_BACKEND), ("cpu", AUTO_BACKEND), ("cpu", "cpu"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Arguments of `TTS.load`, which documents them."""

    device: str
    dtype: str | torch.dtype
    weights: Weights
    backend: str
    capacity: Capacity  # of the backend
    limits: EngineLimits
    threads: int | None  # None: the number that suits the model
    split_camel_case: bool
    adapters: Adapter | AdapterSet | None  # merged into the weights, or chosen per request

    def __post_init__(self) -> None:
        check_weights(self.weights)
        check_flag("split_camel_case", self.split_camel_case)

    @property
    def may_skip_torch(self) -> bool:
        """Whether a checkpoint may be loaded without PyTorch, if its format allows it."""
        is_plain = self.dtype in (AUTO, "float32") and self.weights != "fp8"
        return (self.device, self.backend) in ON_CPU and is_plain and self.adapters is None

    def check_device(self) -> None:
        """Raise for a device or a dtype that is impossible here. Imports PyTorch if needed."""
        if not self.may_skip_torch:
            pick_dtype(self.dtype, pick_device(self.device))

    def build_backend(self, model: Qwen3TTS | CheckpointFiles, codec: Codec | None) -> Backend:
        """Build the backend from a PyTorch model and its codec, or from files and None."""
        return build_backend(self.backend, model, codec, self.capacity)

    def start_engine(
        self, build: Callable[[], Backend], device: str, threads: int | None
    ) -> Engine:
        """Start an engine that calls `build` now, and again after failures of its backend."""
        is_forkable = can_fork(device, threads)
        limits = self.limits
        return Engine(build(), limits, threads=threads, can_fork=is_forkable, rebuild=build)


def open_checkpoint(
    folder: Path, lexicon: Lexicon | None, adapters: Adapter | AdapterSet | None
) -> Checkpoint:
    """Raises LexiconError for entries of a language that the checkpoint does not support."""
    checkpoint = Checkpoint.open(folder)
    if adapters is not None:
        if checkpoint.config.quantization_config is not None:
            raise AdapterError(f"{folder} is quantized; adapters need the original weights")
        adapters.check_base(checkpoint.digest(), folder.name)
        checkpoint = with_adapter(checkpoint, adapters)
    if lexicon is not None:
        lexicon.check_languages(checkpoint.config.talker_config.codec_language_id)
    return checkpoint


def load_checkpoint(
    folder: Path, settings: LoadSettings, lexicon: Lexicon | None
) -> LoadedCheckpoint:
    """Load the weights and start the engine, without PyTorch if that is possible."""
    checkpoint = open_checkpoint(folder, lexicon, settings.adapters)
    if settings.may_skip_torch:
        loaded = load_without_torch(checkpoint, settings)
        if loaded is not None:
            return loaded
    # Only `auto` prefers the CPU for a small model.
    num_bytes = checkpoint.num_bytes if settings.backend == AUTO_BACKEND else None
    load_tokenizer = partial(checkpoint.load_tokenizer, split_camel_case=settings.split_camel_case)
    with early_start(settings.device, num_bytes) as is_early, paused_collector():
        tokenizer = load_tokenizer() if is_early else None  # while threads load libraries
        device = pick_device(settings.device, num_bytes)
        loaded = load_with_torch(
            checkpoint, settings, device, lambda: tokenizer or load_tokenizer()
        )
    loaded.adapted = view_adapters(loaded, settings.adapters)
    return loaded


def load_with_torch(
    checkpoint: Checkpoint,
    settings: LoadSettings,
    device: torch.device,
    load_tokenizer: Callable[[], TextTokenizer],
) -> LoadedCheckpoint:
    threads = pick_threads(settings.threads, device.type, checkpoint.num_bytes)
    dtype = pick_dtype(settings.dtype, device)
    change = () if settings.adapters is None else (settings.adapters.apply,)
    jobs = (
        partial(import_backends, device),
        partial(checkpoint.load_model, device, dtype, settings.weights, *change),
        partial(checkpoint.load_codec, device),
        load_tokenizer,
    )
    with use_threads(threads), paused_collector():
        _, model, codec, tokenizer = _run_all(jobs, in_threads=device.type == "cuda")
        build = partial(settings.build_backend, model, codec)
        engine = settings.start_engine(build, device.type, threads)
    checkpoint.release_pages()
    if settings.weights == "fp8" and (name := engine.backend.name) != FP8_BACKEND:
        log.warning("only backend %s is faster with fp8, not %s", FP8_BACKEND, name)
    return LoadedCheckpoint(checkpoint, tokenizer, Runtime.of(model, codec, engine))


def load_without_torch(checkpoint: Checkpoint, settings: LoadSettings) -> LoadedCheckpoint | None:
    """Load a small or quantized checkpoint on the CPU without PyTorch, or None if that is
    impossible.

    A checkpoint in full precision must name its attention head. Model and codec of PyTorch compute
    the same audio. They are loaded when something else needs them.
    """
    stored = _stored_weights(checkpoint, settings.weights)
    is_small = checkpoint.num_bytes < SMALL_MODEL_BYTES
    is_plain = is_small and checkpoint.config.timing_config is not None
    if stored is None or (stored == "full" and not is_plain):
        return None
    if settings.device == AUTO and not is_small and may_have_gpu():
        return None
    threads = pick_threads(settings.threads, "cpu", checkpoint.num_bytes) or default_threads()
    files = CheckpointFiles(checkpoint.folder, checkpoint.config, checkpoint.codec_config, threads)
    try:
        engine = settings.start_engine(partial(settings.build_backend, files, None), "cpu", threads)
    except BackendUnavailableError as error:
        log.info("PyTorch loads %s: %s", checkpoint.folder, error)
        return None
    tokenizer = checkpoint.load_tokenizer(split_camel_case=settings.split_camel_case)
    trim_heap()
    load_model = partial(_load_on_cpu, checkpoint, threads)
    return LoadedCheckpoint(checkpoint, tokenizer, Runtime(load_model, engine, stored))


def _load_on_cpu(checkpoint: Checkpoint, threads: int) -> tuple[Qwen3TTS, Codec]:
    import torch

    cpu = torch.device("cpu")
    with use_threads(threads):
        loaded = checkpoint.load_model(cpu, torch.float32), checkpoint.load_codec(cpu)
    checkpoint.release_pages()
    return loaded


def _stored_weights(checkpoint: Checkpoint, asked: Weights) -> Weights | None:
    """The format of the checkpoint's weights, or None if another one is requested."""
    stored = checkpoint.config.quantization_config
    found: Weights = "full" if stored is None else stored.weights
    return found if asked in ("full", found) else None


def _run_all(jobs: Sequence[Callable[[], Any]], *, in_threads: bool) -> list[Any]:
    """The results of all jobs. Raises the error of the first job that failed."""
    if not in_threads:  # a CPU has one reader of weights, and a process that may be forked
        return [job() for job in jobs]
    pool = ThreadPoolExecutor(len(jobs), thread_name_prefix="vivace-load")
    with short_switch_interval(), pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]
