"""One Wyoming connection: reads events and sends speech while its text arrives.

client                                      server
describe                                    info
synthesize                                  audio-start, audio-chunk *, audio-stop
synthesize-start, synthesize-chunk *        audio-start, audio-chunk *
synthesize (the whole text again)           nothing: the event is for servers without streaming
synthesize-stop                             audio-stop, synthesize-stopped

After a failure the server sends an `error` event and closes the connection, because older clients
ignore errors. Incomplete audio is never followed by `audio-stop`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event
from wyoming.ping import Pong
from wyoming.tts import SynthesizeStopped

from vivace.live_text import LiveText
from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure, RefusedError, describe
from vivace.serve.http.protocol import CLOSE_TIMEOUT_S, num_unsent
from vivace.serve.input.validation import UNKNOWN_TYPE, read_message
from vivace.serve.speaking.request import LATER, SpeechRequest
from vivace.serve.speaking.session import Session
from vivace.serve.speaking.speak import SpeechReport, SpeechSink, Words, prepare, speak
from vivace.serve.speaking.utterance_queue import UtteranceQueue
from vivace.serve.wyoming.events import (
    CLIENT_EVENTS,
    ClientEvent,
    Describe,
    Ping,
    SpeechEvent,
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    describe_server,
)
from vivace.serve.wyoming.frames import encode_event, read_event

log = logging.getLogger(__name__)

WIDTH = 2  # bytes per sample


@dataclass(slots=True, eq=False)
class WyomingUtterance(SpeechSink):
    """One text from its first event to its last audio: the sink of its speech."""

    session: WyomingSession
    fields: dict[str, Any]  # of a speech request
    text: LiveText
    is_streamed: bool  # the text; audio always is
    rate: int = 0
    num_bytes: int = 0

    @property
    def milliseconds(self) -> int:
        """The duration of the audio that was sent."""
        return self.num_bytes * 1_000 // (WIDTH * self.rate) if self.rate else 0

    async def start(self, report: SpeechReport) -> None:
        self.rate = report.encoder.sample_rate
        start = AudioStart(self.rate, WIDTH, 1, 0).event()
        start.data |= report.provenance_field
        await self.session.send(start)

    async def write(self, audio: bytes, words: Words) -> None:
        if audio:
            start = self.milliseconds
            self.num_bytes += len(audio)
            await self.session.send(AudioChunk(self.rate, WIDTH, 1, audio, start).event())

    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> None:
        await self.write(audio, words)
        stop = AudioStop(self.milliseconds).event()
        stop.data |= report.skipped_field
        await self.session.send(stop)

    async def fail(self, error: Exception) -> None:
        raise error  # it ends the session


class WyomingSession(Session[Event]):
    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ServeContext,
        check_rate: Callable[[], None],
    ) -> None:
        super().__init__(context)
        self._reader, self._writer, self._check_rate = reader, writer, check_rate
        self._settings = context.settings
        self._utterances = UtteranceQueue[WyomingUtterance](self.start, self._speak)
        self._sending = asyncio.Lock()
        self._failure: Failure | None = None
        self.idle_s = context.settings.body_timeout_s  # until the first event

    def is_busy(self) -> bool:
        return self._utterances.is_busy

    async def run(self) -> None:
        """Serve the connection until either side ends it."""
        try:
            await self.read()
        except OSError:
            pass  # the client disconnected
        except Exception as error:
            self.end(describe(error))
        finally:
            await self._close()

    def end(self, failure: Failure | None = None) -> None:
        """End the connection, after an `error` event if a failure is given."""
        if not self._ended.done():
            self._failure = failure
            self._stop_reading()

    async def end_idle(self, failure: Failure) -> None:
        self.end(failure)

    async def end_drained(self) -> None:
        self.end()

    # -- the connection ----------------------------------------------------------------------

    async def send(self, event: Event) -> None:
        """Blocks while the client reads slowly; aborts if it reads nothing."""
        async with self._sending:
            self._writer.write(encode_event(event))
            await self._flush()
        self._last_active = time.monotonic()

    async def _flush(self) -> None:
        transport = self._writer.transport
        while True:
            num_left = num_unsent(transport)
            try:
                return await asyncio.wait_for(self._writer.drain(), self._settings.send_timeout_s)
            except asyncio.TimeoutError:
                if num_unsent(transport) >= num_left:
                    transport.abort()
                    raise ConnectionAbortedError("the client does not read") from None
            except OSError as error:
                raise ConnectionAbortedError("the client disconnected") from error

    async def _close(self) -> None:
        """Send the error event, then discard input for a moment: closing a socket with unread input
        resets it, and the client would lose the event."""
        with suppress(OSError, asyncio.TimeoutError):
            if self._failure is not None and not self._writer.is_closing():
                error = Error(self._failure.message, self._failure.code)
                self._writer.write(encode_event(error.event()))
                self._writer.write_eof()
                await asyncio.wait_for(self._discard(), CLOSE_TIMEOUT_S)
        self._writer.close()
        with suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), CLOSE_TIMEOUT_S)
        self._writer.transport.abort()

    async def _discard(self) -> None:
        while await self._reader.read(65_536):
            await asyncio.sleep(0)

    # -- events ------------------------------------------------------------------------------

    async def receive(self) -> Event | None:
        first = await self._reader.read(1)
        if not first:
            return None
        self._last_active = time.monotonic()
        limit_s, most = self._settings.body_timeout_s, self._settings.max_message_bytes
        try:
            return await asyncio.wait_for(read_event(self._reader, first, most), limit_s)
        except asyncio.TimeoutError:
            raise RefusedError(
                f"an event was incomplete after {limit_s:g} s", status=408, code="timeout"
            ) from None

    async def take(self, message: Event) -> None:
        """Handle an event. Unknown types are ignored, as the protocol requires."""
        self.idle_s = self._settings.socket_idle_s
        try:
            read: ClientEvent = read_message(CLIENT_EVENTS, {**message.data, "type": message.type})
        except RefusedError as error:
            if error.code == UNKNOWN_TYPE:
                return
            raise
        match read:
            case Describe():
                await self.send(await asyncio.to_thread(describe_server, self.context))
            case Ping(text=text):
                await self.send(Pong(text).event())
            case Synthesize():
                self._add_whole(read)
            case SynthesizeStart():
                if self._open is not None:
                    raise RefusedError(
                        "synthesize-start inside a stream; send synthesize-stop first"
                    )
                self._begin(read, is_streamed=True)
            case SynthesizeChunk(text=text):
                self._need_open(read.type).text.add(text)
            case SynthesizeStop():
                self._need_open(read.type).text.end()

    def _add_whole(self, event: Synthesize) -> None:
        """Inside a stream the event repeats the whole text; it is spoken only if no chunk came."""
        if self._open is None:
            text = self._begin(event, is_streamed=False).text
            text.add(event.text)
            text.end()
        elif self._open.text.is_blank:
            self._open.text.add(event.text)

    @property
    def _open(self) -> WyomingUtterance | None:
        """The stream whose text is incomplete."""
        return next((one for one in self._utterances if not one.text.is_ended), None)

    def _need_open(self, kind: str) -> WyomingUtterance:
        if self._open is None:
            raise RefusedError(f"{kind} without synthesize-start")
        return self._open

    def _begin(self, event: SpeechEvent, *, is_streamed: bool) -> WyomingUtterance:
        self._check_rate()
        text = LiveText(self._settings.max_text_chars)
        utterance = WyomingUtterance(self, event.fields, text, is_streamed)
        self._utterances.add(utterance)
        return utterance

    # -- speech ------------------------------------------------------------------------------

    def _remove_task(self, task: asyncio.Task[None]) -> None:
        super()._remove_task(task)
        if self.context.streams.draining.is_set() and not (self._tasks or task.cancelled()):
            self.end()

    async def _speak(self, utterance: WyomingUtterance) -> None:
        try:
            await self._send_speech(utterance)
        except ConnectionError:
            self.end()
        except Exception as error:
            self.end(describe(error))

    async def _send_speech(self, utterance: WyomingUtterance) -> None:
        text, began = utterance.text, time.perf_counter()
        if utterance.is_streamed:
            speech = await prepare(self.context, self._request(utterance, LATER))
            await speech.speak(text, utterance)
            await text.wait_end()
            await self.send(SynthesizeStopped().event())
        else:
            await speak(self.context, self._request(utterance, text.received), utterance)
        log.info(
            "wyoming %s %d characters, %.2f s of audio in %.2f s",
            "stream" if utterance.is_streamed else "synthesize",
            text.num_chars,
            utterance.milliseconds / 1_000,
            time.perf_counter() - began,
        )

    def _request(self, utterance: WyomingUtterance, text: str) -> SpeechRequest:
        return SpeechRequest.read({**utterance.fields, "input": text}, self._settings)
