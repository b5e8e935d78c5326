"""Errors in OpenAI's format: a status and `{"error": {message, type, param, code}}`.

Invalid input never returns a 5xx status. Errors that may pass have `Retry-After` (whole seconds)
and `retry-after-ms`.
"""

from __future__ import annotations

import errno
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse

from vivace.errors import (
    AudioError,
    ClosedError,
    QueueFullError,
    RequestError,
    RunawayError,
    StreamClosedError,
    TextError,
    TextTooLongError,
    TTSError,
    UnknownLanguageError,
    UnknownVoiceError,
    VoiceFileError,
    VoiceStoreError,
)

log = logging.getLogger(__name__)

FieldNames = Mapping[str, str]
"""Fields of `POST /v1/audio/speech` and their names in the request that the client sent."""

KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
KINDS |= {429: "rate_limit_error"}
# Status and code of failures of the server, as `describe` returns them.
ENGINE_FAILURES = (
    (429, "queue_full"),
    (500, "engine_failed"),
    (500, "internal_error"),
    (500, "runaway"),
    (503, "loading"),
)
HEADERS = {401: {"www-authenticate": "Bearer"}, 415: {"accept-encoding": "identity"}}
# Disk errors of the voice library, which are not the client's fault.
DISK = {errno.ENOSPC: 507, errno.EDQUOT: 507, errno.EROFS: 500, errno.EACCES: 500, errno.EIO: 500}
DISK |= {errno.EMFILE: 503, errno.ENFILE: 503}


class RefusedError(RequestError):
    """The server refuses a request with this status, code and retry time."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        retry_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_s = status, code, param, retry_s


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a client sees it."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_s: float | None = None

    @property
    def kind(self) -> str:
        fallback = "server_error" if self.status >= 500 else "invalid_request_error"
        return KINDS.get(self.status, fallback)

    @property
    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        headers = dict(HEADERS.get(self.status, {}))
        if self.retry_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_s)))
            headers["retry-after-ms"] = str(max(1, math.ceil(self.retry_s * 1000)))
        return headers

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


# The first type of an error in this table decides its status, code, field and retry time.
FAILURES: tuple[tuple[type[Exception], int, str, str | None, float | None], ...] = (
    (UnknownVoiceError, 400, "voice_not_found", "voice", None),
    (UnknownLanguageError, 400, "language_not_found", "language", None),
    (TextTooLongError, 400, "text_too_long", "input", None),
    (TextError, 400, "invalid_request", "input", None),
    (AudioError, 400, "invalid_audio", None, None),
    (RequestError, 400, "invalid_request", None, None),
    (VoiceStoreError, 503, "voice_store", None, 2.0),
    (RunawayError, 500, "runaway", None, None),
    (TTSError, 500, "engine_failed", None, 1.0),
)


def describe(error: BaseException) -> Failure:
    """Return the response for `error`. Unexpected exceptions return a generic message."""
    message, cause = str(error), error.__cause__
    if isinstance(error, RefusedError):
        return Failure(error.status, message, error.code, error.param, error.retry_s)
    if isinstance(error, VoiceFileError) and isinstance(cause, OSError) and cause.errno in DISK:
        log.error("voice library: %s", message)
        words = f"the server's voice library failed: {cause.strerror}"
        return Failure(DISK[cause.errno], words, "voice_library")
    if isinstance(error, QueueFullError):
        return Failure(429, message, "queue_full", retry_s=error.retry_s)
    if isinstance(error, (ClosedError, StreamClosedError)):
        return Failure(503, "the model is being loaded again; try again", "loading", retry_s=2.0)
    for kind, status, code, param, retry_s in FAILURES:
        if isinstance(error, kind):
            return Failure(status, message, code, param, retry_s)
    log.error("unexpected error", exc_info=error)
    return Failure(500, "internal server error; see the server log", "internal_error")


def with_field_names(error: Exception, names: FieldNames) -> Exception:
    """The error with the client's name of its field, in `param` and at the start of its message."""
    param = _field_of(error)
    if param is None or param not in names:
        return error
    failure, name = describe(error), names[param]
    return RefusedError(
        re.sub(rf"\A{re.escape(param)}\b", name, failure.message),
        status=failure.status,
        code=failure.code,
        param=name,
        retry_s=failure.retry_s,
    )


def _field_of(error: Exception) -> str | None:
    if isinstance(error, RefusedError):
        return error.param
    return next((param for kind, _, _, param, _ in FAILURES if isinstance(error, kind)), None)
