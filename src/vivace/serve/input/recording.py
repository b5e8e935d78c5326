"""Decodes uploaded recordings: bytes, base64 or data URIs. Never opens a path or fetches a URL."""

from __future__ import annotations

import base64
import binascii
import re

from vivace.serve.errors import RefusedError

DATA_URI = re.compile(r"data:[^,]{1,200};base64,", re.IGNORECASE)
SCHEME = re.compile(r"\s*[a-z][a-z0-9+.-]{0,20}:", re.IGNORECASE)
BLANKS = re.compile(r"[ \t\r\n]+")
URL_SAFE = str.maketrans("-_", "+/")


def decode_audio(audio: object, max_bytes: int, param: str) -> bytes:
    """The bytes of a recording. Raises RefusedError that names `param`."""
    if isinstance(audio, str):
        audio = _from_base64(audio, max_bytes, param)
    if not isinstance(audio, bytes):
        raise _refuse_audio(param, f"must be audio, not {type(audio).__name__}")
    if len(audio) > max_bytes:
        raise _audio_too_large(max_bytes, param)
    if not audio:
        raise _refuse_audio(param, "the recording is empty")
    return audio


def _from_base64(text: str, max_bytes: int, param: str) -> bytes:
    head = DATA_URI.match(text)
    payload = text[head.end() :] if head else text
    if head is None and SCHEME.match(text):
        raise _refuse_audio(
            param,
            "must be the recording itself, as base64 or as data:audio/wav;base64,…; URLs are not "
            "fetched and paths are not opened",
        )
    if len(payload) // 4 * 3 - 2 > max_bytes:
        raise _audio_too_large(max_bytes, param)
    payload = BLANKS.sub("", payload)  # the command `base64` wraps lines
    payload = payload.translate(URL_SAFE).rstrip("=")
    try:
        return base64.b64decode(payload + "=" * (-len(payload) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _refuse_audio(param, f"neither base64 nor a data URI: {error}") from error


def _refuse_audio(param: str, reason: str) -> RefusedError:
    return RefusedError(f"{param}: {reason}", param=param, code="invalid_audio")


def _audio_too_large(max_bytes: int, param: str) -> RefusedError:
    return RefusedError(
        f"{param} is larger than {max_bytes:,} bytes",
        status=413,
        param=param,
        code="audio_too_large",
    )
