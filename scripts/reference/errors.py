"""The page of exceptions, and of the statuses that the server returns for them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from reference.markdown import code, page, sentence, table
from vivace import errors
from vivace.serve.errors import describe

INTRODUCTION = """\
Every exception of Vivace is a `TTSError` in `vivace.errors`. Several are also a built-in
exception, so existing handlers of `ValueError` or `RuntimeError` catch them."""
EXAMPLE = """\
```python
from vivace import TTS
from vivace.errors import RequestError

with TTS.load() as tts:
    try:
        tts.speak("Hello.", voice="nobody")
    except RequestError as error:
        print(error)  # no voice named 'nobody'; try one of: heart, michael
```"""
HTTP = """\
## HTTP responses

The server returns errors in OpenAI's format, `{"error": {"message", "type", "param", "code"}}`. The
table lists the responses that come from an exception. Responses with a retry time have the headers
`Retry-After` (seconds) and `retry-after-ms`. [The server](../server.md#errors) lists all
statuses."""


def errors_page() -> str:
    tree = table(("exception", "base classes", "meaning"), _rows(errors.TTSError))
    return page("Errors", INTRODUCTION, EXAMPLE, tree, HTTP, _responses())


def _rows(kind: type) -> Iterator[tuple[str, str, str]]:
    bases = ", ".join(code(base.__name__) for base in kind.__bases__)
    text = (inspect.getdoc(kind) or "").split("\n\n")[0]
    yield code(kind.__name__), bases, sentence(text)
    children: list[type] = kind.__subclasses__()
    for child in children:
        if child.__module__ == errors.__name__ and child.__bases__[0] is kind:
            yield from _rows(child)


def _samples() -> Iterator[BaseException]:
    """One exception of each kind that has a response of its own."""
    yield errors.UnknownVoiceError("name", [])
    yield errors.UnknownLanguageError("name", [])
    yield errors.TextTooLongError(2, 1, "characters")
    yield errors.TextError("text")
    yield errors.AudioError("audio")
    yield errors.RequestError("request")
    yield errors.QueueFullError(1, 1.0)
    yield errors.ClosedError("closed")
    yield errors.VoiceStoreError("store")
    yield errors.RunawayError("runaway")
    yield errors.EngineError("engine")


def _responses() -> str:
    rows = []
    for error in _samples():
        failure = describe(error)
        retry = "yes" if failure.retry_s is not None else ""
        name = code(type(error).__name__)
        rows.append((name, str(failure.status), code(failure.code), code(failure.kind), retry))
    return table(("exception", "status", "`code`", "`type`", "retry time"), rows)
