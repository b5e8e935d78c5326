"""Formats of HTTP bodies: audio, JSON lines and OpenAI's server-sent events."""

from __future__ import annotations

import asyncio
import base64
import json
from abc import ABC, abstractmethod
from typing import Any

from vivace.serve.errors import Failure
from vivace.serve.speaking.request import SpeechRequest
from vivace.serve.speaking.speak import SpeechReport, Words
from vivace.speech import Word


class SpeechBody:
    """The bytes of a body: the audio itself. Subclasses wrap it."""

    content_type: str | None = None  # None: that of the audio

    def write(self, audio: bytes, words: Words) -> bytes:
        return audio

    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> bytes:
        return audio

    def fail(self, failure: Failure) -> bytes:
        return b""


class JsonLines(SpeechBody, ABC):
    """A JSON object on a line for every piece of audio."""

    content_type = "application/json"

    @abstractmethod
    def as_json(self, audio: bytes, words: Words, *, is_last: bool) -> dict[str, Any]:
        """The object of one line."""

    def write(self, audio: bytes, words: Words) -> bytes:
        return self._line(audio, words) if audio or words else b""

    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> bytes:
        return self._line(audio, words, is_last=True)

    def _line(self, audio: bytes, words: Words, *, is_last: bool = False) -> bytes:
        return json.dumps(self.as_json(audio, words, is_last=is_last)).encode("ascii") + b"\n"


class EventBody(SpeechBody):
    """OpenAI's events, and `speech.audio.words` if the request wants timestamps.

    `words` is null if the checkpoint has no timings. Every frame counts as one output token.
    """

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, request: SpeechRequest) -> None:
        self._text, self._has_words = request.input, request.word_timestamps

    def write(self, audio: bytes, words: Words) -> bytes:
        content = _event("delta", audio=as_base64(audio)) if audio else b""
        return content + self._words(words) if words else content

    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> bytes:
        tokenizer = report.model.tts.tokenizer  # in a thread: the text may be a whole chapter
        num_tokens = len(await asyncio.to_thread(tokenizer.encode, self._text))
        usage = {
            "input_tokens": num_tokens,
            "output_tokens": report.num_frames,
            "total_tokens": num_tokens + report.num_frames,
            **report.usage_fields,
        }
        content = self.write(audio, ()) + self._words(words)
        return content + _event("done", usage=usage, finish_reason=report.reason)

    def fail(self, failure: Failure) -> bytes:
        return _event("error", **failure.body)

    def _words(self, words: Words) -> bytes:
        if not self._has_words:
            return b""
        return _event("words", words=None if words is None else list(map(word_as_json, words)))


def word_as_json(word: Word) -> dict[str, Any]:
    """A word with its times in seconds from the start of the speech."""
    return {
        "word": word.text,
        "start": round(word.start_s, 3),
        "end": round(word.end_s, 3),
        "start_char": word.start_char,
        "end_char": word.end_char,
    }


def as_base64(audio: bytes) -> str:
    return base64.b64encode(audio).decode("ascii")


def _event(kind: str, **fields: Any) -> bytes:
    name = f"speech.audio.{kind}"
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode("ascii")
