"""OpenAI's server-sent events of speech, and the extension `speech.audio.words`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from vivace.serve.errors import Failure
from vivace.speech import Word

CONTENT_TYPE = "text/event-stream; charset=utf-8"


def delta(audio: bytes) -> bytes:
    return event("speech.audio.delta", audio=base64.b64encode(audio).decode("ascii"))


def words(found: Sequence[Word] | None) -> bytes:
    """Words whose audio is complete. Null: the checkpoint has no timings."""
    return event("speech.audio.words", words=None if found is None else list(map(as_json, found)))


def as_json(word: Word) -> dict[str, Any]:
    """A word with its times in seconds from the start of the speech."""
    return {
        "word": word.text,
        "start": round(word.start_s, 3),
        "end": round(word.end_s, 3),
        "start_char": word.start_char,
        "end_char": word.end_char,
    }


def done(
    num_text_tokens: int,
    num_frames: int,
    finish_reason: str | None,
    more: Mapping[str, Any] | None = None,
) -> bytes:
    """The last event of a complete speech. Every frame counts as one output token."""
    usage = {
        "input_tokens": num_text_tokens,
        "output_tokens": num_frames,
        "total_tokens": num_text_tokens + num_frames,
        **(more or {}),
    }
    return event("speech.audio.done", usage=usage, finish_reason=finish_reason)


def error(failure: Failure) -> bytes:
    return event("speech.audio.error", **failure.body)


def event(kind: str, **fields: Any) -> bytes:
    """One event, with its JSON as one line of ASCII."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode("ascii")
