"""Speech from `vivace serve` over `/v1/audio/speech/stream`. Connections are reused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from vivace.errors import IntegrationError, RequestError, ServerError
from vivace.integrations.source import Sound
from vivace.speech import SAMPLE_RATE, Word

try:
    from websockets.asyncio.client import ClientConnection, connect
    from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
    from websockets.protocol import State
except ImportError as error:
    raise IntegrationError(
        f"speech from a server needs websockets: pip install 'websockets>=14' ({error})"
    ) from error

PATH = "/v1/audio/speech/stream"
SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
SAME = ("voice", "model", "language", "speed", "seed", "temperature", "top_k", "top_p")
FIELDS = {  # fields of session.config by option name
    **{name: name for name in (*SAME, "repetition_penalty", "live")},
    "instruct": "instructions",
    "timings": "word_events",
}
FAULTS = ("runaway", "internal_error")  # error codes of failures inside the server
MAX_MESSAGE_BYTES = 1 << 24
CANCEL_S = 5.0  # wait for the server's confirmation before the connection is closed


class ServerSource:
    """Connections to one server. A connection speaks one text at a time and is reused."""

    model = "vivace"

    def __init__(
        self, url: str, *, api_key: str | None = None, sample_rate: int = SAMPLE_RATE
    ) -> None:
        self.url, self.sample_rate = socket_url(url), sample_rate
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._idle: list[ClientConnection] = []
        self._busy: set[ClientConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # that cancel speech on the server

    async def prepare(self) -> None:
        """Open a connection before the first text."""
        self._idle.append(await self._take())

    async def speak(
        self, text: AsyncIterator[str] | str, sample_rate: int, **options: Any
    ) -> AsyncIterator[Sound]:
        config = config_message(sample_rate, options)
        connection = await self._take()
        self._busy.add(connection)
        writer = asyncio.ensure_future(write(connection, config, text))
        is_over = False
        try:
            async for sound in read(connection, sample_rate):
                yield sound
            is_over = writer.done()
            if is_over:
                await writer  # raises an error of the text iterator after its last audio
        except ConnectionClosed as error:
            raise ServerError(
                f"the connection to {self.url} ended before the speech did: {error}"
            ) from error
        finally:
            self._busy.discard(connection)
            if is_over:
                self._idle.append(connection)
            else:
                self._start(self._cancel(connection, writer))

    async def aclose(self) -> None:
        """Close all connections. Streams that are still read raise ServerError."""
        if self._tasks:
            await asyncio.gather(*self._tasks)
        connections = [*self._idle, *self._busy]
        self._idle.clear()
        await asyncio.gather(*(connection.close() for connection in connections))

    async def _take(self) -> ClientConnection:
        while self._idle:
            if (connection := self._idle.pop()).state is State.OPEN:
                return connection
        try:
            return await connect(
                self.url,
                additional_headers=self._headers,
                compression=None,
                max_size=MAX_MESSAGE_BYTES,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            kind = ServerError if status >= 500 else RequestError
            raise kind(f"{self.url} answered {status}; does it need a key (api_key)?") from error
        except (OSError, asyncio.TimeoutError, WebSocketException) as error:
            raise ServerError(
                f"no connection to {self.url}: {error}; is `vivace serve` running there?"
            ) from error

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _cancel(self, connection: ClientConnection, writer: asyncio.Future[None]) -> None:
        """Cancel the speech. Keep the connection if the server confirms."""
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        try:
            await connection.send(json.dumps({"type": "input.cancel"}))
            await asyncio.wait_for(read_until(connection, "audio.cancelled"), CANCEL_S)
        except (ConnectionClosed, asyncio.TimeoutError):
            await connection.close()
        else:
            self._idle.append(connection)


async def write(
    connection: ClientConnection, config: dict[str, Any], text: AsyncIterator[str] | str
) -> None:
    """Send a text as it arrives. If its iterator fails, the text until then is spoken."""
    await connection.send(json.dumps(config))
    try:
        if isinstance(text, str):
            await connection.send(json.dumps({"type": "input.text", "text": text}))
        else:
            async for piece in text:
                await connection.send(json.dumps({"type": "input.text", "text": piece}))
    finally:
        if connection.state is State.OPEN:
            await connection.send(json.dumps({"type": "input.done"}))


async def read(connection: ClientConnection, sample_rate: int) -> AsyncIterator[Sound]:
    """Yield the audio of one text. A word comes before the audio in which it ends."""
    words: tuple[Word, ...] = ()
    while True:
        message = await connection.recv()
        if isinstance(message, bytes):
            yield Sound(message, sample_rate, words)
            words = ()
        elif (event := json.loads(message))["type"] == "audio.words":
            words += tuple(map(as_word, event["words"] or ()))
        elif event["type"] == "error":
            raise as_error(event)
        elif event["type"] == "session.done":
            if words:
                yield Sound(b"", sample_rate, words)
            return


async def read_until(connection: ClientConnection, type: str) -> None:
    while True:
        message = await connection.recv()
        if not isinstance(message, bytes) and json.loads(message)["type"] == type:
            return


def config_message(sample_rate: int, options: dict[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(options) - FIELDS.keys()):
        raise RequestError(
            f"a server does not accept {', '.join(unknown)}; "
            f"try one of: {', '.join(sorted(FIELDS))}"
        )
    if not isinstance(options.get("voice", ""), str):
        raise RequestError(
            "voice must be the name of a voice on the server, not a Voice; create it there first"
        )
    fields = {FIELDS[name]: value for name, value in options.items()}
    audio = {"response_format": "pcm", "sample_rate": sample_rate}
    return {"type": "session.config", **audio, **fields}


def as_word(row: dict[str, Any]) -> Word:
    place = {"start_char": row["start_char"], "end_char": row["end_char"]}
    return Word(text=row["word"], start_s=row["start"], end_s=row["end"], **place)


def as_error(event: dict[str, Any]) -> RequestError | ServerError:
    """The exception for an error event: RequestError for a bad request, otherwise ServerError."""
    message, retry_ms = f"the server: {event.get('message')}", event.get("retry_after_ms")
    is_fault = retry_ms is not None or event.get("partial_audio") or event.get("code") in FAULTS
    if not is_fault:
        return RequestError(message)
    return ServerError(message, retry_s=None if retry_ms is None else retry_ms / 1000)


def socket_url(url: str) -> str:
    """Accepts `http://host:8000`, `ws://host:8000/v1` and the complete address."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise RequestError(f"{url!r} is not the address of a server; try http://127.0.0.1:8000")
    path = parts.path.rstrip("/")
    if not path.endswith(PATH):
        path = path.removesuffix("/v1") + PATH
    return urlunsplit((SCHEMES[parts.scheme], parts.netloc, path, parts.query, ""))
