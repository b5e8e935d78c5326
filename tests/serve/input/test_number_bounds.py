"""Every number of a speech request, at its bounds and beyond, over HTTP and over a socket."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import connected
from vivace.serve.settings import ServeSettings
from vivace.serve.speaking.request import SpeechRequest
from vivace.speech import BOUNDS, Bounds

PATH = "/v1/audio/speech"
OPTIONS = {"max_new_tokens": "max_frames"}  # field names that differ in SamplingParams
# Other fields that a field needs at its bounds: opus supports not every bit rate.
BESIDE: dict[str, dict[str, Any]] = {"bit_rate": {"response_format": "mp3"}}


def find_numbers() -> dict[str, tuple[float, float, bool]]:
    """The smallest and the largest value of every number, and whether it is whole."""
    found = {}
    for name, field in SpeechRequest.model_json_schema()["properties"].items():
        for kind in field.get("anyOf", [field]):
            if kind.get("type") in ("integer", "number"):
                found[name] = (kind["minimum"], kind["maximum"], kind["type"] == "integer")
    return found


NUMBERS = find_numbers()


def beyond(name: str) -> list[float]:
    low, high, is_whole = NUMBERS[name]
    if is_whole:
        return [low - 1, high + 1, -(10**18), 10**18 * 10]
    values = [math.nextafter(low, -1), math.nextafter(high, math.inf), -1.0, 1e30, 1e300]
    bounds = BOUNDS.get(name)
    if bounds is not None and bounds.zero is not None:
        values.append(math.nextafter(bounds.low, 0))
    if bounds is None or bounds.low > 0:
        values += [1e-40, 5e-324]
    return values


def at_bounds(name: str) -> list[float]:
    bounds = BOUNDS.get(OPTIONS.get(name, name))
    return [*NUMBERS[name][:2], *([] if bounds is None else [bounds.low])]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices = tmp_path_factory.mktemp("voices")
    backend = ScriptedSpeech(default=Plan(3))
    with running(ServeSettings(port=0, voices=voices), backend.load) as server:
        yield server


def test_schema_bounds_every_number_of_a_request() -> None:
    sampling = {"seed", "max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty"}
    assert NUMBERS.keys() == sampling | {"speed", "sample_rate", "bit_rate"}
    for name in sampling:
        bounds = BOUNDS[OPTIONS.get(name, name)]
        least = bounds.low if bounds.zero is None else 0
        assert NUMBERS[name][:2] == (least, bounds.high)


@pytest.mark.parametrize("name", NUMBERS)
def test_number_at_its_bounds_is_served_over_http(client: httpx.Client, name: str) -> None:
    for value in at_bounds(name):
        body = {"input": "Hello.", "response_format": "wav", **BESIDE.get(name, {}), name: value}
        answer = client.post(PATH, json=body)
        assert answer.status_code == 200, (value, answer.text)
        assert len(answer.content) > 44


@pytest.mark.parametrize("name", NUMBERS)
def test_number_beyond_its_bounds_is_refused_over_http(client: httpx.Client, name: str) -> None:
    bounds = BOUNDS.get(OPTIONS.get(name, name)) or Bounds(*NUMBERS[name][:2])
    for value in beyond(name):
        answer = client.post(PATH, json={"input": "Hello.", name: value})
        assert answer.status_code == 400, (value, answer.text)
        error = answer.json()["error"]
        assert error["param"] == name
        assert f"{name}: must be {bounds}, not " in error["message"]


@pytest.mark.parametrize("name", NUMBERS)
def test_number_at_its_bounds_is_served_over_a_socket(server: Running, name: str) -> None:
    for value in at_bounds(name):
        with connected(server) as talk:
            talk.send("session.config", **{**BESIDE.get(name, {}), name: value})
            messages = talk.speak("Hello.")
        assert any(isinstance(message, bytes) for message in messages), (value, messages)


@pytest.mark.parametrize("name", NUMBERS)
def test_number_beyond_its_bounds_is_refused_over_a_socket(server: Running, name: str) -> None:
    with connected(server) as talk:
        for value in beyond(name):
            talk.send("session.config", **{name: value})
            error = talk.read()
            assert isinstance(error, dict)
            assert (error["type"], error.get("param")) == ("error", name), value


# -- the numbers of other protocols --------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "is_served"),
    [
        ({"voice_settings": {"speed": 0.25}}, True),
        ({"voice_settings": {"speed": 4}}, True),
        ({"voice_settings": {"speed": 0.24}}, False),
        ({"voice_settings": {"speed": 4.01}}, False),
        ({"voice_settings": {"speed": 1e-40}}, False),
        ({"seed": 0}, True),
        ({"seed": BOUNDS["seed"].high}, True),
        ({"seed": -1}, False),
        ({"seed": BOUNDS["seed"].high + 1}, False),
    ],
)
def test_numbers_of_elevenlabs_have_the_same_bounds(
    server: Running, client: httpx.Client, fields: dict[str, Any], is_served: bool
) -> None:
    path = "/v1/text-to-speech/alloy"
    answer = client.post(path, json={"text": "Hello.", **fields})
    assert answer.status_code == (200 if is_served else 400)
    with connected(server, f"{path}/stream-input?output_format=pcm_24000") as talk:
        talk.send(text=" ", **fields)
        talk.send(text="Hello. ")
        talk.send(text="")
        messages, code = talk.until_closed()
    assert code == (1000 if is_served else 1008)
    assert any("audio" in message for message in messages if isinstance(message, dict)) == is_served


@pytest.mark.parametrize("seed", ["-1", "9223372036854775808", "1" * 30, "0x1", "1.5", "²"])
def test_seed_of_a_query_beyond_its_bounds_is_refused(client: httpx.Client, seed: str) -> None:
    path = "/v1/text-to-speech/alloy"
    answer = client.post(path, params={"seed": seed}, json={"text": "Hello."})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "seed"


@pytest.mark.parametrize(
    ("seconds", "is_served"), [("1", True), ("3600", True), ("0", False), ("3601", False)]
)
def test_inactivity_timeout_at_its_bounds_is_taken_and_beyond_them_refused(
    server: Running, seconds: str, is_served: bool
) -> None:
    query = f"output_format=pcm_24000&inactivity_timeout={seconds}"
    with connected(server, f"/v1/text-to-speech/alloy/stream-input?{query}") as talk:
        talk.send(text="Hello. ")
        talk.send(text="")
        assert talk.until_closed()[1] == (1000 if is_served else 1008)


@pytest.mark.parametrize(
    ("speed", "is_taken"), [(0.25, True), (4, True), (0.2, False), (4.1, False), (1e-40, False)]
)
def test_speed_of_a_realtime_session_has_the_same_bounds(
    server: Running, speed: float, is_taken: bool
) -> None:
    with connected(server, "/v1/realtime") as talk:
        talk.until("session.created")
        talk.send("session.update", session={"audio": {"output": {"speed": speed}}})
        answer = talk.read()
    assert isinstance(answer, dict)
    assert answer["type"] == ("session.updated" if is_taken else "error")
