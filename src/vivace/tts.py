"""`TTS`, the public API: load a checkpoint, speak, clone.

with TTS.load("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice") as tts:
    tts.speak("Hello.", voice="vivian").save("hello.wav")
"""

from __future__ import annotations

import logging
import typing
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivace.audio.clip import Audio
from vivace.audio.files import AudioSource, read_audio
from vivace.backends import Capacity
from vivace.backends.base import CodecPrecision
from vivace.checkpoint import find_folder
from vivace.dialogue.stream import DialogueStream
from vivace.dialogue.talk import Dialogue
from vivace.engine.checkpoints.adapted import AdapterPaths, read_adapters
from vivace.engine.checkpoints.adapted import (
    mixable_adapters as mixable_adapters,  # for vivace.serve
)
from vivace.engine.checkpoints.loaded import LoadedCheckpoint
from vivace.engine.checkpoints.loading import LoadSettings, load_checkpoint
from vivace.engine.dialogues import DialogueLines, speak_dialogue, stream_dialogue
from vivace.engine.engine import Engine
from vivace.engine.limits import EngineLimits, Profile
from vivace.engine.streams.async_stream import AsyncStream
from vivace.engine.streams.stream import Stream
from vivace.engine.synthesizer import Synthesizer
from vivace.hub import local_folder
from vivace.mark.levels import DEFAULT_MARK
from vivace.mark.marking import NO_MARKING, Marking, MarkSource
from vivace.model.config import Weights
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
from vivace.voices.find import VoiceSource
from vivace.voices.voice import Voice

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from vivace.model.codec import Codec
    from vivace.model.config import ModelType  # jedi fails on a property whose Literal resolves

log = logging.getLogger(__name__)

LivePieces = Iterator[str | None]
AsyncPieces = AsyncIterator[str | None]


class TTS:
    """A loaded checkpoint that speaks. `TTS.load` creates it."""

    def __init__(
        self,
        loaded: LoadedCheckpoint,
        lexicon: Lexicon | None = None,
        *,
        marking: Marking = NO_MARKING,
    ) -> None:
        self.loaded, self.checkpoint = loaded, loaded.checkpoint
        self.lexicon = lexicon
        self.adapters = {n: TTS(v, lexicon, marking=marking) for n, v in loaded.adapted.items()}
        adapted = {name: tts.synthesizer for name, tts in self.adapters.items()}
        self.synthesizer: Synthesizer = Synthesizer(loaded, lexicon, marking, adapted)

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
        adapter: str | Path | None = None,
        adapters: AdapterPaths | None = None,
        mark: MarkSource = DEFAULT_MARK,
    ) -> TTS:
        """Load a checkpoint, or the embedded voice.

        GPU memory is allocated now, for `max_streams` texts of 300 characters and one utterance of
        `max_frames`. If longer texts fill it, requests wait.

        Args:
            name_or_folder: A hub id, or a local folder in the released layout. None: the embedded
                voice.
            device: `auto` picks CUDA, then MPS, then the CPU. A small model always runs on the CPU.
            dtype: `auto` is bfloat16 on CUDA and float32 elsewhere.
            weights: `int8` and `int4` quantize the matrices, for a CPU (docs/cpu.md). `fp8` rounds
                the predictor's matrices and the talker's MLPs to 4 significant bits; only the
                `megakernel` backend is faster with it.
            backend: `auto` picks the fastest one that runs here; `vivace doctor` lists all.
            threads: CPU threads of an operation. None: 1 for a small model, else PyTorch's number.
            max_streams: Streams that run concurrently. None: 8 on an NVIDIA GPU, 256 elsewhere.
            max_frames: Frames of the longest utterance on a GPU. None: 2,048 frames, 164 s.
            max_queue: Requests that may wait for a slot.
            profile: Frames per turn while no stream waits for its first audio: `latency`,
                `balanced` or `throughput`.
            codec_precision: On an NVIDIA GPU, `split` emulates float32; `half` rounds inputs to
                float16 and is up to four times as fast. `auto` is `half` for a bfloat16 model.
                On a CPU see docs/cpu.md.
            revision: Branch, tag or commit of a hub id.
            cache_dir: Folder of downloaded checkpoints. None: the Hugging Face cache.
            offline: Use the local cache only.
            split_camel_case: Read "YouTube" as "You" "Tube", as the official package does for a
                local folder.
            lexicon: Pronunciations for every text: a .toml or .csv file, a mapping of words to
                respellings, or a `Lexicon` (docs/text.md).
            adapter: A file of `vivace finetune` to merge into the weights of its base. Its speakers
                become presets, the first one the default voice (docs/finetuning.md).
            adapters: Files of `vivace finetune` by name, beside one model. Each request chooses one
                with `voice="name"`, and a batch may mix them.
            mark: How all speech is marked as AI-generated (docs/responsible-use.md).
        """
        marking = mark if isinstance(mark, Marking) else Marking.load(mark)
        words = None if lexicon is None else Lexicon.of(lexicon)
        settings = LoadSettings(
            device=device,
            dtype=dtype,
            weights=weights,
            backend=backend,
            capacity=Capacity(max_streams, max_frames, codec_precision),
            limits=EngineLimits(max_streams, max_queue, profile=profile),
            threads=threads,
            split_camel_case=split_camel_case,
            adapters=read_adapters(adapter, adapters, weights),
        )
        if local_folder(name_or_folder) is None:
            settings.check_device()  # before a download
        found = find_folder(name_or_folder, revision=revision, cache_dir=cache_dir, offline=offline)
        tts = cls(load_checkpoint(found, settings, words), words, marking=marking)
        log.info("loaded %r", tts)
        return tts

    # -- what was loaded -----------------------------------------------------------------------

    @property
    def model_type(self) -> ModelType:
        """`custom_voice`, `voice_design` or `base`."""
        return self.checkpoint.config.tts_model_type

    @property
    def speakers(self) -> list[str]:
        """The preset voices of a custom_voice checkpoint, and the voices of `adapters`."""
        return self.synthesizer.presets

    @property
    def languages(self) -> list[str]:
        """The values of `language`: `auto`, the languages, and dialects if there are any."""
        return [AUTO_LANGUAGE, *sorted(self.checkpoint.config.talker_config.codec_language_id)]

    @property
    def sample_rate(self) -> int:
        """Of all audio, in Hz."""
        return self.checkpoint.codec_config.output_sample_rate

    @property
    def sampling(self) -> SamplingParams:
        """The checkpoint's own sampling defaults."""
        return self.checkpoint.sampling

    @property
    def tokenizer(self) -> TextTokenizer:
        """Converts text to token ids."""
        return self.loaded.writer.tokenizer

    @property
    def engine(self) -> Engine:
        """The engine that runs the backend: running and waiting streams, time per stage."""
        return self.loaded.engine

    @property
    def codec(self) -> Codec:
        """Converts samples to codes and codes to samples."""
        return self.loaded.runtime.codec

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self.loaded.runtime.model.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the model. The codec has a precision of its own."""
        return self.loaded.runtime.model.dtype

    def __repr__(self) -> str:
        name = f"{type(self).__name__} {self.model_type} {self.checkpoint.folder.name}"
        if self.loaded.open_runtime is None:
            return f"<{name}, closed>"
        runtime = self.loaded.open_runtime  # `runtime` raises in a forked child
        return f"<{name} on {runtime.describe_model()}, backend {runtime.engine.backend.name}>"

    def __reduce__(self) -> typing.NoReturn:
        raise TypeError("a TTS cannot be pickled or copied; load it in each process")

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

        A batch returns a list of `Audio` in the same order, each as if spoken alone. If some texts
        fail, the others are still spoken, and BatchError has the results and the errors.

        `[pause 0.5s]` in a text is a pause; `[spell: NASA]` and `[digits: 2024]` are read one by
        one. Runaway speech is retried once unless `seed` or `max_frames` is given, and then raises
        RunawayError.

        Args:
            text: A text, an iterator of pieces that are still being written, or a list or tuple of
                texts: a batch.
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
        """`speak` for asyncio.

        The call does not block the event loop and needs no thread but the engine's. Cancelling the
        task stops the speech and frees its slots.

        Args:
            text: As for `speak`, or an async iterator of pieces.
        """
        return await self.synthesizer.speak_async(text, SpeakOptions(**options))

    @takes(StreamOptions)
    def stream(self, text: str | Iterable[str | None], **options: Any) -> Stream:
        """Speak a text and return audio chunks while they are made.

        The samples are those of `speak` with `trim=False`. A list is rejected: `speak` makes a
        batch of it, and `iter(pieces)` is one text in pieces.

        Args:
            text: A text, or an iterator of pieces such as the tokens of an LLM. Speech begins with
                the first word or sentence (`live`). Pieces that are None are skipped.
        """
        return self.synthesizer.stream(text, StreamOptions(**options))

    @takes(StreamOptions)
    def astream(
        self, text: str | Iterable[str | None] | AsyncIterable[str | None], **options: Any
    ) -> AsyncStream:
        """`stream` for asyncio.

        The engine's thread does the work. Errors of the request are raised when the first chunk is
        read. `stream = await tts.astream(...)` queues the request and raises them at once.

        Args:
            text: As for `stream`, or an async iterator of pieces.
        """
        return self.synthesizer.stream_async(text, StreamOptions(**options))

    @takes(DialogueOptions, leave_out={"voice"})
    def dialogue(self, lines: DialogueLines, **options: Any) -> Dialogue:
        """Speak lines as a conversation. All lines are made together, as a batch.

        Unknown names raise UnknownVoiceError before anything is spoken. `[overlap 0.3s]` at the
        start of a line sets the overlap of that line. With a `seed`, line n from 0 is what `speak`
        returns with `seed + 10_000 * n`.

        The result is an `Audio` with `lines`, `tracks` by speaker and `save_tracks`.

        Args:
            lines: Pairs of (voice, text), or `DialogueScript.load("talk.txt")`.
        """
        return speak_dialogue(self.synthesizer, lines, DialogueOptions(**options))

    @takes(DialogueStreamOptions, leave_out={"voice"})
    def stream_dialogue(self, lines: DialogueLines, **options: Any) -> DialogueStream:
        """`dialogue` while it is made: an iterator of `DialogueChunk`.

        The samples are those of `dialogue`, except that lines which are too loud together are
        clipped. Voices and texts are checked before anything is spoken.

        Args:
            lines: As for `dialogue`.
        """
        return stream_dialogue(self.synthesizer, lines, DialogueStreamOptions(**options))

    # -- voices --------------------------------------------------------------------------------

    def voice(self, voice: VoiceSource, transcript: str | None = None) -> str | Voice:
        """Look up what `speak` accepts as `voice`.

        This opens paths. A server looks up the names of its clients in `speakers` and
        `VoiceLibrary` instead.

        Args:
            voice: A preset, which stays its name; a recording, which is cloned once; a .safetensors
                file, which is loaded; or a name in the library.
            transcript: Every word of the recording, for cloning in context.
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
        consent: str | None = None,
        append_silence: bool = True,
    ) -> Voice:
        """Create a voice from a recording. Needs a checkpoint with a speaker encoder: a Base model.

        Without `transcript` the voice is a speaker vector. With it, speech continues the recording
        in context, which is closer to the original. This needs a Base model.

        Args:
            audio: 1 to 30 s of one person's speech: a path, bytes, a data URI, (samples, rate) or
                an `Audio`.
            transcript: Every word of the recording.
            name: Name of the voice, for `VoiceLibrary`.
            language: Language of the recording, kept as a note.
            licence: Licence of the recording, kept as a note.
            consent: Who agreed to the use of the recording, kept as a note.
            append_silence: Append half a second of silence, so that the recording's last sound does
                not continue into the speech. The official package does not.
        """
        self.loaded.check_clone(transcript)
        options = {
            "name": name,
            "transcript": transcript,
            "language": None if language is None else language_name(language),
            "licence": licence,
            "consent": consent,
            "append_silence": append_silence,
        }
        return self.loaded.enroll(read_audio(audio, sandbox=self.loaded.sandbox), options)

    # -- life cycle ----------------------------------------------------------------------------

    def warmup(self) -> None:
        """Compile, capture and load what the first request would otherwise wait for."""
        engine = self.engine
        engine.call(engine.backend.warmup)
        self.loaded.runtime.warmup()

    def close(self) -> None:
        """Free the weights. Speaking afterwards raises ClosedError."""
        self.loaded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
