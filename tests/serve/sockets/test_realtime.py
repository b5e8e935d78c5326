"""`/v1/realtime`: the events of Open WebUI 0.12.4 and of the OpenAI package."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import Message, SocketClient, connected, types, wait_until
from vivace.serve.settings import ServeSettings

PATH = "/v1/realtime?model=gpt-realtime-2.1-mini"
NUM_BYTES = 10 * 3_840
PROMPT = "You are a text-to-speech renderer. Read the supplied text aloud faithfully."


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech(default=Plan(10), step_s=0.005)


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"), api_keys=("secret",))
    with running(settings, backend.load) as server:
        yield server


@pytest.fixture
def talk(server: Running) -> Iterator[SocketClient]:
    headers = {"Authorization": "Bearer secret"}
    with connected(server, PATH, additional_headers=headers) as talk:
        talk.until("session.created")
        yield talk


def update(talk: SocketClient, **output: Any) -> None:
    """Send the same message as Open WebUI."""
    session = {
        "type": "realtime",
        "output_modalities": ["audio"],
        "audio": {
            "input": {"turn_detection": None, "transcription": None},
            "output": {"format": {"type": "audio/pcm", "rate": 24_000}, **output},
        },
        "tools": [],
        "tool_choice": "none",
        "instructions": PROMPT,
    }
    talk.send("session.update", session=session)


def create(talk: SocketClient, text: str) -> None:
    """Send the same message as Open WebUI."""
    content = [{"type": "input_text", "text": text}]
    response = {
        "conversation": "none",
        "output_modalities": ["audio"],
        "tools": [],
        "tool_choice": "none",
        "instructions": PROMPT,
        "input": [{"type": "message", "role": "user", "content": content}],
    }
    talk.send("response.create", response=response)


def audio_of(messages: list[Message], response_id: str) -> bytes:
    """The audio that Open WebUI plays."""
    deltas = [
        message["delta"]
        for message in messages
        if isinstance(message, dict)
        and message["type"] == "response.output_audio.delta"
        and message["response_id"] == response_id
    ]
    return b"".join(base64.b64decode(delta, validate=True) for delta in deltas)


def last(messages: list[Message]) -> dict[str, Any]:
    assert isinstance(messages[-1], dict)
    return messages[-1]


def test_open_webui_messages_return_audio(talk: SocketClient) -> None:
    update(talk, voice="alloy")
    session = last(talk.until("session.updated"))["session"]
    assert session["audio"]["output"]["voice"] == "alloy"
    create(talk, "Hello.")
    response = last(talk.until("response.created"))["response"]
    messages = talk.until("response.done")
    assert len(audio_of(messages, response["id"])) == NUM_BYTES
    assert last(messages)["response"]["id"] == response["id"]
    assert last(messages)["response"]["status"] == "completed"


def test_response_events_have_openais_order(talk: SocketClient) -> None:
    create(talk, "Hello.")
    events = [kind for kind in types(talk.until("response.done")) if "delta" not in kind]
    assert events == [
        "response.created",
        "response.output_item.added",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.output_item.done",
        "response.done",
    ]


def test_usage_lists_letters_that_the_checkpoint_does_not_read(talk: SocketClient) -> None:
    usages = []
    for text in ("The name is Мама, they say.", "The name is Mama."):
        create(talk, text)
        usages.append(last(talk.until("response.done"))["response"]["usage"])
    assert usages[0]["skipped"] == ["Мама"]
    assert "skipped" not in usages[1]


def test_connection_supports_several_responses(talk: SocketClient) -> None:
    for text in ("One.", "Two."):
        create(talk, text)
        assert last(talk.until("response.done"))["response"]["status"] == "completed"


def test_conversation_items_are_spoken_once(talk: SocketClient, backend: ScriptedSpeech) -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}
    talk.send("conversation.item.create", item=item)
    talk.until("conversation.item.done")
    talk.send("response.create")
    assert last(talk.until("response.done"))["response"]["status"] == "completed"
    talk.send("response.create")
    assert last(talk.until("error"))["error"]["code"] == "empty_input"


def test_response_cancel_stops_the_speech(
    talk: SocketClient, server: Running, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "default", Plan(6_000))
    create(talk, "Hello.")
    talk.until("response.output_audio.delta")
    talk.send("response.cancel")
    assert last(talk.until("response.done"))["response"]["status"] == "cancelled"
    wait_until(lambda: server.context.streams.num_active == 0)
    monkeypatch.undo()
    create(talk, "Hello.")
    assert last(talk.until("response.done"))["response"]["status"] == "completed"


def test_second_active_response_is_refused(
    talk: SocketClient, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "default", Plan(6_000))
    create(talk, "Hello.")
    talk.until("response.created")
    create(talk, "Hello.")
    error = last(talk.until("error"))["error"]
    assert error["code"] == "conversation_already_has_active_response"
    talk.send("response.cancel", response_id="resp_of_another")
    error = last(talk.until("error"))["error"]
    assert (error["code"], error["param"]) == ("response_cancel_not_active", "response_id")
    assert "'resp_of_another'" in error["message"]


def test_failed_response_has_status_failed(
    talk: SocketClient, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "default", Plan(50, fails_at=25))
    create(talk, "Hello.")
    response = last(talk.until("response.done"))["response"]
    assert response["status"] == "failed"
    assert response["status_details"]["error"]["message"]


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"type": "response.cancel"}, "response_cancel_not_active"),
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "no_audio_input"),
        ({"type": "response.create"}, "empty_input"),
        ({"type": "nonsense"}, "unknown_event"),
        ({"type": "response.create", "response": {"input": "text"}}, None),
        ({"type": "response.create", "response": {"input": [{"content": "text"}]}}, None),
        ({"type": "response.create", "response": []}, None),
        ({"type": "session.update", "session": {"voice": "nobody"}}, "voice_not_found"),
        ({"type": "session.update", "session": {"voice": 1}}, None),
        ({"type": "session.update", "session": {"audio": {"output": {"speed": "fast"}}}}, None),
        ({"type": "session.update", "session": {"audio": {"output": {"format": 1}}}}, None),
        ({"type": "conversation.item.create", "item": {"content": [{"type": "image"}]}}, None),
    ],
)
def test_unsupported_event_returns_error_with_its_event_id(
    talk: SocketClient, event: dict[str, Any], code: str | None
) -> None:
    talk.send(event_id="event_of_mine", **event)
    error = last(talk.until("error"))["error"]
    assert error["event_id"] == "event_of_mine"
    assert code in (None, error["code"])
    create(talk, "Hello.")
    assert last(talk.until("response.done"))["response"]["status"] == "completed"


def test_api_key_as_subprotocol_is_accepted(server: Running) -> None:
    offered = ["realtime", "openai-insecure-api-key.secret", "openai-beta.realtime-v1"]
    with connected(server, PATH, subprotocols=offered) as talk:
        assert talk.socket.subprotocol == "realtime"
        talk.until("session.created")


@pytest.mark.filterwarnings("ignore:connect")  # raised inside the package
def test_openai_client_receives_speech(server: Running) -> None:
    client = OpenAI(
        api_key="secret",
        base_url=f"{server.url}/v1",
        websocket_base_url=f"ws{server.url.removeprefix('http')}/v1",
    )
    pcm = b""
    with client, client.realtime.connect(model="gpt-realtime") as connection:
        connection.session.update(
            session={"type": "realtime", "audio": {"output": {"voice": "marin"}}}
        )
        connection.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Hello."}],
            }
        )
        connection.response.create()
        for event in connection:
            assert event.type != "error"
            if event.type == "response.output_audio.delta":
                pcm += base64.b64decode(event.delta)
            if event.type == "response.done":
                assert event.response.status == "completed"
                break
    assert len(pcm) == NUM_BYTES
