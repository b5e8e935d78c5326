"""`TTS`, the public API: load a checkpoint, speak, clone.

with TTS.load("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice") as tts:
    tts.speak("Hello.", voice="vivian").save("hello.wav")
"""

from __future__ import annotations

import logging
import typing
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from vivace.audio.clip import Audio
from vivace.audio.files import AudioSource, read_audio
from vivace.backends import Capacity, build_backend
from vivace.backends.base import CodecPrecision
from vivace.checkpoint import Checkpoint, find_folder
from vivace.device import pick_device, pick_dtype, use_threads
from vivace.dialogue.stream import DialogueStream
from vivace.dialogue.talk import Dialogue
from vivace.engine.async_stream import AsyncStream
from vivace.engine.dialogues import DialogueLines, speak_dialogue, stream_dialogue
from vivace.engine.engine import Engine
from vivace.engine.load import load_checkpoint
from vivace.engine.loaded import LoadedCheckpoint
from vivace.engine.scheduler import EngineLimits, Profile
from vivace.engine.stream import Stream
from vivace.engine.synthesizer import Synthesizer
from vivace.model.codec import Codec
from vivace.model.fp8 import Weights, check_weights
from vivace.options import (
    DialogueOptions,
    DialogueStreamOptions,
    SpeakOptions,
    StreamOptions,
    takes,
)
from vivace.speech import AUTO_LANGUAGE, SamplingParams, language_name
from vivace.text.lexicon import Lexicon, LexiconSource
from vivace.text.tokenizer import TextTokenizer
from vivace.voices.enroll import enroll
from vivace.voices.find import VoiceSource
from vivace.voices.voice import Voice

if TYPE_CHECKING:
    from typing_extensions import Self

    from vivace.model.config import ModelType  # jedi fails on a property whose Literal resolves

log = logging.getLogger(__name__)

LivePieces = Iterator[str | None]
AsyncPieces = AsyncIterator[str | None]


class TTS:
    """A loaded checkpoint that speaks. `TTS.load` creates it."""

    def __init__(self, loaded: LoadedCheckpoint, lexicon: Lexicon | None = None) -> None:
        self.checkpoint = loaded.checkpoint
        self.lexicon = lexicon
        self.loaded = loaded
        self.synthesizer = Synthesizer(loaded, lexicon)  # speaks with an options object

    @classmethod
    def load(
        cls,
        name_or_folder: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str | torch.dtype = "auto",
        weights: Weights = "full",
        backend: str = "auto",
        threads: int | None = None,
        max_streams: int | None = None,
        max_frames: int | None = None,
        max_queue: int = 256,
        profile: Profile = "balanced",
        codec_precision: CodecPrecision = "auto",
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        offline: bool = False,
        split_camel_case: bool = False,
        lexicon: LexiconSource | None = None,
    ) -> TTS:
        """Load a hub id, a local folder in the released layout, or the embedded voice (None).

        `device="auto"` picks CUDA, then MPS, then the CPU; a small model always runs on the CPU.
        `dtype="auto"` is bfloat16 on CUDA and float32 elsewhere. `threads` limits the CPU threads
        of an operation while this TTS works; None is 1 for a small model, else PyTorch's number.

        `max_streams` run concurrently (None: 8 on an NVIDIA GPU, many elsewhere), and `max_queue`
        wait for a slot. GPU memory is allocated now, for that many texts of 300 characters and one
        utterance of `max_frames` (None: 2,048 frames, 164 s). If longer texts fill it, requests
        wait. `profile` is `latency`, `balanced` or `throughput`: how many frames a turn makes while
        no stream waits for its first audio.

        `codec_precision`, on an NVIDIA GPU: `split` emulates float32; `half` rounds the inputs of
        the codec's convolutions to float16 and is up to four times as fast. `auto` is `half` for a
        bfloat16 model and `split` for a float32 model. `weights="fp8"` rounds the predictor's
        matrices and the talker's MLPs to 4 significant bits; only the `megakernel` backend is
        faster with it.

        `split_camel_case` reads "YouTube" as "You" "Tube", as the official package does for a local
        folder. `lexicon` applies to every text: a .toml or .csv file, a mapping of words to
        respellings, or a `Lexicon` (docs/text.md).
        """
        words = None if lexicon is None else Lexicon.of(lexicon)
        limits = EngineLimits(max_streams, max_queue, profile=profile)
        capacity = Capacity(max_streams, max_frames, codec_precision)
        check_weights(weights)
        pick_dtype(dtype, pick_device(device))  # reject impossible values before a download
        folder = find_folder(
            name_or_folder, revision=revision, cache_dir=cache_dir, offline=offline
        )
        checkpoint = Checkpoint.open(folder)
        if words is not None:
            words.check_languages(checkpoint.config.talker_config.codec_language_id)
        loaded = load_checkpoint(
            checkpoint,
            build=build_backend,
            device=device,
            dtype=dtype,
            weights=weights,
            backend=backend,
            threads=threads,
            limits=limits,
            capacity=capacity,
            split_camel_case=split_camel_case,
        )
        tts = cls(loaded, words)
        log.info("loaded %r", tts)
        return tts

    # -- what was loaded -----------------------------------------------------------------------

    @property
    def model_type(self) -> ModelType:
        return self.checkpoint.config.tts_model_type

    @property
    def speakers(self) -> list[str]:
        """The preset voices; empty unless the checkpoint is of type custom_voice."""
        return self.synthesizer.presets

    @property
    def languages(self) -> list[str]:
        """The values of `language`: `auto`, the languages, and dialects if there are any."""
        return [AUTO_LANGUAGE, *sorted(self.checkpoint.config.talker_config.codec_language_id)]

    @property
    def sample_rate(self) -> int:
        return self.checkpoint.codec_config.output_sample_rate

    @property
    def sampling(self) -> SamplingParams:
        """The checkpoint's own sampling defaults."""
        return self.checkpoint.sampling

    @property
    def tokenizer(self) -> TextTokenizer:
        return self.loaded.writer.tokenizer

    @property
    def engine(self) -> Engine:
        """The engine that runs the backend: running and waiting streams, time per stage."""
        return self.loaded.parts.engine

    @property
    def codec(self) -> Codec:
        """Converts samples to codes and codes to samples."""
        return self.loaded.parts.codec

    @property
    def device(self) -> torch.device:
        return self.loaded.parts.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.loaded.parts.model.dtype

    def __repr__(self) -> str:
        name = f"{type(self).__name__} {self.model_type} {self.checkpoint.folder.name}"
        if self.loaded.open_parts is None:
            return f"<{name}, closed>"
        model, _, engine = self.loaded.open_parts  # `parts` raises in a forked child
        dtype = str(model.dtype).removeprefix("torch.")
        if model.weights == "fp8":
            dtype += " with weights in fp8"
        return f"<{name} on {model.device} in {dtype}, backend {engine.backend.name}>"

    # -- speech --------------------------------------------------------------------------------

    # `typing.overload`: jedi stops at a bare `overload`, which does not lead it to the options.
    @typing.overload
    @takes(SpeakOptions)
    def speak(self, text: str | LivePieces, **options: Any) -> Audio: ...

    @typing.overload
    @takes(SpeakOptions)
    def speak(self, text: list[str] | tuple[str, ...], **options: Any) -> list[Audio]: ...

    @takes(SpeakOptions)
    def speak(
        self, text: str | LivePieces | list[str] | tuple[str, ...], **options: Any
    ) -> Audio | list[Audio]:
        """Speak a text of any length and return all of the audio.

        A list or tuple is a batch. The result is a list of `Audio` in the same order, each as if
        spoken alone with these options. If some texts fail, the others are still spoken; then
        BatchError has both. An iterator is one text that is still being written.

        `[pause 0.5s]` in a text is a pause; `[spell: NASA]` and `[digits: 2024]` are read one by
        one. Runaway speech is retried once unless `seed` or `max_frames` is given, and then raises
        RunawayError.
        """
        return self.synthesizer.speak(text, SpeakOptions(**options))

    @typing.overload
    @takes(SpeakOptions)
    async def aspeak(self, text: str | LivePieces | AsyncPieces, **options: Any) -> Audio: ...

    @typing.overload
    @takes(SpeakOptions)
    async def aspeak(self, text: list[str] | tuple[str, ...], **options: Any) -> list[Audio]: ...

    @takes(SpeakOptions)
    async def aspeak(
        self, text: str | LivePieces | AsyncPieces | list[str] | tuple[str, ...], **options: Any
    ) -> Audio | list[Audio]:
        """`speak` for asyncio; `text` may be an async iterator too.

        The call does not block the event loop and needs no thread but the engine's. Cancelling the
        task stops the speech and frees its slots.
        """
        return await self.synthesizer.speak_async(text, SpeakOptions(**options))

    @takes(StreamOptions)
    def stream(self, text: str | Iterable[str | None], **options: Any) -> Stream:
        """Speak a text and return audio chunks while they are made.

        The samples are those of `speak` with `trim=False`. `text` may be an iterator of pieces,
        such as the tokens of an LLM: speech begins with the first word and waits for more text.
        None in the pieces is skipped. A list is rejected: `speak` makes a batch of it, and
        `iter(pieces)` is one text in pieces.
        """
        return self.synthesizer.stream(text, StreamOptions(**options))

    @takes(StreamOptions)
    def astream(
        self, text: str | Iterable[str | None] | AsyncIterable[str | None], **options: Any
    ) -> AsyncStream:
        """`stream` for asyncio; `text` may be an async iterator too.

        The engine's thread does the work. Errors of the request are raised when the first chunk is
        asked for, or before it by `stream = await tts.astream(...)`, which also queues the request.
        """
        return self.synthesizer.stream_async(text, StreamOptions(**options))

    @takes(DialogueOptions, leave_out={"voice"})
    def dialogue(self, lines: DialogueLines, **options: Any) -> Dialogue:
        """Speak lines of (voice, text) as a conversation; all lines are made together, as a batch.

        `lines` may be `DialogueScript.load("talk.txt")`. Unknown names raise UnknownVoiceError
        before anything is spoken. `[overlap 0.3s]` at the start of a line sets the overlap of that
        line. With a `seed`, line n from 0 is what `speak` returns with `seed + 10_000 * n`.

        The result is an `Audio` with `lines`, `tracks` by speaker and `save_tracks`.
        """
        return speak_dialogue(self.synthesizer, lines, DialogueOptions(**options))

    @takes(DialogueStreamOptions, leave_out={"voice"})
    def stream_dialogue(self, lines: DialogueLines, **options: Any) -> DialogueStream:
        """`dialogue` while it is made: an iterator of `DialogueChunk`.

        The samples are those of `dialogue`, except that lines which are too loud together are
        clipped. Voices and texts are checked before anything is spoken.
        """
        return stream_dialogue(self.synthesizer, lines, DialogueStreamOptions(**options))

    # -- voices --------------------------------------------------------------------------------

    def voice(self, voice: VoiceSource, transcript: str | None = None) -> str | Voice:
        """Look up what `speak` accepts as `voice`.

        A recording's path is enrolled once, with its `transcript` in context; a .safetensors file
        is loaded; other names are the library's. A preset stays its name. Because this opens
        paths, a server looks up the names of its clients in `speakers` and `VoiceLibrary` instead.
        """
        return self.synthesizer.find_voice(voice, transcript)

    def clone(
        self,
        audio: AudioSource,
        transcript: str | None = None,
        *,
        name: str = "cloned",
        language: str | None = None,
        licence: str | None = None,
        append_silence: bool = True,
    ) -> Voice:
        """A voice from a recording of 1 to 30 s: a path, bytes, a data URI or (array, rate).

        Alone, the voice is a speaker vector. With `transcript`, every word said in the recording,
        speech goes on from it in context, which is closer to the original; half a second of
        silence is appended to it first, so that its last sound does not run on into the speech
        (`append_silence=False` is the official behaviour).
        """
        self.loaded.writer.require("base", "clone a voice")
        model, codec, engine = self.loaded.parts
        recording = read_audio(audio, sandbox=self.loaded.sandbox)
        with use_threads(engine.threads):
            return enroll(
                model,
                codec,
                recording,
                name=name,
                transcript=transcript,
                language=None if language is None else language_name(language),
                licence=licence,
                append_silence=append_silence,
            )

    # -- life cycle ----------------------------------------------------------------------------

    def warmup(self) -> None:
        """Compile and capture what the first request would otherwise wait for."""
        engine = self.engine
        engine.call(engine.backend.warmup)

    def close(self) -> None:
        """Free the weights. Speaking afterwards raises ClosedError."""
        self.loaded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
