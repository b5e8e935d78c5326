"""`TTS`, the public API: load a checkpoint, speak, clone.

with TTS.load("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice") as tts:
    tts.speak("Hello.", voice="vivian").save("hello.wav")
"""

from __future__ import annotations

import inspect
import logging
import typing
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vivace.audio.clip import Audio
from vivace.audio.files import AudioSource, read_audio
from vivace.backends import Capacity, build_backend
from vivace.backends.base import CodecPrecision
from vivace.checkpoint import Checkpoint, find_folder
from vivace.device import can_fork, pick_device, pick_dtype, pick_threads, use_threads
from vivace.dialogue.make import make_dialogue, open_dialogue
from vivace.dialogue.script import DialogueScript
from vivace.dialogue.stream import DialogueStream
from vivace.dialogue.talk import Dialogue, Timing
from vivace.engine.async_stream import AsyncStream, Bells, run_steps_async
from vivace.engine.batch import (
    check_item,
    run_steps,
    speak_batch,
)
from vivace.engine.engine import Engine
from vivace.engine.loaded import LoadedCheckpoint, Parts
from vivace.engine.options import (
    SpeakOptions,
    SpeechOptions,
    StreamOptions,
    check_names,
    show_options,
)
from vivace.engine.progress import show_batch
from vivace.engine.scheduler import EngineLimits, Profile
from vivace.engine.speaking import SpeakingCheckpoint, read_lexicon
from vivace.engine.stream import Stream, Wake
from vivace.errors import RequestError, UnsupportedRequestError
from vivace.model.fp8 import Weights, check_weights
from vivace.script.prompts import SERVED_BY
from vivace.script.request import as_pieces
from vivace.speech import language_name
from vivace.text.lexicon import Lexicon, LexiconSource
from vivace.text.tokenizer import TextTokenizer
from vivace.voices.enroll import enroll
from vivace.voices.find import VoiceSource
from vivace.voices.voice import Voice

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger(__name__)

FP8_BACKEND = "megakernel"  # the one that reads them in their own format


class TTS(SpeakingCheckpoint):
    """A loaded checkpoint that speaks."""

    def __init__(self) -> None:
        raise RequestError("TTS() loads nothing; write TTS.load(), or TTS.load(a name or folder)")

    @classmethod
    def _put_together(
        cls,
        checkpoint: Checkpoint,
        tokenizer: TextTokenizer,
        parts: Parts,
        lexicon: Lexicon | None = None,
    ) -> TTS:
        tts = cls.__new__(cls)
        LoadedCheckpoint.__init__(tts, checkpoint, tokenizer, parts)
        tts.lexicon, tts._bells = lexicon, Bells()
        return tts

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
        """Load a hub id, a local folder in the released layout, or the voice in the package.

        Without a name it is the embedded voice: small, English, offline, quick on a CPU.

        `auto` picks CUDA, then MPS, then the CPU, and the CPU for a small model; bfloat16 on CUDA,
        float32 elsewhere; and the first backend that can run. `threads` is how many of the CPU's an
        operation may use, while this TTS works and nowhere else; None gives a small model one,
        which a busy machine slows least, and leaves PyTorch's own number to the others.

        `max_streams` run concurrently (None: 8 on an NVIDIA GPU, many elsewhere), and `max_queue`
        wait for a slot. A GPU's memory is allocated when the model is loaded: for that many texts
        of 300 characters and one utterance of `max_frames` (None: 2,048 frames, 164 s); when longer
        ones fill it, requests wait for it as for a slot. `profile` is `latency`, `balanced` or
        `throughput`: how many frames a turn makes while no stream waits for its first audio.

        `codec_precision`, on an NVIDIA GPU: `split` is exact to float32, `half` rounds the inputs
        of the codec's convolutions to float16 and is about twice as fast for many streams.

        `weights="fp8"` rounds the predictor's matrices and the talker's MLPs to 4 significant bits:
        the `megakernel` backend then reads half the bytes; others compute with the same numbers, no
        faster.

        `split_camel_case` reads "YouTube" as "You" "Tube", as the official package does when it
        loads a local folder.

        `lexicon` says how some words are read, in every text: a .toml or .csv file, a mapping of
        words to respellings, or a `Lexicon` (docs/text.md).
        """
        words = None if lexicon is None else Lexicon.of(lexicon)
        limits = EngineLimits(max_streams, max_queue, profile=profile)
        capacity = Capacity(max_streams, max_frames, codec_precision)
        check_weights(weights)
        pick_dtype(dtype, pick_device(device))  # what cannot be is refused before a download
        folder = find_folder(
            name_or_folder, revision=revision, cache_dir=cache_dir, offline=offline
        )
        checkpoint = Checkpoint.open(folder)
        if words is not None:
            words.check_languages(checkpoint.config.talker_config.codec_language_id)
        tokenizer = checkpoint.load_tokenizer(split_camel_case=split_camel_case)
        where = pick_device(device, checkpoint.num_bytes if backend == "auto" else None)
        precision = pick_dtype(dtype, where)
        threads = pick_threads(threads, where, checkpoint.num_bytes)
        with use_threads(threads):
            model = checkpoint.load_model(where, precision, weights)
            codec = checkpoint.load_codec(where)
            build = partial(build_backend, backend, model, codec, capacity)
            first = build()
        if weights == "fp8" and first.name != FP8_BACKEND:
            log.warning("backend %s reads fp8 weights no faster; %s does", first.name, FP8_BACKEND)
        can_be_forked = can_fork(where, threads)
        engine = Engine(first, limits, threads=threads, can_fork=can_be_forked, rebuild=build)
        tts = cls._put_together(checkpoint, tokenizer, Parts(model, codec, engine), words)
        log.info("loaded %r", tts)
        return tts

    # `typing.overload`: jedi stops at a bare `overload`, which does not lead it to the options.
    @typing.overload
    def speak(self, text: str | Iterator[str], **options: Unpack[SpeakOptions]) -> Audio: ...

    @typing.overload
    def speak(
        self, text: list[str] | tuple[str, ...], **options: Unpack[SpeakOptions]
    ) -> list[Audio]: ...

    def speak(
        self,
        text: str | Iterator[str] | list[str] | tuple[str, ...],
        **options: Unpack[SpeakOptions],
    ) -> Audio | list[Audio]:
        """Say `text`, of any length, and return all of it.

        `voice`: a preset speaker's name, a cloned `Voice`, the name of one in the library, or the
        path of a voice file or of a recording to clone.
        `language`: of the text, by name or code (`english`, `en`, `en-US`), whatever the voice's
        own; `auto` leaves it to the model.
        `instruct`: how to speak, or the voice described to a voice_design checkpoint.
        `speed`: 0.25 to 4 times as fast, at the same pitch.
        `split`: false speaks a text of any length as one utterance, not as several of a few
        sentences each. `[pause 0.5s]` is a pause.
        `clean`: take markdown and links out. `keep_emoji`: speak emoji, which are left out else.
        `normalize`: English numbers, dates, capitals and signs as words; None is what the
        checkpoint wants: true for the embedded voice, false for the released ones.
        `on_unsupported`: letters that the checkpoint does not read are left out (`skip`) and listed
        in `Audio.skipped`, unless nothing else is there; `error` refuses the text.
        `lexicon`: words and how they are read, before those that were loaded: a file's path, a
        mapping or a `Lexicon`. `[spell: NASA]` and `[digits: 2024]` are read one by one.
        `guard`: stop speech that does not end by itself, or is silent; without a `seed` or
        `max_frames` of yours it is tried once more, and then a RunawayError.
        `trim`: take off silence at the start, a stall at the end, and the end of a cloned voice's
        recording where it is said again.
        `text_layout`: None is the official choice, `streamed` for cloned voices, else `whole`.
        `live`: of a text in pieces, `word` speaks each as it comes, `sentence` when a sentence is
        written; None is what the checkpoint wants: `sentence` for the embedded voice.
        `timings`: give start and end of every word, as `Audio.words` (docs/timings.md).
        `progress`: show a bar on stderr.
        `verify`: transcribe the speech and compare it with the text (docs/completeness.md).

        `seed`, `temperature` and the other fields of `SamplingParams` replace the checkpoint's
        defaults. `max_frames` of yours counts over the whole text, pauses apart, and what it cuts
        off ends as `length`; the checkpoint's own bounds each utterance.

        A list or tuple is a batch: a list of `Audio` in its order, made together, each what it
        would be alone with these options and this `seed`. If some fail the others are still made;
        then a BatchError has both. An iterator is one text, still being written.
        """
        check_names(options, SpeakOptions)
        if isinstance(text, str):
            return run_steps(lambda wake: self._read_one(text, wake, **options))
        if isinstance(text, (list, tuple)):
            return run_steps(lambda wake: self._read_all(text, wake, **options))
        return self._speak_live(text, **options)

    @typing.overload
    async def aspeak(
        self, text: str | Iterator[str] | AsyncIterator[str], **options: Unpack[SpeakOptions]
    ) -> Audio: ...

    @typing.overload
    async def aspeak(
        self, text: list[str] | tuple[str, ...], **options: Unpack[SpeakOptions]
    ) -> list[Audio]: ...

    async def aspeak(
        self,
        text: str | Iterator[str] | AsyncIterator[str] | list[str] | tuple[str, ...],
        **options: Unpack[SpeakOptions],
    ) -> Audio | list[Audio]:
        """`speak` for asyncio; `text` may be an async iterator too.

        The event loop is not blocked, and no thread is needed but the engine's. Cancelling the
        task stops the speech and frees its slots.
        """
        check_names(options, SpeakOptions)
        if not isinstance(text, (str, list, tuple)):
            return await self._aspeak_live(as_pieces(text), **options)
        is_slow = self._is_slow(text, options)
        if isinstance(text, str):
            return await run_steps_async(
                lambda wake: self._read_one(text, wake, **options), self._bells, is_slow=is_slow
            )
        return await run_steps_async(
            lambda wake: self._read_all(text, wake, **options), self._bells, is_slow=is_slow
        )

    def dialogue(
        self,
        lines: DialogueScript | Iterable[tuple[VoiceSource, str]],
        *,
        voices: Mapping[str, VoiceSource] | None = None,
        gap_s: float | None = None,
        overlap_s: float = 0.0,
        progress: bool = False,
        **options: Unpack[SpeechOptions],
    ) -> Dialogue:
        """Say lines of (voice, text) as a conversation; all are made together, as a batch.

        `lines` may be `DialogueScript.load("talk.txt")`. `voices` says whose voice a name stands
        for; names that are none of them and no voice are one UnknownVoiceError, before anything
        is spoken.
        `gap_s`: silence between lines; None is a natural one, by how the line before ends.
        `overlap_s`: another speaker begins so long before the last one ends; `[overlap 0.3s]` at
        the start of a line says so for that line.
        Other options are those of `speak`. With a `seed`, line n from 0 is what `speak` gives with
        `seed + 10_000 * n`.

        The result is an `Audio` with `lines`, `tracks` by speaker and `save_tracks`.
        """
        self._check_dialogue()
        check_names(options, SpeechOptions)
        report = show_batch if progress else None
        given, seed = set(options), _take_seed(options)
        options.setdefault("trim", True)
        options.update({"lexicon": read_lexicon(options.get("lexicon"))})

        def open_line(text: str, wake: Wake, **own: Any) -> Stream:
            return self._open(text, wake=wake, chunk_frames=self._chunks, **own, **options)

        return make_dialogue(
            DialogueScript.of(lines, voices or {}),
            Timing(gap_s=gap_s, overlap_s=overlap_s),
            seed,
            presets=self.speakers,
            get_voice=self.voice,
            speak=lambda texts, name: speak_batch(
                [partial(open_line, check_item(text), **own) for text, own in texts],
                given,
                self.engine.num_together,
                report,
                name,
            ),
        )

    def stream_dialogue(
        self,
        lines: DialogueScript | Iterable[tuple[VoiceSource, str]],
        *,
        voices: Mapping[str, VoiceSource] | None = None,
        gap_s: float | None = None,
        overlap_s: float = 0.0,
        **options: Unpack[StreamOptions],
    ) -> DialogueStream:
        """`dialogue` while it is made: an iterator of `DialogueChunk`, the first from the first
        line's first sound on. The same samples, but for lines that are too loud together: those
        are clipped. Voices and texts are checked before anything is spoken.
        """
        self._check_dialogue()
        script = DialogueScript.of(lines, voices or {})
        timing = Timing(gap_s=gap_s, overlap_s=overlap_s)
        seed = _take_seed(options)
        options.setdefault("trim", True)
        options.update({"lexicon": read_lexicon(options.get("lexicon"))})

        def open_line(text: str, **own: Any) -> Stream:
            return self._open(text, **own, **options)

        return open_dialogue(
            script,
            timing,
            seed,
            presets=self.speakers,
            get_voice=self.voice,
            open_stream=open_line,
            sample_rate=self.sample_rate,
            looks_ahead=self.engine.num_together > 1,
        )

    def _check_dialogue(self) -> None:
        if self.model_type == "voice_design":
            raise UnsupportedRequestError(
                "a voice_design checkpoint has no voice that two lines could share; load "
                f"{SERVED_BY['custom_voice']}, or clone voices with {SERVED_BY['base']}"
            )

    def stream(self, text: str | Iterable[str], **options: Unpack[StreamOptions]) -> Stream:
        """Say `text` and hand out audio while it is made; the same samples as `speak` without trim.

        `text` may be an iterator of pieces, such as an LLM's tokens: speech begins with the first
        word and waits when the text runs dry. A list is refused: `speak` makes a batch of it, and
        `iter(pieces)` is one text in pieces.

        Options are those of `speak`, but for `progress`; `trim` is off. `chunk_frames` is how many
        frames of 80 ms each chunk has (before `speed`): one number, or several, the last of which
        repeats.
        """
        check_names(options, StreamOptions)
        return self._open(text, **options)

    def astream(
        self,
        text: str | Iterable[str] | AsyncIterable[str],
        **options: Unpack[StreamOptions],
    ) -> AsyncStream:
        """`stream` for asyncio; `text` may be an async iterator too.

        The engine's thread does the work. Errors of the request are raised when the first chunk is
        asked for, or before it by `stream = await tts.astream(...)`, which also queues the request.
        """
        source = text if isinstance(text, str) else as_pieces(text)
        is_slow = self._is_slow(text if isinstance(text, str) else "", options)
        return AsyncStream(
            lambda wake: self._open(source, wake=wake, **options),
            None if isinstance(source, str) else source,
            self._bells,
            is_slow=is_slow,
        )

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
        self._writer.require("base", "clone a voice")
        model, codec, engine = self._open_parts()
        recording = read_audio(audio)
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


def _take_seed(options: SpeechOptions) -> object:
    """Remove what each line of a dialogue has for itself, and return the seed of the first."""
    if options.pop("voice", None) is not None:
        raise RequestError("each line of a dialogue has its own voice; leave voice out")
    return options.pop("seed", None)


OPTION_DEFAULTS = {
    parameter.name: parameter.default
    for parameter in inspect.signature(TTS._open).parameters.values()
}
WHOLE_DEFAULTS = {**OPTION_DEFAULTS, "trim": True, "progress": False, "verify": False}
show_options(TTS.speak, SpeakOptions, WHOLE_DEFAULTS)
show_options(TTS.aspeak, SpeakOptions, WHOLE_DEFAULTS)
show_options(TTS.stream, StreamOptions, OPTION_DEFAULTS)
show_options(TTS.astream, StreamOptions, OPTION_DEFAULTS)
show_options(TTS.dialogue, SpeechOptions, WHOLE_DEFAULTS, leave_out={"voice"})
show_options(TTS.stream_dialogue, StreamOptions, WHOLE_DEFAULTS, leave_out={"voice"})
