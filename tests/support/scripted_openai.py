"""A local server with OpenAI's transcription and chat APIs and scripted answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.http_server import serve_http


@dataclass
class ScriptedOpenAI:
    transcript: str
    reply: str
    url: str = ""
    uploads: list[bytes] = field(default_factory=list)  # bodies of the transcription requests
    chats: list[list[dict[str, Any]]] = field(default_factory=list)  # messages of the chat requests

    def chunks(self) -> Iterator[dict[str, Any]]:
        """The reply word by word, as events of a streamed completion."""
        deltas = [{"role": "assistant", "content": ""}]
        deltas += [{"content": f"{word} "} for word in self.reply.split()]
        for number, delta in enumerate([*deltas, {}]):
            reason = "stop" if number == len(deltas) else None
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            yield {
                "id": "chatcmpl-1",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "scripted",
                "choices": [choice],
            }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: ScriptedOpenAI

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/audio/transcriptions"):
            self.script.uploads.append(body)
            self._send("application/json", json.dumps({"text": self.script.transcript}))
            return
        self.script.chats.append(json.loads(body)["messages"])
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in self.script.chunks()]
        self._send("text/event-stream", "".join([*events, "data: [DONE]\n\n"]))

    def log_message(self, *_: Any) -> None:
        pass

    def _send(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def scripted_openai(transcript: str, reply: str) -> Iterator[ScriptedOpenAI]:
    script = ScriptedOpenAI(transcript, reply)
    handler = type("Handler", (_Handler,), {"script": script})
    with serve_http(handler) as url:
        script.url = f"{url}/v1"
        yield script
