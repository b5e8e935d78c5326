"""A loaded checkpoint: what it is, its parts until it is closed, and streams of its engine."""

from __future__ import annotations

import secrets
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from vivace.checkpoint import Checkpoint
from vivace.engine.chunks import RAMP, ChunkFrames, chunk_sizes
from vivace.engine.completeness import IdMarker
from vivace.engine.engine import Engine
from vivace.engine.head_finder import HeadFinder
from vivace.engine.stream import Stream, StreamSettings, Wake
from vivace.errors import ClosedError
from vivace.model.codec import Codec
from vivace.model.talker import Qwen3TTS
from vivace.prompt import AUTO_LANGUAGE
from vivace.script.prompts import PromptWriter
from vivace.script.request import Request
from vivace.speech import NUM_DRAWN_SEEDS, SamplingParams
from vivace.text.tokenizer import TextTokenizer
from vivace.timing.timer import Timer

if TYPE_CHECKING:
    from typing_extensions import Self

    from vivace.model.config import ModelType  # jedi fails on a property whose Literal resolves


class Parts(NamedTuple):
    model: Qwen3TTS
    codec: Codec
    engine: Engine


class LoadedCheckpoint:
    """Opens streams for requests that are ready-made; `TTS` makes them of texts and options."""

    checkpoint: Checkpoint
    _writer: PromptWriter
    _parts: Parts | None  # None: closed
    _timer: Timer | None  # of words, once they are asked for
    _marker: IdMarker
    _finder: HeadFinder | None

    def __init__(self, checkpoint: Checkpoint, tokenizer: TextTokenizer, parts: Parts) -> None:
        self.checkpoint = checkpoint
        self._writer = PromptWriter(checkpoint.config, tokenizer)
        self._marker = IdMarker(tokenizer)
        self._parts, self._timer, self._finder = parts, None, None

    @property
    def model_type(self) -> ModelType:
        return self.checkpoint.config.tts_model_type

    @property
    def speakers(self) -> list[str]:
        """The preset voices; empty unless the checkpoint is of type custom_voice."""
        return sorted(self.checkpoint.config.talker_config.spk_id)

    @property
    def languages(self) -> list[str]:
        """What `language` may be: `auto`, the languages, and dialects where there are any."""
        return [AUTO_LANGUAGE, *sorted(self.checkpoint.config.talker_config.codec_language_id)]

    @property
    def sample_rate(self) -> int:
        return self.checkpoint.codec_config.output_sample_rate

    @property
    def sampling(self) -> SamplingParams:
        """The checkpoint's own sampling defaults."""
        return self.checkpoint.sampling

    @property
    def engine(self) -> Engine:
        """The engine that runs the backend: running and waiting streams, time per stage."""
        return self._open_parts().engine

    @property
    def tokenizer(self) -> TextTokenizer:
        return self._writer.tokenizer

    @property
    def codec(self) -> Codec:
        """Samples to codes and back."""
        return self._open_parts().codec

    @property
    def device(self) -> torch.device:
        return self._open_parts().model.device

    @property
    def dtype(self) -> torch.dtype:
        return self._open_parts().model.dtype

    def __repr__(self) -> str:
        name = f"{type(self).__name__} {self.model_type} {self.checkpoint.folder.name}"
        if self._parts is None:
            return f"<{name}, closed>"
        model, _, engine = self._parts
        dtype = str(model.dtype).removeprefix("torch.")
        if model.weights == "fp8":
            dtype += " with weights in fp8"
        return f"<{name} on {model.device} in {dtype}, backend {engine.backend.name}>"

    def open(
        self,
        request: Request,
        *,
        chunk_frames: ChunkFrames = RAMP,
        guard: bool = True,
        speed: float = 1.0,
        timings: bool = False,
        check_words: bool = False,
        wake: Wake | None = None,
        **sampling: Any,
    ) -> Stream:
        """Open a stream for a ready-made request.

        `stream` and the classes of `vivace.compat` end here. Nothing is filled in: no default
        voice, and `instruct` reaches any checkpoint. With `wake` it is read in steps.
        """
        model, _, engine = self._open_parts()
        if self._timer is None:
            self._timer = Timer(model, on_head=engine.watch)
            self._finder = HeadFinder(engine, self._timer)
        settings = StreamSettings(
            sampling=self._settle_sampling(**sampling),
            sizes=chunk_sizes(chunk_frames),
            speed=speed,
            is_guarded=guard,
            is_limited="max_frames" in sampling,
        )
        config = self.checkpoint.codec_config
        timer = self._timer if timings else None
        return Stream(
            engine,
            self._writer,
            config,
            request,
            settings,
            wake=wake,
            timer=timer,
            marker=self._marker if check_words else None,
            finder=self._finder if check_words else None,
        )

    def warmup(self) -> None:
        """Compile and capture what the first request would otherwise wait for."""
        engine = self.engine
        engine.call(engine.backend.warmup)

    def close(self) -> None:
        """Free the weights; speaking afterwards is a ClosedError."""
        if self._parts is not None:
            self._parts.engine.close()
        self._parts = self._timer = self._finder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open_parts(self) -> Parts:
        if self._parts is None:
            raise ClosedError("this TTS was closed; load it again to speak")
        self._parts.engine.check_process()
        return self._parts

    def _settle_sampling(self, **changes: Any) -> SamplingParams:
        if changes.get("seed", self.sampling.seed) is None:
            changes["seed"] = secrets.randbelow(NUM_DRAWN_SEEDS)
        return self.sampling.replace(**changes)
