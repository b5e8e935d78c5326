"""A local server with the part of the Hugging Face Hub's API that downloads use."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.http_server import serve_http

COMMIT = "85e237c12c027371202489a0ec509ded67b5e4b5"


@dataclass
class FakeHub:
    """Serves the files of one folder as the model `name`."""

    name: str
    folder: Path
    url: str = ""
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, Range
    # Sends that many bytes of the next weights, then waits for `may_continue` and disconnects.
    stop_after: int | None = None
    may_continue: Event = field(default_factory=Event)

    def ranges(self, path: str) -> list[str | None]:
        """The Range headers of all downloads of a file."""
        return [given for method, got, given in self.requests if method == "GET" and got == path]

    @cached_property
    def files(self) -> list[dict[str, Any]]:
        """Size and hashes of each file; the folder must not change any more."""
        return list(self._read_files())

    def _read_files(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                oid = hashlib.sha1(content, usedforsecurity=False).hexdigest()
                facts: dict[str, Any] = {"oid": oid, "size": len(content)}
                if path.suffix == ".safetensors":
                    sha256 = hashlib.sha256(content).hexdigest()
                    facts["lfs"] = {"sha256": sha256, "oid": sha256, "size": len(content)}
                    facts["lfs"]["pointerSize"] = 134
                yield {"path": path.relative_to(self.folder).as_posix(), **facts}

    def info(self) -> dict[str, Any]:
        siblings = [
            {"rfilename": file["path"], "size": file["size"], "blobId": file["oid"]}
            | ({"lfs": file["lfs"]} if "lfs" in file else {})
            for file in self.files
        ]
        return {"id": self.name, "modelId": self.name, "sha": COMMIT, "siblings": siblings}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def do_HEAD(self) -> None:
        self._respond()

    def do_GET(self) -> None:
        with suppress(ConnectionError):  # the client was killed
            self._respond()

    def log_message(self, *_: Any) -> None:
        pass

    def _respond(self) -> None:
        path, hub = unquote(urlsplit(self.path).path), self.hub
        if path in (f"/api/models/{hub.name}", f"/api/models/{hub.name}/revision/main"):
            self._send_json(hub.info())
        elif path == f"/api/models/{hub.name}/tree/{COMMIT}":
            self._send_json([{"type": "file", **file} for file in hub.files])
        elif path.startswith(f"/{hub.name}/resolve/"):
            self._send_file(path.split("/", 5)[5])
        else:
            self._send(404, {"X-Error-Code": "RepoNotFound"}, b"{}")

    def _send_json(self, value: object) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _send_file(self, path: str) -> None:
        hub, given = self.hub, self.headers.get("Range")
        (facts,) = (file for file in hub.files if file["path"] == path)
        hub.requests.append((self.command, path, given))
        content = (hub.folder / path).read_bytes()
        start = int(given.removeprefix("bytes=").rstrip("-")) if given else 0
        etag = facts["lfs"]["sha256"] if "lfs" in facts else facts["oid"]
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if given:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send(206 if given else 200, headers, content[start:], is_weights="lfs" in facts)

    def _send(
        self, status: int, headers: dict[str, str], content: bytes, *, is_weights: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        limit, hub = self.hub.stop_after, self.hub
        if is_weights and limit is not None:
            hub.stop_after = None
            self.wfile.write(content[:limit])
            self.wfile.flush()
            hub.may_continue.wait(60)
            self.close_connection = True
            return
        self.wfile.write(content)


@contextmanager
def fake_hub(name: str, folder: Path) -> Iterator[FakeHub]:
    hub = FakeHub(name, folder)
    handler = type("Handler", (_Handler,), {"hub": hub})
    with serve_http(handler) as hub.url:
        try:
            yield hub
        finally:
            hub.may_continue.set()
