"""Speaks a request for every protocol: HTTP bodies, events, WebSockets and Wyoming.

`speak` admits a request, chooses its model, voice and encoder, reads the stream and writes encoded
audio to a `SpeechSink`. Sessions whose text arrives later call `prepare` once and
`PreparedSpeech.speak` for every utterance. Admission, retries and errors are handled here only.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.websockets import WebSocketDisconnect

from vivace.audio.clip import AudioChunk
from vivace.audio.file_mark import FileMark
from vivace.errors import AudioError, EngineError, RequestError, RunawayError
from vivace.live_text import LiveText
from vivace.options import StreamOptions
from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError, with_field_names
from vivace.serve.models.served_model import ServedModel
from vivace.serve.speaking.request import SpeechRequest
from vivace.serve.streams.admission import AdmittedRequest
from vivace.serve.streams.encoders import SpeechEncoder
from vivace.speech import Usage, Word
from vivace.voices.voice import Voice

NUM_ATTEMPTS = 2  # of a whole speech that does not end by itself

OpenStream = Callable[[], AbstractAsyncContextManager[AsyncIterator[AudioChunk]]]
Words = tuple[Word, ...] | None
"""Words that end in a piece of audio. None: the checkpoint has no timings."""


@dataclass(slots=True)
class SpeechReport:
    """Facts about one speech, complete after its last chunk."""

    model: ServedModel
    encoder: SpeechEncoder
    ignored: tuple[str, ...]  # request fields that the model cannot follow
    num_frames: int = 0
    audio_s: float = 0.0
    reason: str | None = None
    words: Words = ()
    usage: Usage | None = None
    skipped: tuple[str, ...] = ()  # parts of the text that the checkpoint does not read

    def add(self, chunk: AudioChunk) -> None:
        self.num_frames += len(chunk.codes)
        self.audio_s += len(chunk.samples) / chunk.sample_rate
        has_timings = self.words is not None and chunk.words is not None
        self.words = (*(self.words or ()), *(chunk.words or ())) if has_timings else None
        self.reason = chunk.finish_reason or self.reason
        self.usage = chunk.usage or self.usage
        self.skipped += chunk.skipped

    @property
    def usage_fields(self) -> dict[str, Any]:
        """JSON fields of the last message: first sound, unspoken words, skipped letters.

        A field is absent if its value is not known; `skipped` also if nothing was skipped.
        """
        fields: dict[str, Any] = {}
        if self.usage is not None and self.usage.audible_ms is not None:
            fields["audible_ms"] = round(self.usage.audible_ms, 1)
        if self.usage is not None and self.usage.completeness is not None:
            fields["completeness"] = round(self.usage.completeness, 4)
            fields["missing_words"] = list(self.usage.missing_words)
            fields["retries"] = self.usage.retries
        return fields | self.skipped_field

    @property
    def provenance(self) -> str | None:
        """Tool, model, kind of voice and marks of the speech; None if it is not marked."""
        mark = self.encoder.mark
        return None if mark is None else mark.provenance.header

    @property
    def provenance_field(self) -> dict[str, str]:
        """The JSON field of messages."""
        return {} if self.provenance is None else {"provenance": self.provenance}

    @property
    def skipped_field(self) -> dict[str, list[str]]:
        return {"skipped": list(self.skipped)} if self.skipped else {}


class SpeechSink(ABC):
    """Receives one speech: `start`, `write` for every chunk but the last, then `finish`.

    After an error, `fail` is the last call. A sink raises `WebSocketDisconnect` or
    `ConnectionError` when its client has disconnected. These end the speech; `fail` is not called.
    """

    __slots__ = ()

    @property
    def is_whole(self) -> bool:
        """Whether `finish` gets the whole speech as one file; `write` is not called then."""
        return False

    async def start(self, report: SpeechReport) -> None:  # noqa: B027  most sinks need no start
        """The first audio is ready."""

    @abstractmethod
    async def write(self, audio: bytes, words: Words) -> None:
        """Both may be empty: encoders hold samples back."""

    @abstractmethod
    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> None:
        """The rest of the audio and of the words."""

    @abstractmethod
    async def fail(self, error: Exception) -> None: ...


async def speak(context: ServeContext, request: SpeechRequest, sink: SpeechSink) -> None:
    """Speak a request whose text is known. It is admitted before its voice and encoder are made."""
    async with _errors_to(sink, request):
        model = await _get_model(context, request)
        with context.admission.admit(model) as place:
            encoder = _open_encoder(context, model, request)
            prepared = await _prepare(context, model, request)
            await prepared.send(model, encoder, request.input, sink, place)


async def prepare(context: ServeContext, request: SpeechRequest) -> PreparedSpeech:
    """Choose model and voice, and clone a recording, for a text that may come later."""
    try:
        model = await _get_model(context, request)
        _open_encoder(context, model, request)  # refuses an unsupported format
        return await _prepare(context, model, request)
    except RequestError as error:
        raise with_field_names(error, request.names) from error


@dataclass(frozen=True, slots=True)
class PreparedSpeech:
    """A checked request without its text."""

    context: ServeContext
    request: SpeechRequest
    model: str
    options: StreamOptions
    ignored: tuple[str, ...]  # request fields that the model cannot follow

    async def speak(self, text: LiveText | str, sink: SpeechSink) -> None:
        """Speak one text. A live text that ends empty calls no method of the sink."""
        async with _errors_to(sink, self.request):
            if await _has_words(text):
                model = await self.context.models.get(self.model)  # it may have been unloaded
                with self.context.admission.admit(model) as place:
                    encoder = _open_encoder(self.context, model, self.request)
                    await self.send(model, encoder, text, sink, place)

    async def send(
        self,
        model: ServedModel,
        encoder: SpeechEncoder,
        text: LiveText | str,
        sink: SpeechSink,
        place: AdmittedRequest,
    ) -> None:
        """Speak a text that was admitted."""
        encoder.set_mark(self._file_mark(model, is_whole=sink.is_whole))
        new_report = partial(SpeechReport, model, encoder, self.ignored)
        open_stream = partial(self.context.streams.open, model, text, place, self.options)
        if sink.is_whole:
            num_attempts = NUM_ATTEMPTS if isinstance(text, str) else 1
            samples, report = await self._collect(open_stream, new_report, num_attempts)
            audio, words = await encoder.encode_whole(samples), report.words
            await sink.start(report)
        else:
            report = new_report()
            audio, words = await self._send_chunks(open_stream, report, sink)
            audio += await encoder.finish()
        await sink.finish(audio, words, report)

    def _file_mark(self, model: ServedModel, *, is_whole: bool) -> FileMark | None:
        """The statement of origin in the audio. Only complete files can be signed."""
        voice = self.options.voice
        assert voice is None or isinstance(voice, str | Voice)
        mark = model.tts.loaded.file_mark(self.context.marking, voice)
        if mark is None or (is_whole and mark.can_sign(self.request.response_format)):
            return mark
        return mark.unsigned()

    async def _send_chunks(
        self, open_stream: OpenStream, report: SpeechReport, sink: SpeechSink
    ) -> tuple[bytes, Words]:
        """Write all chunks but the last, whose audio and words are returned."""
        audio, words, has_started = b"", report.words, False
        async with open_stream() as chunks:
            async for chunk in chunks:
                report.add(chunk)
                audio, words = await report.encoder.encode(chunk.samples), chunk.words
                if len(chunk.samples) and not has_started:
                    has_started = True
                    await sink.start(report)
                if not chunk.is_last:
                    await sink.write(audio, words)
            self._check_end(report)
        return audio, words

    async def _collect(
        self, open_stream: OpenStream, new_report: Callable[[], SpeechReport], num_attempts: int
    ) -> tuple[list[NDArray[np.float32]], SpeechReport]:
        """All samples, after another attempt if the speech does not end by itself."""
        while True:
            num_attempts -= 1
            samples, report = [], new_report()
            async with open_stream() as chunks:
                async for chunk in chunks:
                    report.add(chunk)
                    samples.append(chunk.samples)
                if self._is_accepted(report) or not num_attempts:
                    self._check_end(report)
                    return samples, report

    def _is_accepted(self, report: SpeechReport) -> bool:
        """Whether the speech may be sent. With a seed or a length it is sent however it ends."""
        return report.reason == "stop" or self.request.is_pinned

    def _check_end(self, report: SpeechReport) -> None:
        if not self._is_accepted(report):
            raise RunawayError(
                f"the speech did not end by itself ({report.reason}); change the text a little, or "
                "give a seed to get the speech as it is"
            )
        if not report.audio_s:
            raise EngineError("the speech has no audio")


@asynccontextmanager
async def _errors_to(sink: SpeechSink, request: SpeechRequest) -> AsyncIterator[None]:
    try:
        yield
    except (WebSocketDisconnect, ConnectionError):
        raise
    except Exception as error:
        await sink.fail(with_field_names(error, request.names))


async def _has_words(text: LiveText | str) -> bool:
    """Wait for the first word. False for an empty live text. Raises RefusedError for blanks."""
    if isinstance(text, str):
        has_words = bool(text.strip())
    else:
        has_words = await text.has_words()
        if not text.num_chars:
            return False
    if not has_words:
        raise RefusedError("the text is blank", code="empty_input", param="input")
    return True


# -- model, voice and encoder ----------------------------------------------------------------


async def _get_model(context: ServeContext, request: SpeechRequest) -> ServedModel:
    return await context.models.get(
        request.model, voice=request.voice_name, model_type=request.model_type
    )


async def _prepare(
    context: ServeContext, model: ServedModel, request: SpeechRequest
) -> PreparedSpeech:
    recording = request.recording(context.settings)
    request.check_task(model.card)
    instructions, ignored = request.instructions, tuple[str, ...]()
    if instructions and not model.card.follows_instruct:
        instructions, ignored = None, ("instructions",)  # as OpenAI's tts-1; many clients send some
    with context.models.in_use(model):
        voice = await _choose_voice(context, model, request, recording, instructions)
    options = replace(request.options(), **voice)
    return PreparedSpeech(context, request, model.card.name, options, ignored)


def _open_encoder(
    context: ServeContext, model: ServedModel, request: SpeechRequest
) -> SpeechEncoder:
    try:
        return SpeechEncoder(
            context.encoding_threads,
            request.response_format,
            model.card.sample_rate,
            request.sample_rate,
            request.bit_rate,
            context.marking,
        )
    except AudioError as error:
        param = "response_format" if request.sample_rate is None else "sample_rate"
        raise RefusedError(str(error), param=param, code="unsupported_format") from error


async def _choose_voice(
    context: ServeContext,
    model: ServedModel,
    request: SpeechRequest,
    recording: bytes | None,
    instructions: str | None,
) -> dict[str, Any]:
    """The options `voice` and `instruct`."""
    if recording is not None:
        transcript = None if request.x_vector_only_mode else request.ref_text or None
        if transcript is not None:
            model.card.check_context("ref_text")
        try:
            voice = await context.clones.get(model, recording, transcript)
        except AudioError as error:
            raise RefusedError(str(error), param="ref_audio", code="invalid_audio") from error
        return {"voice": voice, "instruct": instructions}
    if request.speaker_embedding:
        voice = _read_embedding(request.speaker_embedding, model.card.width)
        return {"voice": voice, "instruct": instructions}
    choose = partial(model.voices.choose, request.voice_name)
    is_slow = model.voices.reads_files(request.voice_name)
    chosen = await asyncio.to_thread(choose) if is_slow else choose()
    return chosen.options(instructions)


def _read_embedding(values: Sequence[float], width: int) -> Voice:
    if len(values) != width:
        raise RefusedError(
            f"speaker_embedding has {len(values):,} numbers and the model needs {width:,}",
            param="speaker_embedding",
        )
    try:
        return Voice(name="embedding", speaker=np.asarray(values, np.float64))
    except RequestError as error:
        raise RefusedError(f"speaker_embedding: {error}", param="speaker_embedding") from error
