"""Speech as an HTTP response whose body is written while it is made.

Starlette's StreamingResponse notices only when it sends that a client has disconnected, and leaves
its iterator open then. `SpeechResponse` cancels its speech at once. Clients that do not read are
disconnected by `protocol.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vivace.serve.context import ServeContext
from vivace.serve.errors import describe
from vivace.serve.http.bodies import SpeechBody
from vivace.serve.speaking.request import SpeechRequest
from vivace.serve.speaking.speak import SpeechReport, SpeechSink, Words, speak

log = logging.getLogger(__name__)

TRANSPORT = "vivace.transport"  # in a scope's state: the connection's asyncio.Transport
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection
UNBUFFERED = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # by proxies
IGNORED = "x-vivace-ignored"  # request fields that the model cannot follow
SKIPPED = "x-vivace-skipped"  # characters of the text that the model does not read
MAX_SKIPPED_CHARS = 32  # different characters in the header
PROVENANCE = "x-vivace-provenance"  # that the audio is AI-generated: tool, model, kind of voice
COMPLETENESS = "x-vivace-completeness"  # share of words spoken, of speech that is sent whole
MISSING_WORDS = "x-vivace-missing-words"  # their number


class SpeechResponse(Response, SpeechSink):
    """Speaks one request while its client is connected, and sends the speech as `body`.

    The status is sent with the first audio, so that an earlier error has its own status. A later
    error leaves the body incomplete, so that no client mistakes a part for the whole.
    """

    def __init__(
        self,
        context: ServeContext,
        request: SpeechRequest,
        body: SpeechBody | None = None,
        *,
        ignored: Sequence[str] = (),  # fields of the client's protocol that are not supported
    ) -> None:
        self._context, self._request, self._ignored = context, request, ignored
        self._body = body or SpeechBody()
        self._is_started = False
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._send = scope, send
        await run_while_connected(receive, speak(self._context, self._request, self))

    @property
    def is_whole(self) -> bool:
        return not self._request.stream

    async def start(self, report: SpeechReport) -> None:
        if not self.is_whole:
            await self._start(self._speech_headers(report))

    async def write(self, audio: bytes, words: Words) -> None:
        await self._write(self._body.write(audio, words))

    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> None:
        content = await self._body.finish(audio, words, report)
        if self.is_whole:
            length = {"content-length": str(len(content))}
            await self._start(self._speech_headers(report) | completeness_headers(report) | length)
        await self._send({"type": "http.response.body", "body": content, "more_body": False})

    async def fail(self, error: Exception) -> None:
        if not self._is_started:
            raise error  # `serve/app.py` makes it a response
        failure = describe(error)
        log.warning(  # the message of a client error may quote the text
            "speech failed after its first audio: %s",
            failure.message if failure.status >= 500 else failure.code,
        )
        await self._write(self._body.fail(failure))
        self._leave_incomplete()

    async def _start(self, headers: Mapping[str, str]) -> None:
        self._is_started = True
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _write(self, content: bytes) -> None:
        if content:
            await self._send({"type": "http.response.body", "body": content, "more_body": True})

    def _leave_incomplete(self) -> None:
        """Make the client see an incomplete body.

        The server closes the connection without the last chunk of a chunked body. A body of
        HTTP/1.0 ends with its connection, so that connection is reset.
        """
        transport = self._scope.get("state", {}).get(TRANSPORT)
        if transport is not None and self._scope.get("http_version") == "1.0":
            connection = transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def _speech_headers(self, report: SpeechReport) -> dict[str, str]:
        ignored = ", ".join([*self._ignored, *report.ignored])
        return {
            "content-type": self._body.content_type or report.encoder.content_type,
            **UNBUFFERED,
            **({IGNORED: ignored} if ignored else {}),
            **skipped_header(report.skipped),
            **({PROVENANCE: report.provenance} if report.provenance else {}),
        }


def skipped_header(skipped: Sequence[str]) -> dict[str, str]:
    """The number of skipped characters and the characters, percent-encoded: `5; %D0%9C`."""
    if not skipped:
        return {}
    characters = "".join(dict.fromkeys("".join(skipped)))[:MAX_SKIPPED_CHARS]
    return {SKIPPED: f"{sum(map(len, skipped))}; {quote(characters)}"}


def completeness_headers(report: SpeechReport) -> dict[str, str]:
    fields = report.usage_fields
    if "completeness" not in fields:
        return {}
    return {
        COMPLETENESS: f"{fields['completeness']:g}",
        MISSING_WORDS: str(len(fields["missing_words"])),
    }


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run the work of a request whose body was read; cancel it when the client disconnects."""
    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_cancelled = not task.done()
        disconnect.cancel()
        task.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)
    if not is_cancelled:
        task.result()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
