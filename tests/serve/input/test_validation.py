"""Errors of socket messages name the message, the field and the value."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from vivace.serve.errors import RefusedError
from vivace.serve.input.validation import read_message
from vivace.serve.routes.elevenlabs import SpeechQuery
from vivace.serve.sockets import omni, realtime
from vivace.serve.sockets.elevenlabs import TextMessage

REALTIME_SPEED = {"type": "session.update", "session": {"audio": {"output": {"speed": "fast"}}}}
REALTIME_FORMAT = {"type": "session.update", "session": {"audio": {"output": {"format": "mp3"}}}}
REALTIME_IMAGE = {"type": "conversation.item.create", "item": {"content": [{"type": "image"}]}}
MESSAGES: list[tuple[TypeAdapter[Any], dict[str, Any], str | None, str]] = [
    (omni.MESSAGES, {"type": "input.text", "text": 1}, "text", "text of input.text: "),
    (omni.MESSAGES, {"type": "input.text"}, "text", "text of input.text is missing"),
    (omni.MESSAGES, {"type": "input.done", "context_id": {}}, "context_id", "valid string, not {}"),
    (omni.MESSAGES, {"type": "session.config", "speed": 9}, "speed", "from 0.25 to 4, not 9"),
    (omni.MESSAGES, {"type": "session.config", "word_events": 1}, "word_events", "boolean, not 1"),
    (omni.MESSAGES, {"type": "input.audio"}, "type", "'input.audio' is unknown; try one of: 'sess"),
    (omni.MESSAGES, {"text": "Hello."}, "type", "type is missing"),
    (realtime.EVENTS, REALTIME_SPEED, "session.audio.output.speed", "valid number, not 'fast'"),
    (realtime.EVENTS, REALTIME_FORMAT, "session.audio.output.format", "'audio/pcm'"),
    (realtime.EVENTS, REALTIME_IMAGE, "item.content.0.type", "'output_text', not 'image'"),
    (
        realtime.EVENTS,
        {"type": "response.create", "response": []},
        "response",
        "an object, not []",
    ),
]


@pytest.mark.parametrize(("union", "message", "param", "words"), MESSAGES)
def test_message_error_names_the_field_and_its_value(
    union: TypeAdapter[Any], message: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(RefusedError) as error:
        read_message(union, message)
    assert error.value.param == param
    assert words in str(error.value)


def test_elevenlabs_message_takes_both_names_of_a_context_and_ignores_nulls() -> None:
    for name in ("context_id", "contextId"):
        read = TextMessage.read({"text": None, "flush": True, name: "a", "voice_settings": None})
        assert (read.text, read.flush, read.context_id) == (None, True, "a")
    with pytest.raises(RefusedError, match="flush: must be a valid boolean, not 'yes'"):
        TextMessage.read({"flush": "yes"})


def test_query_values_are_text_and_empty_ones_are_absent() -> None:
    query = SpeechQuery.read({"seed": "7", "sync_alignment": "true", "output_format": ""})
    assert (query.seed, query.sync_alignment, query.output_format) == (7, True, "mp3_44100_128")
    with pytest.raises(RefusedError, match=r"sync_alignment: .*not 'maybe'"):
        SpeechQuery.read({"sync_alignment": "maybe"})
    with pytest.raises(RefusedError, match="output_format 'midi' is not supported") as error:
        SpeechQuery.read({"output_format": "midi"})
    assert error.value.code == "invalid_output_format"
