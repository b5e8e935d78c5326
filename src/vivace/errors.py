"""Every error Vivace raises on purpose.

TTSError
├── RequestError (ValueError)        the request cannot be fulfilled
│   ├── UnknownVoiceError
│   ├── UnknownLanguageError
│   ├── UnsupportedRequestError      the loaded checkpoint is of another type or language
│   ├── VoiceMismatchError           the voice was made for another model
│   ├── VoiceFileError               a voice file that cannot be read or written
│   ├── TextError                    the text itself cannot be spoken
│   │   ├── TextTooLongError
│   │   └── UnsupportedTextError     nor can the loaded checkpoint read its letters
│   ├── LexiconError                 a lexicon that cannot be read
│   └── RefusedError                 the server's, with an HTTP status (serve/errors.py)
├── CheckpointError                  the model's files are not what they should be
├── VoiceStoreError (RuntimeError)   the store of a shared voice library does not answer
├── AudioError (ValueError)          reference audio that cannot be used
│   └── OutputExistsError (FileExistsError)   an output file that is not to be overwritten
├── BackendError (RuntimeError)      the machinery failed
│   ├── BackendUnavailableError      this backend cannot run here
│   ├── BackendFullError             a prompt has to wait for memory that others hold
│   └── NumericError                 a slot's numbers stopped being numbers
├── IntegrationError (ImportError)   a framework is missing, or of a version that was not tested
└── EngineError (RuntimeError)       the engine refused or stopped a request
    ├── ClosedError                  the TTS was closed
    ├── EngineLostError              a server's model cannot be had again in this process
    ├── QueueFullError               too many requests wait already
    ├── StreamClosedError            the stream was closed before its end
    ├── ServerError                  a server that speaks for us failed, or cannot be reached
    ├── RunawayError                 speech that would not end, twice
    └── BatchError                   some texts of a batch failed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class TTSError(Exception):
    """The root of all errors that Vivace raises on purpose."""


class RequestError(TTSError, ValueError):
    """The request cannot be fulfilled."""


class UnknownVoiceError(RequestError):
    """No voice of that name is known to the loaded model."""

    def __init__(self, name: str, known: Sequence[str], *others: str) -> None:
        names = ", ".join(map(repr, (name, *others)))
        super().__init__(f"no voice{'s' * bool(others)} named {names}; {_choices(known)}")


class UnknownLanguageError(RequestError):
    """The loaded model does not know that language."""

    def __init__(self, language: str, known: Sequence[str], served_by: str | None = None) -> None:
        hint = f", or load {served_by}" if served_by else ""
        super().__init__(f"no language named {language!r}; {_choices(known)}{hint}")


class UnsupportedRequestError(RequestError):
    """The loaded checkpoint is of a type, or of languages, that cannot do this."""


class VoiceMismatchError(RequestError):
    """The voice was made for a model of another width or family."""


class VoiceFileError(RequestError):
    """A voice file is missing, damaged, of another format, or cannot be written."""


class TextError(RequestError):
    """The text itself cannot be spoken: it has no words, or what it has cannot be read."""


class UnsupportedTextError(TextError, UnsupportedRequestError):
    """The text has letters of a language that the loaded checkpoint does not read."""


class TextTooLongError(TextError):
    """The text does not fit in one utterance."""

    def __init__(self, length: int, limit: int, unit: str) -> None:
        super().__init__(
            f"the text has {length:,} {unit} and the limit is {limit:,}; split it into parts"
        )


class LexiconError(RequestError):
    """A pronunciation lexicon cannot be read; the message names the file, the line and why."""


class CheckpointError(TTSError):
    """The model's files are missing, damaged or of another kind."""


class VoiceStoreError(TTSError, RuntimeError):
    """The store of a shared voice library cannot be read or written just now."""


class AudioError(TTSError, ValueError):
    """Audio that cannot be read or cannot serve as a reference."""


class OutputExistsError(AudioError, FileExistsError):
    """The file to write exists and may not be overwritten."""

    def __init__(self, path: object, option: str = "overwrite=True") -> None:
        """`option` is what lets the caller overwrite it."""
        super().__init__(f"{path} exists; choose another name, or overwrite it with {option}")


class BackendError(TTSError, RuntimeError):
    """The backend that runs the model failed."""


class BackendUnavailableError(BackendError):
    """This backend cannot run on this machine; the message says why."""


class BackendFullError(BackendError):
    """A prompt has to wait for memory that other slots hold; admit it when one was released."""

    def __init__(self, num_pages: int, most: int, num_free: int, size: int) -> None:
        super().__init__(
            f"the prompt needs {num_pages} pages of keys, up to {most} later, and {num_free} of "
            f"{size} are free; release a slot first"
        )


class NumericError(BackendError):
    """A request's numbers stopped being finite; other requests are untouched."""


class IntegrationError(TTSError, ImportError):
    """A framework is missing, of a major version that was not tested, or imported too early."""


class EngineError(TTSError, RuntimeError):
    """The engine refused or stopped a request."""


class EngineLostError(EngineError):
    """A server gives a model up; `needs_process`: a new process may do better."""

    def __init__(self, message: str, *, needs_process: bool = False) -> None:
        super().__init__(message)
        self.needs_process = needs_process


class ClosedError(EngineError):
    """The TTS was closed and can no longer speak."""


class QueueFullError(EngineError):
    """Too many requests wait already; `retry_s` is when to try again."""

    def __init__(self, num_waiting: int, retry_s: float, num_held: int | None = None) -> None:
        """`num_held` slots did not become free: their streams are neither read nor closed."""
        if num_held is None:
            message = (
                f"all slots are taken and {num_waiting} requests wait already; try again in "
                f"{retry_s:.1f} s, or allow more with max_streams or max_queue"
            )
        else:
            message = (
                f"no slot became free in {retry_s:.1f} s: {num_held} streams that are not read "
                "hold them all; read or close those, or allow more with max_streams"
            )
        super().__init__(message)
        self.retry_s = retry_s


class StreamClosedError(EngineError):
    """The stream was closed before its end; it gives no more audio."""


class ServerError(EngineError):
    """A server that speaks for us failed or cannot be reached; `retry_s` is when to try again."""

    def __init__(self, message: str, retry_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class RunawayError(EngineError):
    """Speech did not end by itself, nor did a second attempt."""


class BatchError(EngineError):
    """Some texts of a batch failed: `errors` by index, `audios` of the rest."""

    def __init__(self, audios: Sequence[Any], errors: Mapping[int, Exception]) -> None:
        first, reason = next(iter(errors.items()))
        super().__init__(
            f"{len(errors)} of {len(audios)} texts failed; text {first} of the batch: {reason} "
            "(the other audios are in .audios, all errors in .errors)"
        )
        self.audios, self.errors = list(audios), dict(errors)


def _choices(known: Sequence[str]) -> str:
    return f"try one of: {', '.join(known)}" if known else "there are none yet"
