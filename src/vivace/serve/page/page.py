"""Serves the page at `/`: the files of this folder, compressed, with a strict security policy.

URLs are relative, so that a proxy may serve the page under any path. The page needs no key: it
contains no secret and asks the user for the API key.

`index.html` names its files under `page/VERSION/`, where VERSION is a digest of all files. Browsers
keep those files and request only `index.html` again.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
}
INDEX, ICON = "index.html", "icon.svg"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
}
REVALIDATED = "no-cache"  # a new version is shown at once
KEPT = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    media_type: str
    etag: str
    compressed: bytes | None  # None: fonts are compressed already

    @classmethod
    def of(cls, body: bytes, media_type: str) -> PageFile:
        compressed = None if "font" in media_type else gzip.compress(body, 9, mtime=0)
        return cls(body, media_type, f'"{_digest(body)}"', compressed)

    def respond(self, request: Request, caching: str) -> Response:
        # A weak tag: the compressed and the plain body are the same file.
        headers = {**HEADERS, "Cache-Control": caching, "ETag": f"W/{self.etag}"}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if self.compressed and "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(self.compressed, media_type=self.media_type, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


@dataclass(frozen=True, slots=True)
class PageFiles:
    version: str
    by_name: dict[str, PageFile]

    @classmethod
    def read(cls) -> PageFiles:
        """The files of this folder. No other file is served."""
        found = {
            entry.name: entry.read_bytes()
            for entry in files("vivace.serve.page").iterdir()
            if _extension(entry.name) in MEDIA_TYPES
        }
        version = _digest(b"".join(found[name] for name in sorted(found)))
        found[INDEX] = found[INDEX].replace(b'="page/', f'="page/{version}/'.encode())
        served = {
            name: PageFile.of(body, MEDIA_TYPES[_extension(name)]) for name, body in found.items()
        }
        return cls(version, served)

    def respond(self, request: Request, path: str) -> Response:
        """The file `NAME` or `VERSION/NAME`. An open tab may request an old version."""
        version, _, name = path.rpartition("/")
        if name not in self.by_name:
            message = f"the page has no file {path[:100]!r}"
            raise RefusedError(message, status=404, code="file_not_found")
        caching = KEPT if version == self.version else REVALIDATED
        return self.by_name[name].respond(request, caching)


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    served = PageFiles.read()

    @router.api_route("/", methods=["GET", "HEAD"])
    async def show(request: Request) -> Response:
        return served.respond(request, INDEX)

    @router.api_route("/favicon.ico", methods=["GET", "HEAD"])
    async def show_icon(request: Request) -> Response:
        """Browsers request it for `/docs`."""
        return served.respond(request, ICON)

    @router.api_route("/page/{name:path}", methods=["GET", "HEAD"])
    async def show_file(request: Request, name: str) -> Response:
        return served.respond(request, name)

    return router


def _extension(name: str) -> str:
    return name.rpartition(".")[2]


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]
