"""Serves the page at `/`: the files of this folder, with a strict content security policy.

URLs are relative, so that a proxy may serve the page under any path. The page needs no key: it
contains no secret and asks the user for the API key.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from vivace.serve.context import ServeContext

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
INDENT_OR_COMMENT = re.compile(rb"(?m)^[ \t]*(?://.*\n)?")  # 8 % of the page's size
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # revalidated, so that a new version is shown at once
}


@dataclass(frozen=True, slots=True)
class PageFile:
    body: bytes
    media_type: str
    etag: str


def read_files() -> dict[str, PageFile]:
    """The files of the page by name. No other file is served."""
    found = {}
    for entry in files("vivace.serve.page").iterdir():
        if media_type := MEDIA_TYPES.get(entry.name.rpartition(".")[2]):
            body = INDENT_OR_COMMENT.sub(b"", entry.read_bytes())
            etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            found[entry.name] = PageFile(body, media_type, etag)
    return found


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    served = read_files()

    @router.api_route("/", methods=["GET", "HEAD"])
    @router.api_route("/favicon.ico", methods=["GET", "HEAD"])
    @router.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def show(request: Request) -> Response:
        is_icon = request.scope["path"].endswith(".ico")  # browsers request it for /docs
        name = request.path_params.get("name", "icon.svg" if is_icon else "index.html")
        found = served.get(name)
        if found is None:
            raise HTTPException(404, f"the page has no file {name[:100]!r}")
        headers = {**HEADERS, "ETag": found.etag}
        if found.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(found.body, media_type=found.media_type, headers=headers)

    return router
