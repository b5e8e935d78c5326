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
from collections.abc import Callable, Coroutine
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
from vivace.serve.protocol import num_unsent
from vivace.serve.request import LATER, SpeechRequest
from vivace.serve.speak import SpeechReport, SpeechSink, Words, prepare, speak
from vivace.serve.utterance_queue import UtteranceQueue
from vivace.serve.validation import UNKNOWN_TYPE, read_message
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

CLOSE_TIMEOUT_S = 2.0  # for the client to read the last event
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
        await self.session.send(AudioStart(self.rate, WIDTH, 1, 0).event())

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


class WyomingSession:
    """Reads events at all times, so that a disconnect is noticed at once; speaks in tasks."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ServeContext
    ) -> None:
        self._reader, self._writer, self._context = reader, writer, context
        self._settings = context.settings
        self._tasks: set[asyncio.Task[None]] = set()
        self._utterances = UtteranceQueue[WyomingUtterance](self._start, self._speak)
        self._sending = asyncio.Lock()
        self._ended: asyncio.Future[Failure | None] = asyncio.get_running_loop().create_future()
        self._is_draining = False
        self._has_sent = False  # whether the client has sent a whole event
        self._last_active = time.monotonic()

    async def run(self, check_rate: Callable[[], None]) -> None:
        """Serve the connection until either side ends it, then cancel its tasks."""
        reading = asyncio.ensure_future(self._read(check_rate))
        waited: set[asyncio.Future[Any]] = {reading, self._ended}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.end()
            # Repeated: before Python 3.12, a completed wait_for swallows a cancellation.
            while tasks := [task for task in (reading, *self._tasks) if not task.done()]:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            await self._close(self._ended.result())

    def end(self, failure: Failure | None = None) -> None:
        """End the connection, after an `error` event if a failure is given."""
        if not self._ended.done():
            self._ended.set_result(failure)

    def drain(self) -> None:
        """End the connection after the active speech."""
        self._is_draining = True
        if not self._tasks:
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

    async def _close(self, failure: Failure | None) -> None:
        """Send the error event, then discard input for a moment: closing a socket with unread input
        resets it, and the client would lose the event."""
        with suppress(OSError, asyncio.TimeoutError):
            if failure is not None and not self._writer.is_closing():
                self._writer.write(encode_event(Error(failure.message, failure.code).event()))
                self._writer.write_eof()
                await asyncio.wait_for(self._discard(), CLOSE_TIMEOUT_S)
        self._writer.close()
        with suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), CLOSE_TIMEOUT_S)
        self._writer.transport.abort()

    async def _discard(self) -> None:
        while await self._reader.read(65_536):
            await asyncio.sleep(0)

    # -- the reader --------------------------------------------------------------------------

    async def _read(self, check_rate: Callable[[], None]) -> None:
        try:
            while not self._ended.done() and (event := await self._next_event()) is not None:
                self._has_sent, self._last_active = True, time.monotonic()
                await self._handle(event, check_rate)
        except OSError:
            pass  # the client disconnected
        except Exception as error:
            self.end(describe(error))

    async def _next_event(self) -> Event | None:
        first = await self._first_byte()
        if not first:
            return None
        limit_s = self._settings.body_timeout_s
        try:
            most = self._settings.max_message_bytes
            return await asyncio.wait_for(read_event(self._reader, first, most), limit_s)
        except asyncio.TimeoutError:
            raise RefusedError(
                f"an event was incomplete after {limit_s:g} s", status=408, code="timeout"
            ) from None

    async def _first_byte(self) -> bytes:
        limit_s = self._settings.socket_idle_s if self._has_sent else self._settings.body_timeout_s
        while self._reader.exception() is None:
            await asyncio.sleep(0)  # a reader with a full buffer never yields
            timeout_s = limit_s
            if not self._utterances.is_busy:
                timeout_s = max(0.0, self._last_active + limit_s - time.monotonic())
            try:
                return await asyncio.wait_for(self._reader.read(1), timeout_s)
            except asyncio.TimeoutError:
                is_idle = not self._utterances.is_busy
                if is_idle and time.monotonic() >= self._last_active + limit_s:
                    raise RefusedError(
                        f"no event for {limit_s:g} s", status=408, code="idle"
                    ) from None
        return b""

    # -- events ------------------------------------------------------------------------------

    async def _handle(self, event: Event, check_rate: Callable[[], None]) -> None:
        """Handle an event. Unknown types are ignored, as the protocol requires."""
        try:
            read: ClientEvent = read_message(CLIENT_EVENTS, {**event.data, "type": event.type})
        except RefusedError as error:
            if error.code == UNKNOWN_TYPE:
                return
            raise
        match read:
            case Describe():
                await self.send(await asyncio.to_thread(describe_server, self._context))
            case Ping(text=text):
                await self.send(Pong(text).event())
            case Synthesize():
                self._add_whole(read, check_rate)
            case SynthesizeStart():
                if self._open is not None:
                    raise RefusedError(
                        "synthesize-start inside a stream; send synthesize-stop first"
                    )
                self._begin(read, check_rate, is_streamed=True)
            case SynthesizeChunk(text=text):
                self._need_open(read.type).text.add(text)
            case SynthesizeStop():
                self._need_open(read.type).text.end()

    def _add_whole(self, event: Synthesize, check_rate: Callable[[], None]) -> None:
        """Inside a stream the event repeats the whole text; it is spoken only if no chunk came."""
        if self._open is None:
            text = self._begin(event, check_rate, is_streamed=False).text
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

    def _begin(
        self, event: SpeechEvent, check_rate: Callable[[], None], *, is_streamed: bool
    ) -> WyomingUtterance:
        check_rate()
        text = LiveText(self._settings.max_text_chars)
        utterance = WyomingUtterance(self, event.fields, text, is_streamed)
        self._utterances.add(utterance)
        return utterance

    # -- speech ------------------------------------------------------------------------------

    def _start(self, speech: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._context.streams.run_held(speech)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._last_active = time.monotonic()
        if self._is_draining and not self._tasks:
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
            speech = await prepare(self._context, self._request(utterance, LATER))
            await speech.speak(text, utterance)
            await text.wait_end()
            await self.send(SynthesizeStopped().event())
        else:
            await speak(self._context, self._request(utterance, text.received), utterance)
        log.info(
            "wyoming %s %d characters, %.2f s of audio in %.2f s",
            "stream" if utterance.is_streamed else "synthesize",
            text.num_chars,
            utterance.milliseconds / 1_000,
            time.perf_counter() - began,
        )

    def _request(self, utterance: WyomingUtterance, text: str) -> SpeechRequest:
        return SpeechRequest.parse({**utterance.fields, "input": text}, self._settings)
