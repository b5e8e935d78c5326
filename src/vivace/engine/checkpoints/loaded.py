"""A loaded checkpoint: keeps model, codec and engine until they are closed, and opens streams."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from vivace.audio.file_mark import FileMark, VoiceKind
from vivace.audio.files import Recording
from vivace.audio.sandbox import Sandbox
from vivace.checkpoint import Checkpoint
from vivace.device.threads import use_threads
from vivace.engine.checkpoints.attention import Attention, HeadFinder, LocalPass
from vivace.engine.engine import Engine
from vivace.engine.streams.chunks import chunk_sizes
from vivace.engine.streams.stream import Stream, Wake
from vivace.engine.utterances.client import EngineClient
from vivace.engine.utterances.completeness import IdMarker, OfferUtterance
from vivace.engine.utterances.factory import StreamSettings
from vivace.engine.utterances.timings import OpenPass
from vivace.errors import ClosedError
from vivace.hub import model_id
from vivace.mark.marking import Marking
from vivace.model.config import Weights
from vivace.options import RAMP, ChunkFrames
from vivace.script.checks import SERVED_BY
from vivace.script.prompts import PromptAdapter, PromptWriter
from vivace.script.request import Request
from vivace.speech import NUM_DRAWN_SEEDS, SamplingParams
from vivace.text.tokenizer import TextTokenizer
from vivace.timing.head_selector import HeadSelector
from vivace.voices.voice import Voice

if TYPE_CHECKING:
    from vivace.model.codec import Codec
    from vivace.model.talker import Qwen3TTS


class Runtime:
    """The model, the codec and the engine of a loaded checkpoint.

    A backend without PyTorch has read the weights itself. `model` and `codec` are then loaded when
    they are first used, for example for word timings.
    """

    def __init__(
        self,
        load: Callable[[], tuple[Qwen3TTS, Codec]],
        engine: Engine,
        weights: Weights = "full",  # of a model that is not loaded
    ) -> None:
        self.engine = engine
        self._weights = weights
        self._load = load
        self._lock = Lock()
        self._loaded: tuple[Qwen3TTS, Codec] | None = None

    @classmethod
    def of(cls, model: Qwen3TTS, codec: Codec, engine: Engine) -> Runtime:
        runtime = cls(lambda: (model, codec), engine)
        runtime.load()
        return runtime

    def load(self) -> tuple[Qwen3TTS, Codec]:
        """The model and the codec, which the first call loads."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def warmup(self) -> None:
        """Load model and codec, unless the weights are quantized: that would undo their saving of
        memory, and most requests do not use PyTorch."""
        if self._weights == "full":
            self.load()

    @property
    def model(self) -> Qwen3TTS:
        return self.load()[0]

    @property
    def codec(self) -> Codec:
        return self.load()[1]

    def describe_model(self) -> str:
        """Device and precision."""
        where, dtype, weights = "cpu", "float32", self._weights
        if self._loaded is not None:
            model = self._loaded[0]
            where, dtype, weights = str(model.device), str(model.dtype), model.weights
        kind = f" with weights in {weights}" if weights != "full" else ""
        return f"{where} in {dtype.removeprefix('torch.')}{kind}"


class LoadedCheckpoint:
    """Opens streams for requests whose voice and lexicons are looked up."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: TextTokenizer,
        runtime: Runtime | None,
        adapter: PromptAdapter | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.writer = PromptWriter(checkpoint.config, tokenizer, adapter)
        self.adapted: Mapping[str, LoadedCheckpoint] = {}  # by adapter, in order of their numbers
        self.own_speakers: tuple[str, ...] = ()  # of the adapter, if this is a view of one
        self._runtime = runtime
        self.marker = IdMarker(tokenizer)
        self._attention: Attention | None = None  # created for the first stream

    @cached_property
    def sandbox(self) -> Sandbox:
        """Decodes recordings to clone. Starts its processes with the first compressed file."""
        return Sandbox()

    @property
    def open_runtime(self) -> Runtime | None:
        """None after `close`."""
        return self._runtime

    @property
    def runtime(self) -> Runtime:
        """Raises ClosedError after `close`, and EngineError in a forked child."""
        runtime = self.open_runtime
        if runtime is None:
            raise ClosedError("this TTS was closed; load it again to speak")
        runtime.engine.check_process()
        return runtime

    @property
    def engine(self) -> Engine:
        """Raises ClosedError after `close`, and EngineError in a forked child."""
        return self.runtime.engine

    @property
    def client(self) -> EngineClient:
        """The engine that streams use. Raises ClosedError after `close`."""
        return self.engine

    @property
    def attention(self) -> Attention:
        """Reads words from the attention of the loaded model."""
        runtime = self.runtime
        if self._attention is None:
            engine = runtime.engine
            selector = HeadSelector(
                self.checkpoint.config, lambda: runtime.model, on_head=engine.watch
            )
            open_pass = partial(LocalPass, engine, selector)
            self._attention = Attention(selector, HeadFinder(engine, selector), open_pass)
        return self._attention

    def _attention_calls(self) -> tuple[OpenPass, OfferUtterance]:
        """For word timings, and for the search of the attention head. Usable after `close`."""
        _, finder, open_pass = self.attention
        return open_pass, finder.offer

    def open(
        self, request: Request, *, chunk_frames: ChunkFrames = RAMP, wake: Wake | None = None
    ) -> Stream:
        """Open a stream. With `wake`, the caller reads it in steps."""
        engine, options = self.client, request.options
        sampling = options.sampling
        settings = StreamSettings(
            sampling=self._settle_sampling(sampling),
            sizes=chunk_sizes(chunk_frames),
            speed=options.speed,
            is_guarded=options.guard,
            is_limited="max_frames" in sampling,
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
            find_mark=partial(self.file_mark, request.marking, request.voice),
        )

    def file_mark(self, marking: Marking, *voices: str | Voice | None) -> FileMark | None:
        """The metadata of a file that contains speech of these voices."""
        if not marking.has_metadata:
            return None
        return marking.file_mark(self._model_id, *map(self._voice_kind, voices))

    def _voice_kind(self, voice: str | Voice | None) -> VoiceKind:
        if self.checkpoint.config.tts_model_type == "voice_design":
            return "designed"
        if isinstance(voice, Voice):
            return "cloned"
        speaker = (voice or self.writer.default_voice or "").lower()
        tuned = (name.lower() for name in self.checkpoint.speaker_notes)
        return "fine-tuned" if speaker in tuned else "preset"

    @cached_property
    def _model_id(self) -> str:
        return model_id(self.checkpoint.folder)  # reads links

    def check_clone(self, transcript: str | None) -> None:
        """Raise UnsupportedRequestError if the checkpoint cannot clone, or not in context."""
        self.writer.checker.require_cloning("clone a voice")
        if transcript is not None:
            self.checkpoint.codec_config.require_encoder(
                "clone in context", f"leave the transcript out, or load {SERVED_BY['base']}"
            )

    def enroll(self, recording: Recording, options: dict[str, Any]) -> Voice:
        """Create a voice from a recording. `options` are those of `enroll`."""
        from vivace.voices.enroll import enroll

        runtime = self.runtime
        with use_threads(runtime.engine.threads):
            return enroll(runtime.model, runtime.codec, recording, **options)

    def close(self) -> None:
        """Free the weights."""
        if self._runtime is not None:
            self._runtime.engine.close()
        self._runtime = self._attention = None

    def _settle_sampling(self, changes: dict[str, Any]) -> SamplingParams:
        """The checkpoint's sampling with the request's changes, and a seed."""
        defaults = self.checkpoint.sampling
        if changes.get("seed", defaults.seed) is None:
            changes["seed"] = secrets.randbelow(NUM_DRAWN_SEEDS)
        return defaults.replace(**changes)
