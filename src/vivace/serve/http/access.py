"""Access control: host names, browser origins, API keys and request rates.

Without API keys any web page could reach a local server through the browser of a visitor (DNS
rebinding). So `Host` must be an IP address or a configured name, and `Origin` the server's own or
a configured one.

A browser cannot set headers on a WebSocket. It offers two subprotocols instead: `vivace`, which the
server accepts, and `vivace-key.` with the API key in base64url without padding. OpenAI's
`openai-insecure-api-key.KEY` beside `realtime` is supported too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from vivace.serve.errors import RefusedError
from vivace.serve.peers import Peers
from vivace.serve.settings import ServeSettings

HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)(:[0-9]{1,5})?")
PUBLIC = ("/", "/health", "/health/live", "/health/ready", "/favicon.ico")
PUBLIC_FOLDERS = ("/page/",)
LISTS = {"/v1", "/v1/models", "/v1/audio/models"}
LISTS |= {"/v1/audio/voices", "/v1/voices", "/v2/voices"}
KEY_PREFIX, OPENAI_PREFIX = "vivace-key.", "openai-insecure-api-key."
MAX_PEERS = 10_000  # with a tracked request rate


class Access:
    def __init__(self, settings: ServeSettings, peers: Peers | None = None) -> None:
        self._settings = settings
        self._spend = self._spend_here if peers is None else peers.spend
        self._digests = [_digest(key) for key in settings.api_keys]
        self._hosts = {host.lower() for host in (*settings.allowed_hosts, settings.host)}
        self._origins = {origin.lower().rstrip("/") for origin in settings.allowed_origins}
        self._rates: dict[str, tuple[float, float]] = {}  # tokens left, time of the last request

    def check(
        self, scope: Mapping[str, Any], headers: Mapping[str, str], origin: str | None
    ) -> None:
        """Raise RefusedError with status 400, 401, 403 or 429 if access is denied."""
        path, method = route_path(scope), scope.get("method", "GET")
        host = _parse_host(headers.get("host"))
        key = self._find_key(scope, headers)
        is_preflight = method == "OPTIONS" and origin is not None
        is_read = method in ("GET", "HEAD")
        is_public = is_preflight or (is_read and _is_public(path))
        is_open = is_read and self._settings.public_lists and _is_list(path)
        if self._digests and key is None and not (is_public or is_open):
            raise _unauthorized(headers)
        if not self._digests or (key is None and not is_public):
            self._check_host(host)
        if not is_public:
            client = scope.get("client")
            self.check_rate(key or (client[0] if client else "-"))

    # -- host and origin -----------------------------------------------------------------------

    def _check_host(self, host: str | None) -> None:
        if host is None or host in self._hosts or "*" in self._hosts or _is_local(host):
            return
        raise RefusedError(
            f"host {host[:80]!r} is not allowed; allow it with --allowed-host",
            status=403,
            code="host_not_allowed",
        )

    def check_origin(self, headers: Mapping[str, str]) -> str | None:
        """Return an allowed foreign origin, or None for no origin or the server's own."""
        origin, host = headers.get("origin"), headers.get("host")
        if origin is None:
            return None
        if origin.lower() in self._origins or "*" in self._origins:
            return origin
        try:
            parts = urlsplit(origin)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme in ("http", "https") and host and parts.netloc.lower() == host.lower():
            return None
        raise RefusedError(
            f"origin {origin[:80]!r} is not allowed; allow it with --allowed-origin",
            status=403,
            code="origin_not_allowed",
        )

    # -- key and rate --------------------------------------------------------------------------

    def _find_key(self, scope: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
        """Return the digest of a valid API key. Compares all keys in constant time."""
        for given in _given_keys(scope, headers):
            digest = _digest(given)
            matches = [hmac.compare_digest(digest, known) for known in self._digests]
            if any(matches):
                return digest.hex()
        return None

    def check_rate(self, name: str) -> None:
        """Take a token from the client's bucket, which holds one minute of requests."""
        limit = self._settings.max_requests_per_minute
        if limit is None:
            return
        left = self._spend(name, limit, time.monotonic())
        if left < 1:
            raise RefusedError(
                f"more than {limit} requests per minute; retry later",
                status=429,
                code="rate_limited",
                retry_s=(1 - left) * 60 / limit,
            )

    def _spend_here(self, name: str, limit: int, now: float) -> float:
        left, since = self._rates.pop(name, (float(limit), now))
        left = min(float(limit), left + (now - since) * limit / 60)
        if len(self._rates) >= MAX_PEERS:
            self._rates.pop(next(iter(self._rates)))  # least recently seen
        self._rates[name] = (max(left - 1, min(left, 0.0)), now)
        return left


def route_path(scope: Mapping[str, Any]) -> str:
    """Return the path without the proxy's path prefix, which may be present or not."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] or "/" if root and f"{path}/".startswith(f"{root}/") else path


def _is_public(path: str) -> bool:
    return path in PUBLIC or path.startswith(PUBLIC_FOLDERS)


def _is_list(path: str) -> bool:
    return path in LISTS or path.startswith("/v1/models/")


def _given_keys(scope: Mapping[str, Any], headers: Mapping[str, str]) -> list[str]:
    given = []
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        given.append(key.strip())
    given.append(headers.get("xi-api-key", "").strip())
    for offered in scope.get("subprotocols", []):
        if offered.startswith(KEY_PREFIX):
            given.append(_from_base64(offered.removeprefix(KEY_PREFIX)))
        elif offered.startswith(OPENAI_PREFIX):
            given.append(offered.removeprefix(OPENAI_PREFIX))
    return [key for key in given if key]


def _from_base64(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("latin-1")
    except (binascii.Error, ValueError):
        return ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _parse_host(header: str | None) -> str | None:
    if header is None:
        return None
    found = HOST.fullmatch(header.strip())
    if found is None:
        raise RefusedError(
            f"the Host header {header[:80]!r} is not a host name", code="invalid_http"
        )
    return found[1].strip("[]").lower()


def _is_local(host: str) -> bool:
    """Whether `host` is an IP address or localhost, which DNS of other parties cannot redirect."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _unauthorized(headers: Mapping[str, str]) -> RefusedError:
    is_given = "authorization" in headers or "xi-api-key" in headers
    message = "the API key is not valid" if is_given else "an API key is required"
    return RefusedError(
        f"{message}: send it as Authorization: Bearer KEY, or as xi-api-key",
        status=401,
        code="invalid_api_key",
    )
