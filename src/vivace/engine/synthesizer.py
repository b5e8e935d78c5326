"""Speaks texts with options: looks up voices and lexicons, opens streams, collects audio."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, overload

from vivace.audio.clip import Audio
from vivace.audio.file_mark import FileMark
from vivace.audio.files import check_path, read_audio
from vivace.device.threads import use_threads
from vivace.engine.checkpoints.loaded import LoadedCheckpoint
from vivace.engine.streams.async_stream import AsyncStream, LoopWakers, run_steps_async
from vivace.engine.streams.batch import (
    Steps,
    check_item,
    read_batch,
    read_text,
    run_steps,
    speak_batch,
)
from vivace.engine.streams.chunks import TOGETHER, WHOLE
from vivace.engine.streams.progress import show_batch, show_progress
from vivace.engine.streams.stream import Stream, Wake
from vivace.errors import RequestError, UnknownVoiceError, UnsupportedRequestError
from vivace.mark.levels import MarkLevels
from vivace.mark.marking import NO_MARKING, Marking, MarkSource
from vivace.options import ChunkFrames, Options, SpeakOptions, SpeechOptions, StreamOptions
from vivace.recogniser import Verifier, check_recogniser
from vivace.script.checks import SERVED_BY
from vivace.script.request import Request, as_pieces
from vivace.text.lexicon import Lexicon
from vivace.voices.cache import EnrolmentCache
from vivace.voices.find import UnenrolledRecording, VoiceSource, find_voice
from vivace.voices.library import VoiceLibrary
from vivace.voices.voice import Voice

log = logging.getLogger(__name__)

LONG_TEXT = 2_000  # characters; longer texts are not prepared in the thread of an event loop


class Synthesizer:
    """Turns a text and its options into a `Stream`, an `AsyncStream` or `Audio`."""

    def __init__(
        self,
        loaded: LoadedCheckpoint,
        lexicon: Lexicon | None,
        marking: Marking = NO_MARKING,
        adapted: Mapping[str, Synthesizer] | None = None,  # by adapter
    ) -> None:
        self._loaded = loaded
        self._adapters = AdapterVoices(loaded, adapted or {})
        self._marking = marking  # of every speech whose options have no `mark`
        self._markings: dict[MarkLevels, Marking] = {}  # loaded for options
        self._lexicon = lexicon  # applies to every text, after the request's own lexicon
        self._wakers = LoopWakers()
        self._verifier: Verifier | None = None  # created for the first `verify=True`

    # -- voices and requests -------------------------------------------------------------------

    @property
    def presets(self) -> list[str]:
        own = self._loaded.checkpoint.config.talker_config.spk_id
        return sorted([*own, *self._adapters.names])

    def find_voice(self, voice: VoiceSource, transcript: str | None = None) -> str | Voice:
        """The Voice, or the name of a preset. A recording is enrolled with its transcript."""
        if isinstance(voice, str) and transcript is None and self._adapters.find(voice):
            return voice
        library = VoiceLibrary()
        found = find_voice(voice, self.presets, library)
        if isinstance(found, UnenrolledRecording):
            return self._enroll_once(found, transcript)
        if transcript is not None:
            raise RequestError("transcript needs a recording, such as voice='me.wav'")
        if isinstance(found, str):
            self._check_preset(found, library)
        return found

    def _enroll_once(self, found: UnenrolledRecording, transcript: str | None) -> Voice:
        """The voice of a recording, from the cache if it was enrolled before."""
        from vivace.voices.enroll import enroll_once  # imports PyTorch

        check_path(str(found.audio))
        self._loaded.check_clone(transcript)
        runtime = self._loaded.runtime
        recording = read_audio(found.audio, sandbox=self._loaded.sandbox)
        cache = EnrolmentCache()
        with use_threads(runtime.engine.threads):
            return enroll_once(
                runtime.model,
                runtime.codec,
                recording,
                name="cloned",
                transcript=transcript,
                cache=cache,
            )

    def _check_preset(self, name: str, library: VoiceLibrary) -> None:
        """Raise an error that lists voices of the library, if the checkpoint lacks the preset.

        Without voices in the library, `RequestChecker` raises it.
        """
        config = self._loaded.checkpoint.config
        names = library.names() if config.can_clone else []
        known = [*self.presets, *names]
        is_mixed = bool(self._adapters.names) or (config.has_presets and config.can_clone)
        if is_mixed and name.lower() not in map(str.lower, known):
            raise UnknownVoiceError(name, known)
        if names:
            served_by = f"{SERVED_BY['custom_voice']}, or take one of yours: {', '.join(names)}"
            what = f"speak with the preset voice {name[:80]!r}"
            self._loaded.writer.checker.require_presets(what, served_by)

    def _request(self, text: object, options: SpeechOptions) -> Request:
        writer, voice = self._loaded.writer, options.voice
        text = text if isinstance(text, str) else as_pieces(text)
        found = writer.default_voice if voice is None else self.find_voice(voice)
        writer.checker.check_follows(options.instruct)
        return Request(
            text=text,
            voice=found,
            options=options,
            lexicons=self._lexicons(options),
            breaks=True,
            marking=self.find_marking(options.mark),
        )

    def find_marking(self, mark: MarkSource | None) -> Marking:
        """The marks for a value of the option `mark`. They are loaded once."""
        if mark is None or isinstance(mark, Marking):
            return self._marking if mark is None else mark
        levels = MarkLevels.parse(mark)
        if levels == self._marking.levels:
            return self._marking
        if levels not in self._markings:
            self._markings[levels] = Marking.load(levels)
        return self._markings[levels]

    def file_mark(self, options: SpeechOptions) -> FileMark | None:
        """The statement of origin in a file with this speech. The voice must be looked up."""
        assert options.voice is None or isinstance(options.voice, str | Voice)
        return self._loaded.file_mark(self.find_marking(options.mark), options.voice)

    def _lexicons(self, options: SpeechOptions) -> tuple[Lexicon, ...]:
        """The request's own lexicon, then the one given to `load`."""
        own = None if options.lexicon is None else Lexicon.of(options.lexicon)
        if own is not None:
            own.check_languages(self._loaded.checkpoint.config.talker_config.codec_language_id)
        return tuple(one for one in (own, self._lexicon) if one is not None)

    def look_up_once(self, options: Options) -> Options:
        """Options for many texts: a recording is enrolled and a lexicon is read only once."""
        voice, lexicon = options.voice, options.lexicon
        return dataclasses.replace(
            options,
            voice=None if voice is None else self.find_voice(voice),
            lexicon=None if lexicon is None else Lexicon.of(lexicon),
            mark=self.find_marking(options.mark),
        )

    def check_shared_voice(self) -> None:
        """Raise UnsupportedRequestError if two utterances cannot have the same voice."""
        if self._loaded.checkpoint.config.tts_model_type == "voice_design":
            raise UnsupportedRequestError(
                "a voice_design checkpoint has no voice that two lines could share; load "
                f"{SERVED_BY['custom_voice']}, or clone voices with {SERVED_BY['base']}"
            )

    # -- streams -------------------------------------------------------------------------------

    @property
    def sample_rate(self) -> int:
        return self._loaded.checkpoint.codec_config.output_sample_rate

    @property
    def num_together(self) -> int:
        return self._loaded.client.num_together

    @property
    def batch_chunks(self) -> ChunkFrames:
        """Chunk size for a batch: one chunk, or turns with the other texts."""
        return TOGETHER if self.num_together > 1 else WHOLE

    def open(
        self,
        text: object,
        options: SpeechOptions,
        *,
        chunk_frames: ChunkFrames,
        wake: Wake | None = None,
    ) -> Stream:
        if isinstance(options.voice, str) and (found := self._adapters.find(options.voice)):
            own = dataclasses.replace(options, voice=found.speaker)
            adapted = found.synthesizer
            return adapted.open(text, own, chunk_frames=chunk_frames, wake=wake)
        request = self._request(text, options)
        return self._loaded.open(request, chunk_frames=chunk_frames, wake=wake)

    def stream(self, text: object, options: StreamOptions) -> Stream:
        return self.open(text, options, chunk_frames=options.chunk_frames)

    def stream_async(self, text: object, options: StreamOptions) -> AsyncStream:
        return self._open_async(text, options, options.chunk_frames)

    def _open_async(
        self, text: object, options: SpeechOptions, chunk_frames: ChunkFrames
    ) -> AsyncStream:
        source = text if isinstance(text, str) else as_pieces(text)
        return AsyncStream(
            lambda wake: self.open(source, options, chunk_frames=chunk_frames, wake=wake),
            None if isinstance(source, str) else source,
            self._wakers,
            is_slow=self._is_slow(text if isinstance(text, str) else "", options),
        )

    def _is_slow(self, text: str | Sequence[str], options: SpeechOptions) -> bool:
        """Whether opening the text would block an event loop: files to read, or a long text."""
        voice = options.voice
        is_at_hand = voice is None or isinstance(voice, Voice) or voice in self.presets
        is_at_hand &= isinstance(options.lexicon, Lexicon | None)
        texts = [text] if isinstance(text, str) else text
        size = sum(len(one) for one in texts if isinstance(one, str))
        return not is_at_hand or size > LONG_TEXT

    # -- whole audio ---------------------------------------------------------------------------

    @overload
    def speak(self, text: str, options: SpeakOptions) -> Audio: ...

    @overload
    def speak(self, text: list[str], options: SpeakOptions) -> list[Audio]: ...

    @overload
    def speak(self, text: object, options: SpeakOptions) -> Audio | list[Audio]: ...

    def speak(self, text: object, options: SpeakOptions) -> Audio | list[Audio]:
        if isinstance(text, str):
            return run_steps(lambda wake: self._read_one(text, options, wake))
        if isinstance(text, (list, tuple)):
            return run_steps(lambda wake: self._read_all(text, options, wake))
        # A live text can be read only once, so there is no second attempt after a runaway.
        stream = self.open(text, options, chunk_frames=WHOLE)
        return _log_usage(stream.collect(show_progress if options.progress else None))

    async def speak_async(self, text: object, options: SpeakOptions) -> Audio | list[Audio]:
        if not isinstance(text, (str, list, tuple)):
            stream = self._open_async(text, options, WHOLE)
            return _log_usage(await stream.collect(show_progress if options.progress else None))
        is_slow = self._is_slow(text, options)
        if isinstance(text, str):
            return await run_steps_async(
                lambda wake: self._read_one(text, options, wake), self._wakers, is_slow=is_slow
            )
        return await run_steps_async(
            lambda wake: self._read_all(text, options, wake), self._wakers, is_slow=is_slow
        )

    def speak_lines(
        self,
        lines: Sequence[tuple[str, SpeechOptions]],
        name: Callable[[int], str],
        *,
        given: Collection[str],
        progress: bool,
    ) -> list[Audio]:
        """A batch of texts with options of their own; `name` names a text in errors."""
        report = show_batch if progress else None
        openers = [self._opener(check_item(text), options) for text, options in lines]
        return speak_batch(openers, given, self.num_together, report, name)

    def _opener(self, text: str, options: SpeechOptions) -> Callable[[Wake], Stream]:
        return lambda wake: self.open(text, options, chunk_frames=self.batch_chunks, wake=wake)

    def _read_one(self, text: str, options: SpeakOptions, wake: Wake) -> Steps[Audio]:
        self._check_verify(options)
        open_stream = partial(self.open, text, options, chunk_frames=WHOLE, wake=wake)
        report = show_progress if options.progress else None
        audio = _log_usage((yield from read_text(open_stream, options.sampling, report)))
        return (yield from self._verify(text, audio, wake)) if options.verify else audio

    def _read_all(
        self, texts: Sequence[str], options: SpeakOptions, wake: Wake
    ) -> Steps[list[Audio]]:
        self._check_verify(options)
        options = self.look_up_once(options)
        openers = [self._opener(check_item(text), options) for text in texts]
        report = show_batch if options.progress else None
        audios = yield from read_batch(openers, options.sampling, self.num_together, wake, report)
        if not options.verify:
            return audios
        verified = []
        for text, audio in zip(texts, audios, strict=True):
            verified.append((yield from self._verify(text, audio, wake)))
        return verified

    def _check_verify(self, options: SpeakOptions) -> None:
        """Raise RequestError before anything runs if the speech cannot be verified."""
        if options.verify:
            check_recogniser()
            if not self._loaded.writer.texts.is_english(options.language):
                raise RequestError("verify reads English; give language='english'")

    def _verify(self, text: str, audio: Audio, wake: Wake) -> Steps[Audio]:
        self._verifier = self._verifier or Verifier()
        future = self._verifier.start(text, audio.samples, audio.sample_rate, wake)
        while not future.done():
            yield False
        return dataclasses.replace(audio, **future.result()._asdict())


class AdapterVoice(NamedTuple):
    synthesizer: Synthesizer
    speaker: str | None  # None: the adapter's default voice


class AdapterVoices:
    """Voices of adapters: `name`, or `name/speaker` for one of several speakers."""

    def __init__(self, loaded: LoadedCheckpoint, adapted: Mapping[str, Synthesizer]) -> None:
        self._adapted = {name.lower(): one for name, one in adapted.items()}
        speakers = {name: view.own_speakers for name, view in loaded.adapted.items()}
        self.names = [
            voice
            for name, own in speakers.items()
            for voice in (map(f"{name}/{{}}".format, own) if len(own) > 1 else [name])
        ]

    def find(self, voice: str) -> AdapterVoice | None:
        """None unless the voice begins with the name of an adapter. Raises UnknownVoiceError."""
        name, _, speaker = voice.lower().partition("/")
        found = self._adapted.get(name)
        if found is None:
            return None
        if speaker and speaker not in map(str.lower, found.presets):
            raise UnknownVoiceError(voice, [f"{name}/{one}" for one in found.presets])
        return AdapterVoice(found, speaker or None)


def _log_usage(audio: Audio) -> Audio:
    log.info("spoke %s, %s", audio.usage, audio.finish_reason)
    return audio
