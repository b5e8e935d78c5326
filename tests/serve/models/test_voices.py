"""Voices over HTTP: cloned, designed, spoken and deleted."""

from __future__ import annotations

import base64
import io
import json
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.support.serving import Running, running
from vivace.cli.serve import say_ready
from vivace.cli.server_messages import ServerMessages
from vivace.serve.models.voices import OPENAI_NAMES, SPEAKERS
from vivace.serve.settings import ModelSpec, ServeSettings
from vivace.voices.voice import Voice

RATE = 24_000


def encode(samples: np.ndarray, **kind: str) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, RATE, **({"format": "WAV"} | kind))
    return buffer.getvalue()


def recording(seconds: float = 1.5) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 0.1, int(RATE * seconds)).astype(np.float32)


WAV = encode(recording())
SILENCE = encode(np.zeros(2 * RATE, np.float32))
BOMB = encode(np.zeros(400 * RATE, np.float32), format="FLAC")  # 38 MB of samples in a few kB


@pytest.fixture(scope="module")
def server(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model of every type, by name. The name of the Base model contains slashes."""
    specs = {"presets": "custom_voice", "Org/tiny/base": "base", "design": "voice_design"}
    models = tuple(ModelSpec(name, str(tiny_folder / of)) for name, of in specs.items())
    voices = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, models=models, voices=voices, device="cpu")) as server:
        yield server


def create(client: httpx.Client, name: str, audio: Any = WAV, **fields: Any) -> httpx.Response:
    files = {"audio_sample": ("me.wav", audio, "audio/wav")}
    return client.post("/v1/audio/voices", files=files, data={"name": name, **fields})


def speak(client: httpx.Client, **fields: Any) -> httpx.Response:
    body = {"input": "Hi.", "response_format": "pcm", "max_new_tokens": 5, "model": "tts-1"}
    return client.post("/v1/audio/speech", json=body | fields)


def ids(client: httpx.Client, **query: str) -> set[str]:
    return {voice["id"] for voice in client.get("/v1/audio/voices", params=query).json()["voices"]}


def test_model_names_with_slashes_are_found(client: httpx.Client) -> None:
    models = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
    assert list(models) == ["presets", "Org/tiny/base", "design"]
    for path in ("Org/tiny/base", "Org%2Ftiny%2Fbase"):
        shown = client.get(f"/v1/models/{path}").json()
        assert shown == models["Org/tiny/base"]
    assert shown["type"] == "base"
    assert shown["capabilities"]["clone"] is None
    assert "Base" in models["presets"]["capabilities"]["clone"]
    assert models["design"]["capabilities"]["design"] is None


def test_cloned_voice_is_listed_spoken_and_deleted(client: httpx.Client) -> None:
    made = create(client, "My Voice", transcript="Some words.", consent="cons_1", language="en")
    assert made.status_code == 200
    assert made.json() | {"id": "my-voice", "name": "my-voice", "object": "audio.voice"} == (
        made.json()
    )
    assert "my-voice" in ids(client)
    listed = client.get("/v1/audio/voices/my-voice").json()
    assert (listed["consent"], listed["licence"]) == ("cons_1", None)
    assert made.json() | {"created_at": 0} == listed | {"created_at": 0}
    for shown in (made.json(), listed):
        assert abs(shown["created_at"] - time.time()) < 3_600  # seconds, not days
    assert "my-voice" in ids(client, model="Org/tiny/base")
    assert "my-voice" not in ids(client, model="presets")
    assert client.get("/v1/audio/voices/my-voice").json()["model"] == "Org/tiny/base"
    for model in (
        "tts-1",
        "Org/tiny/base",
    ):  # unknown model name: the model that has the voice speaks
        assert speak(client, voice="my-voice", model=model).status_code == 200
    assert speak(client, voice={"id": "MY-VOICE"}).status_code == 200
    unknown = speak(client, voice="my-voice", model="presets")
    assert unknown.status_code == 400
    assert client.delete("/v1/audio/voices/my-voice").json()["deleted"] is True
    assert client.delete("/v1/audio/voices/my-voice").status_code == 404
    assert speak(client, voice="my-voice").status_code == 400


@pytest.mark.parametrize(
    ("field", "num_chars"),
    [("transcript", 4_000), ("language", 200), ("consent", 200), ("licence", 200)],
)
def test_field_of_a_voice_at_its_limit_is_taken_and_beyond_it_refused(
    client: httpx.Client, field: str, num_chars: int
) -> None:
    made = create(client, "limit", **{field: "x" * num_chars})
    assert made.status_code == 200
    assert client.delete("/v1/audio/voices/limit").status_code == 200
    refused = create(client, "limit", **{field: "x" * (num_chars + 1)})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
    assert f"{num_chars} characters" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("instructions", "x" * 4_097),
        ("ref_text", "x" * 4_001),
        ("speaker_embedding", [0.1] * 8),
    ],
)
def test_speech_field_beyond_the_limit_of_a_clone_is_named(
    client: httpx.Client, field: str, value: object
) -> None:
    audio = {} if field == "speaker_embedding" else {"ref_audio": base64.b64encode(WAV).decode()}
    refused = speak(client, model="Org/tiny/base", **audio, **{field: value})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, field)
    assert error["message"].startswith(field)


def test_model_that_does_not_clone_is_named_in_the_error(client: httpx.Client) -> None:
    refused = create(client, "nobody", model="presets")
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "model")
    assert "Base model" in error["message"]


def test_recording_as_base64_in_json_is_accepted(client: httpx.Client) -> None:
    encoded = base64.b64encode(WAV).decode()
    lines = base64.encodebytes(WAV).decode()
    url_safe = base64.urlsafe_b64encode(WAV).decode().rstrip("=")
    given = {"plain": encoded, "uri": f"data:audio/wav;base64,{encoded}"}
    for name, audio in {**given, "lines": lines, "url-safe": url_safe}.items():
        body = {"name": name, "audio_sample": audio, "model": "anything"}
        assert client.post("/v1/audio/voices", json=body).status_code == 200
        assert client.delete(f"/v1/audio/voices/{name}").status_code == 200


@pytest.mark.parametrize(
    ("audio", "status", "words"),
    [
        (SILENCE, 400, "silent"),
        (BOMB, 400, "longer than"),
        (b"RIFF is a word, and this is text", 400, ""),
        (b"\x1aE\xdf\xa3 webm of a browser", 400, ""),
        (encode(recording(0.2)), 400, "0.20 s"),
        (encode(recording(31)), 400, "31.00 s"),
        (b"", 400, "empty"),
        (bytes(10 * 2**20 + 1), 413, "10,485,760 bytes"),
    ],
    ids=["silent", "bomb", "text", "webm", "short", "long", "empty", "large"],
)
def test_unusable_recording_is_refused(
    client: httpx.Client, audio: bytes, status: int, words: str
) -> None:
    answer = create(client, "refused", audio)
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True)
    assert answer.json()["error"]["param"] == "audio_sample"
    assert "refused" not in ids(client)


@pytest.mark.parametrize(
    "audio",
    ["/etc/passwd", "../x.wav", "file:///etc/passwd", "http://127.0.0.1/x.wav", "concat:a|b", "!"],
)
def test_path_or_url_as_recording_is_refused(client: httpx.Client, audio: str) -> None:
    answer = client.post("/v1/audio/voices", json={"name": "refused", "audio_sample": audio})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_audio")
    answer = client.post("/v1/audio/voices", data={"name": "x", "audio_sample": audio}, files={})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "name", ["../x", "..", "a/b", "a\\b", ".hidden", "x" * 65, "ü", " ", "con", "x.wav", "a%00"]
)
def test_invalid_voice_name_is_refused(client: httpx.Client, server: Running, name: str) -> None:
    answer = create(client, name)
    assert answer.status_code == 400, name
    folder = server.context.settings.voices
    assert isinstance(folder, Path)
    assert not [*folder.rglob("*"), *folder.parent.glob("*.safetensors")]


def test_existing_voice_name_is_refused(client: httpx.Client) -> None:
    for name in ("vivian", "alloy"):  # a preset here, and an alias everywhere
        assert create(client, name).status_code == 409
    assert create(client, "taken").status_code == 200
    assert create(client, "Taken").status_code == 409
    client.delete("/v1/audio/voices/taken")


def test_concurrent_creations_of_one_name_succeed_once(server: Running) -> None:
    def post(_: int) -> int:
        with httpx.Client(base_url=server.url, timeout=60.0) as client:
            return create(client, "race").status_code

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(post, range(4))) == [200, 409, 409, 409]
    httpx.delete(f"{server.url}/v1/audio/voices/race")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "x"},
        {"name": 1, "audio_sample": "aaaa"},
        {"name": "x", "audio_sample": 5},
        {"name": "x", "audio_sample": ["a"]},
        {"name": "x", "type": "prompt"},
        {"name": "x", "type": "prompt", "prompt": " "},
        {"name": "x", "type": "prompt", "prompt": "a" * 2_001},
        {"name": "x", "type": "other", "prompt": "a"},
        {"name": "x", "prompt": "a", "model": "presets"},
        {"name": "x", "prompt": "a", "model": 7},
        {"name": None, "prompt": "a"},
    ],
)
def test_incomplete_request_returns_400(client: httpx.Client, body: Any) -> None:
    answer = client.post("/v1/audio/voices", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_form_beyond_its_limits_is_refused(client: httpx.Client) -> None:
    files = [("audio_sample", ("a.wav", WAV)), ("audio_sample", ("b.wav", WAV))]
    assert client.post("/v1/audio/voices", data={"name": "x"}, files=files).status_code == 400
    fields = {f"field{number}": "x" for number in range(50)}
    assert create(client, "x", **fields).status_code == 400
    assert create(client, "x", transcript="a" * 70_000).status_code == 400
    broken = {"content-type": "multipart/form-data; boundary=x"}
    for content in (b"", b"--y", b"--x\r\n\r\n", b"--x\r\nContent-Disposition: form-data\r\n\r\n1"):
        answer = client.post("/v1/audio/voices", content=content, headers=broken)
        assert answer.status_code == 400
    unbounded = {"content-type": "multipart/form-data"}
    assert client.post("/v1/audio/voices", content=b"x", headers=unbounded).status_code == 400


def test_designed_voice_is_cloned_by_a_base_model(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vivace.serve.routes.enrol.SAMPLE_FRAMES", 15
    )  # these weights never draw the end of speech
    body = {"name": "granny", "type": "prompt", "prompt": "A warm old lady.", "script_hint": "Hi"}
    made = client.post("/v1/audio/voices", json=body)
    assert (made.status_code, made.json()["type"]) == (200, "prompt")
    assert made.json()["model"] == "Org/tiny/base"
    assert made.json()["prompt"] == "A warm old lady."
    listed = client.get("/v1/audio/voices/granny").json()
    listed.pop("created_at")
    assert listed.items() <= made.json().items()  # still listed as designed
    for model in ("tts-1", "Org/tiny/base", "design"):
        assert speak(client, voice="granny", model=model).status_code == 200
    assert client.delete("/v1/audio/voices/granny").status_code == 200
    assert "granny" not in ids(client)
    for model in ("Org/tiny/base", "design"):
        assert speak(client, voice="granny", model=model).status_code == 400


def test_sample_that_cannot_be_cloned_stores_the_description(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivace.serve.routes.enrol.SAMPLE_FRAMES", 3)  # a quarter of a second
    made = client.post("/v1/audio/voices", json={"name": "brief", "prompt": "A hasty man."})
    assert (made.status_code, made.json()["model"]) == (200, "design")
    shown = client.get("/v1/audio/voices/brief").json()
    assert (shown["type"], shown["model"]) == ("prompt", "design")
    assert speak(client, voice="brief").status_code == 200
    assert client.delete("/v1/audio/voices/brief").status_code == 200


def test_designed_voice_without_a_base_model_stores_the_description(
    tiny_folder: Path, tmp_path: Path
) -> None:
    models = (ModelSpec("design", str(tiny_folder / "voice_design")),)
    settings = ServeSettings(port=0, models=models, voices=tmp_path, device="cpu")
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=60.0) as client:
        body = {"name": "granny", "prompt": "A warm old lady.", "language": "English"}
        made = client.post("/v1/audio/voices", json=body)
        assert (made.status_code, made.json()["language"]) == (200, "English")
        assert client.get("/v1/audio/voices/granny").json()["language"] == "English"
        assert client.post("/v1/audio/voices", json=body).status_code == 409
        assert ids(client) == {"granny"}
        spoken = {
            voice: speak(client, voice=voice, seed=1).content
            for voice in ("granny", "alloy", "onyx")
        }
        assert len(set(spoken.values())) == 3  # the description reaches the model
        assert create(client, "me").status_code == 400
        assert client.delete("/v1/audio/voices/granny").status_code == 200
        assert ids(client) == set()


def test_preset_voice_cannot_be_deleted(client: httpx.Client) -> None:
    preset = next(iter(ids(client, model="presets")))
    refused = client.delete(f"/v1/audio/voices/{preset}")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "voice")
    for name in ("alloy", "..%2Fx", "%2e%2e", "nobody"):
        assert client.delete(f"/v1/audio/voices/{name}").status_code == 404


def test_openai_and_speaker_aliases_are_spoken(client: httpx.Client, server: Running) -> None:
    create(client, "me")
    for model in ("presets", "Org/tiny/base", "design"):
        voices = server.context.models.voices(model)
        assert voices is not None
        for name in (*OPENAI_NAMES, *SPEAKERS):
            chosen = voices.choose(name)
            assert chosen.voice or chosen.description
        assert speak(client, voice="cedar", model=model, max_new_tokens=1).status_code == 200
        listed = ids(client, model=model, aliases="true")
        assert {*OPENAI_NAMES, *SPEAKERS} <= {voice.lower() for voice in listed}
    client.delete("/v1/audio/voices/me")


def test_unknown_voice_error_lists_available_voices(client: httpx.Client) -> None:
    for model in ("presets", "tts-1"):
        answer = speak(client, voice="nobody", model=model)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "voice"
        for preset in ids(client, model="presets"):
            assert preset in answer.json()["error"]["message"]
    nothing = speak(client, voice="alloy", model="Org/tiny/base")  # before any voice was created
    assert nothing.status_code == 400
    assert "POST /v1/audio/voices" in nothing.json()["error"]["message"]


def test_mix_of_cloned_voices_is_spoken(client: httpx.Client, server: Running) -> None:
    create(client, "one")
    create(client, "two", encode(recording(2.0)[::-1]))
    voices = server.context.models.voices("Org/tiny/base")
    assert voices is not None
    one, two = (voices.choose(name).voice for name in ("one", "two"))
    mixed = voices.choose("One(3)+two").voice
    assert isinstance(one, Voice)
    assert isinstance(two, Voice)
    assert isinstance(mixed, Voice)
    np.testing.assert_allclose(mixed.speaker, (3 * one.speaker + two.speaker) / 4, rtol=1e-5)
    assert speak(client, voice="one+two").status_code == 200
    for voice in ("one+nobody", "one+", "+", "one(0)+two(0)", "+".join(["one"] * 9)):
        assert speak(client, voice=voice).status_code == 400
    preset = next(iter(ids(client, model="presets")))
    assert speak(client, voice=f"{preset}(2)+{preset}", model="presets").status_code == 200
    refused = speak(client, voice="vivian+ryan", model="presets")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_mix")
    for name in ("one", "two"):
        client.delete(f"/v1/audio/voices/{name}")


@pytest.mark.ci
def test_model_without_a_voice_is_not_the_default(tiny_folder: Path, tmp_path: Path) -> None:
    names = ("base", "custom_voice")
    models = tuple(ModelSpec(name, str(tiny_folder / name)) for name in names)
    settings = ServeSettings(port=0, models=models, voices=tmp_path, device="cpu")
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=60.0) as client:
        for voice in ("alloy", None):
            assert speak(client, voice=voice).status_code == 200
        assert speak(client, voice="alloy", model="base").status_code == 400
        create(client, "me")
        spoken = {
            model: speak(client, voice="alloy", model=model, seed=1).content
            for model in ("tts-1", "base")
        }
        assert spoken["tts-1"] == spoken["base"]  # now the first model has a voice


@pytest.mark.ci
def test_printed_start_command_works(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a model that only clones, the printed command creates a voice first."""
    models = (ModelSpec("it's", str(tiny_folder / "base")),)
    settings = ServeSettings(port=0, models=models, voices=tmp_path, api_keys=("k1", "k2"))
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=60.0) as client:
        say_ready(server.url, server.context, ServerMessages("text"))
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.endswith(
            '/v1/audio/voices -H "Authorization: Bearer '
            '${VIVACE_API_KEY%%,*}" -F name=me -F audio_sample=@me.wav'
        )
        client.headers["xi-api-key"] = "k2"
        create(client, "me")
        say_ready(server.url, server.context, ServerMessages("text"))
    words = shlex.split(capsys.readouterr().err.splitlines()[-1])
    assert words[1] == f"{server.url}/v1/audio/speech"
    assert json.loads(words[words.index("-d") + 1])["model"] == "it's"
