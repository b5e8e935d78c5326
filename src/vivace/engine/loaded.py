"""Loads a checkpoint, and keeps its model, codec and engine until they are closed."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch

from vivace.adapter import Adapter
from vivace.audio.sandbox import Sandbox
from vivace.backends import import_backends
from vivace.backends.base import Backend
from vivace.checkpoint import Checkpoint
from vivace.device import can_fork, pick_dtype, pick_threads, use_threads
from vivace.engine.chunks import chunk_sizes
from vivace.engine.client import EngineClient
from vivace.engine.completeness import HeadFinder, IdMarker, OfferUtterance
from vivace.engine.engine import Engine
from vivace.engine.opening import StreamSettings
from vivace.engine.scheduler import EngineLimits
from vivace.engine.stream import Stream, Wake
from vivace.engine.timings import LocalPass, OpenPass
from vivace.errors import ClosedError
from vivace.model.codec import Codec
from vivace.model.fp8 import Weights
from vivace.model.talker import Qwen3TTS
from vivace.options import RAMP, ChunkFrames
from vivace.script.prompts import PromptWriter
from vivace.script.request import Request
from vivace.speech import NUM_DRAWN_SEEDS, SamplingParams
from vivace.text.tokenizer import TextTokenizer
from vivace.timing.timer import Timer

log = logging.getLogger(__name__)

FP8_BACKEND = "megakernel"  # the only backend that reads fp8 weights in their own format


class Parts(NamedTuple):
    model: Qwen3TTS
    codec: Codec
    engine: Engine


class Attention(NamedTuple):
    timer: Timer
    finder: HeadFinder


class LoadedCheckpoint:
    """Opens streams for requests whose voice and lexicons are looked up."""

    def __init__(
        self, checkpoint: Checkpoint, tokenizer: TextTokenizer, parts: Parts | None
    ) -> None:
        self.checkpoint = checkpoint
        self.writer = PromptWriter(checkpoint.config, tokenizer)
        self.open_parts: Parts | None = parts  # None: closed
        self.marker = IdMarker(tokenizer)
        self._attention: Attention | None = None  # created for the first stream

    @cached_property
    def sandbox(self) -> Sandbox:
        """Decodes recordings to clone. Starts its processes with the first compressed file."""
        return Sandbox()

    @property
    def parts(self) -> Parts:
        """Raises ClosedError after `close`, and EngineError in a forked child."""
        if self.open_parts is None:
            raise ClosedError("this TTS was closed; load it again to speak")
        self.open_parts.engine.check_process()
        return self.open_parts

    @property
    def client(self) -> EngineClient:
        """The engine that streams use. Raises ClosedError after `close`."""
        return self.parts.engine

    @property
    def attention(self) -> Attention:
        """Reads words from the attention of the loaded model."""
        model, _, engine = self.parts
        if self._attention is None:
            timer = Timer(model, on_head=engine.watch)
            self._attention = Attention(timer, HeadFinder(engine, timer))
        return self._attention

    def _attention_calls(self) -> tuple[OpenPass, OfferUtterance]:
        """For word timings, and for the search of the attention head. Usable after `close`."""
        timer, finder = self.attention
        return partial(LocalPass, self.parts.engine, timer), finder.offer

    def open(
        self, request: Request, *, chunk_frames: ChunkFrames = RAMP, wake: Wake | None = None
    ) -> Stream:
        """Open a stream. With `wake`, the caller reads it in steps."""
        engine, options = self.client, request.options
        settings = StreamSettings(
            sampling=self._settle_sampling(options.sampling),
            sizes=chunk_sizes(chunk_frames),
            speed=options.speed,
            is_guarded=options.guard,
            is_limited="max_frames" in options.sampling,
        )
        open_pass, offer = self._attention_calls()
        checks_words = options.guard and not request.verbatim
        return Stream(
            engine,
            self.writer,
            self.checkpoint.codec_config,
            request,
            settings,
            wake=wake,
            open_pass=open_pass if options.timings else None,
            marker=self.marker if checks_words else None,
            offer=offer if checks_words else None,
        )

    def close(self) -> None:
        """Free the weights."""
        if self.open_parts is not None:
            self.open_parts.engine.close()
        self.open_parts = self._attention = None

    def _settle_sampling(self, changes: dict[str, Any]) -> SamplingParams:
        """The checkpoint's sampling with the request's changes, and a seed."""
        defaults = self.checkpoint.sampling
        if changes.get("seed", defaults.seed) is None:
            changes["seed"] = secrets.randbelow(NUM_DRAWN_SEEDS)
        return defaults.replace(**changes)


def load_checkpoint(
    checkpoint: Checkpoint,
    build: Callable[[Qwen3TTS, Codec], Backend],
    device: torch.device,
    dtype: str | torch.dtype,
    weights: Weights,
    threads: int | None,  # None: the number that suits the model
    limits: EngineLimits,
    split_camel_case: bool,
    adapter: Adapter | None = None,  # of this checkpoint, whose configuration it has extended
) -> LoadedCheckpoint:
    """Load the weights and start the engine. `TTS.load` documents the arguments."""
    threads = pick_threads(threads, device, checkpoint.num_bytes)
    change = () if adapter is None else (adapter.apply,)
    jobs = (
        partial(checkpoint.load_tokenizer, split_camel_case=split_camel_case),
        partial(checkpoint.load_model, device, pick_dtype(dtype, device), weights, *change),
        partial(checkpoint.load_codec, device),
        partial(import_backends, device),
    )
    with use_threads(threads):
        tokenizer, model, codec, _ = _run_all(jobs, in_threads=device.type == "cuda")
        rebuild = partial(build, model, codec)
        first = rebuild()
    checkpoint.release_pages()
    if weights == "fp8" and first.name != FP8_BACKEND:
        log.warning("backend %s reads fp8 weights no faster; %s does", first.name, FP8_BACKEND)
    can_be_forked = can_fork(device, threads)
    engine = Engine(first, limits, threads=threads, can_fork=can_be_forked, rebuild=rebuild)
    return LoadedCheckpoint(checkpoint, tokenizer, Parts(model, codec, engine))


def _run_all(jobs: Sequence[Callable[[], Any]], *, in_threads: bool) -> list[Any]:
    """The results of all jobs. Raises the error of the first job that failed."""
    if not in_threads:  # a CPU has one reader of weights, and a process that may be forked
        return [job() for job in jobs]
    with ThreadPoolExecutor(len(jobs), thread_name_prefix="vivace-load") as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]
