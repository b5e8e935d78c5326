"""The exceptions of Vivace.

TTSError
├── RequestError (ValueError)        the request cannot be fulfilled
│   ├── UnknownVoiceError
│   ├── UnknownLanguageError
│   ├── UnsupportedRequestError      the loaded checkpoint is of another type or language
│   ├── VoiceMismatchError           the voice was made for another model
│   ├── VoiceFileError               a voice file cannot be read or written
│   ├── TextError                    the text itself cannot be spoken
│   │   ├── TextTooLongError
│   │   └── UnsupportedTextError     the loaded checkpoint cannot read its letters
│   ├── LexiconError                 a lexicon cannot be read
│   ├── TrainingDataError            recordings or settings that cannot be trained on
│   └── RefusedError                 the server's, with an HTTP status (serve/errors.py)
├── CheckpointError                  the model's files are missing or invalid
│   └── AdapterError                 an adapter is damaged or belongs to another checkpoint
├── VoiceStoreError (RuntimeError)   the store of a shared voice library is unreachable
├── AudioError (ValueError)          audio cannot be read or written
│   └── OutputExistsError (FileExistsError)   the output file exists
├── BackendError (RuntimeError)      the backend failed
│   ├── BackendUnavailableError      this backend cannot run on this machine
│   ├── BackendFullError             no memory is free for a prompt
│   └── NumericError                 a slot has non-finite numbers
├── IntegrationError (ImportError)   a framework is missing or has an untested version
└── EngineError (RuntimeError)       the engine rejected or stopped a request
    ├── ClosedError                  the TTS was closed
    ├── EngineLostError              a server cannot reload its model in this process
    ├── QueueFullError               the queue is full
    ├── StreamClosedError            the stream was closed before its end
    ├── ServerError                  a remote server failed or is unreachable
    ├── RunawayError                 speech did not end by itself, twice
    └── BatchError                   some texts of a batch failed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class TTSError(Exception):
    """Base class of all exceptions of Vivace."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message and the attributes. `Exception` would call `__init__` with `args`."""
        return _unpickle, (type(self), self.args), self.__dict__


def _unpickle(kind: type[TTSError], arguments: tuple[Any, ...]) -> TTSError:
    base: Any = kind.__base__  # whose `__new__` fits, such as FileExistsError
    error: TTSError = base.__new__(kind)
    error.args = arguments
    return error


class RequestError(TTSError, ValueError):
    """The request cannot be fulfilled."""


class UnknownVoiceError(RequestError):
    """The requested voice does not exist."""

    def __init__(self, name: str, known: Sequence[str], *others: str) -> None:
        names = ", ".join(map(repr, (name, *others)))
        super().__init__(f"no voice{'s' * bool(others)} named {names}; {_choices(known)}")


class UnknownLanguageError(RequestError):
    """The loaded model does not support the language."""

    def __init__(self, language: str, known: Sequence[str], served_by: str | None = None) -> None:
        hint = f", or load {served_by}" if served_by else ""
        super().__init__(f"no language named {language!r}; {_choices(known)}{hint}")


class UnsupportedRequestError(RequestError):
    """The type or the languages of the loaded checkpoint do not support the request."""


class VoiceMismatchError(RequestError):
    """The voice was made for a model of another width or family."""


class VoiceFileError(RequestError):
    """A voice file is missing, damaged, of another format, or cannot be written."""


class TextError(RequestError):
    """The text cannot be spoken: it has no words or invalid content."""


class UnsupportedTextError(TextError, UnsupportedRequestError):
    """The text has letters of a language that the loaded checkpoint does not read."""


class TextTooLongError(TextError):
    """The text does not fit in one utterance."""

    def __init__(self, length: int, limit: int, unit: str) -> None:
        super().__init__(
            f"the text has {length:,} {unit} and the limit is {limit:,}; split it into parts"
        )


class LexiconError(RequestError):
    """A lexicon cannot be read. The message names the file, the line and the reason."""


class TrainingDataError(RequestError):
    """The recordings or the settings of a fine-tuning run cannot be used."""


class CheckpointError(TTSError):
    """The model's files are missing, damaged or of another kind."""


class AdapterError(CheckpointError):
    """An adapter is missing, damaged, or belongs to another checkpoint."""


class VoiceStoreError(TTSError, RuntimeError):
    """The store of a shared voice library cannot be read or written at the moment."""


class AudioError(TTSError, ValueError):
    """Audio cannot be read, written or used as a reference."""


class OutputExistsError(AudioError, FileExistsError):
    """The file to write exists and may not be overwritten."""

    def __init__(self, path: object, option: str = "overwrite=True") -> None:
        """`option` names the option that allows overwriting."""
        super().__init__(f"{path} exists; choose another name, or overwrite it with {option}")


class BackendError(TTSError, RuntimeError):
    """The backend that runs the model failed."""


class BackendUnavailableError(BackendError):
    """This backend cannot run on this machine. The message gives the reason."""


class BackendFullError(BackendError):
    """No memory is free for a prompt. Admit it again after another slot is released."""

    def __init__(self, num_pages: int, most: int, num_free: int, size: int) -> None:
        super().__init__(
            f"the prompt needs {num_pages} pages of keys, up to {most} later, and {num_free} of "
            f"{size} are free; release a slot first"
        )


class NumericError(BackendError):
    """A request produced non-finite numbers. Other requests are unaffected."""


class IntegrationError(TTSError, ImportError):
    """A framework is missing, has an untested major version, or was imported too early."""


class EngineError(TTSError, RuntimeError):
    """The engine rejected or stopped a request."""


class EngineLostError(EngineError):
    """A server cannot reload a model. `needs_process`: a new process may succeed."""

    def __init__(self, message: str, *, needs_process: bool = False) -> None:
        super().__init__(message)
        self.needs_process = needs_process


class ClosedError(EngineError):
    """The TTS was closed and can no longer speak."""


MIN_RETRY_S = 0.1  # shortest retry time of a refused request


class QueueFullError(EngineError):
    """The queue is full. Retry after `retry_s` seconds."""

    def __init__(self, num_waiting: int, retry_s: float, num_held: int | None = None) -> None:
        """`num_held` slots belong to streams that are neither read nor closed."""
        if num_held is None:
            message = (
                "all slots are taken and the queue is full "
                f"({counted(num_waiting, 'request')}); try again in {retry_s:.1f} s, or allow more "
                "with max_streams or max_queue"
            )
        else:
            message = (
                f"no slot became free in {retry_s:.1f} s: all are held by "
                f"{counted(num_held, 'stream')} without a reader; read or close those, or allow "
                "more with max_streams"
            )
        super().__init__(message)
        self.retry_s = retry_s


class StreamClosedError(EngineError):
    """The stream was closed before its end."""


class ServerError(EngineError):
    """A remote server failed or is unreachable. Retry after `retry_s` seconds."""

    def __init__(self, message: str, retry_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class RunawayError(EngineError):
    """Speech did not end by itself, nor did a second attempt."""


class BatchError(EngineError):
    """Some texts of a batch failed: `errors` by index, and `audios` of the others."""

    def __init__(self, audios: Sequence[Any], errors: Mapping[int, Exception]) -> None:
        first, reason = next(iter(errors.items()))
        super().__init__(
            f"{len(errors)} of {len(audios)} texts failed; text {first} of the batch: {reason} "
            "(the other audios are in .audios, all errors in .errors)"
        )
        self.audios, self.errors = list(audios), dict(errors)


def counted(number: int, noun: str) -> str:
    """`1 stream`, `2 streams`, `1,000 words`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def install_command(extra: str) -> str:
    """The command in a message about a missing package. Vivace is not on PyPI yet."""
    return f"pip install '.[{extra}]'"


def _choices(known: Sequence[str]) -> str:
    return f"try one of: {', '.join(known)}" if known else "there are none yet"
