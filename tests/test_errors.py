"""`vivace.errors`: exceptions can be pickled, so that a process pool can return them."""

from __future__ import annotations

import pickle

import pytest

from vivace.errors import (
    BackendFullError,
    BatchError,
    EngineLostError,
    IntegrationError,
    OutputExistsError,
    QueueFullError,
    RequestError,
    ServerError,
    TextTooLongError,
    TTSError,
    UnknownLanguageError,
    UnknownVoiceError,
    UnsupportedTextError,
)

ERRORS = [
    RequestError("the text is empty"),
    UnknownVoiceError("ada", ["heart"]),
    UnknownLanguageError("xx", ["english"], "a model"),
    TextTooLongError(5, 3, "characters"),
    OutputExistsError("speech.wav"),
    BackendFullError(4, 8, 2, 16),
    QueueFullError(3, 1.5),
    QueueFullError(3, 1.5, num_held=2),
    ServerError("the server is busy", 2.0),
    EngineLostError("no GPU", needs_process=True),
    IntegrationError("pipecat is missing"),
    UnsupportedTextError("the text has the letter 'x'"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_pickled_error_keeps_type_message_and_attributes(error: TTSError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.args, vars(copy)) == (str(error), error.args, vars(error))


def test_pickled_batch_error_keeps_the_errors_of_its_texts() -> None:
    copy = pickle.loads(pickle.dumps(BatchError([None, "audio"], {0: UnknownVoiceError("a", [])})))
    assert copy.audios == [None, "audio"]
    assert isinstance(copy.errors[0], UnknownVoiceError)
