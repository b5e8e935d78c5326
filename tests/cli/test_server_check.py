"""`vivace doctor --url`: a sound server passes, and each thing that can be wrong is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.cli.main import main
from vivace.serve.settings import ServeSettings

NAMES = ["live", "ready", "models", "voices", "speech", "events", "websocket", "bad request"]


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech()


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"), api_keys=("secret",))
    with running(settings, backend.load) as opened:
        yield opened


def check(
    server: Running, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, dict[str, dict[str, object]]]:
    code = main(["doctor", "--url", server.url, "--json", *more])
    found: dict[str, dict[str, object]] = json.loads(capsys.readouterr().out)["checks"]
    return code, found


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVACE_API_KEY", "secret,another")


def test_a_sound_server_passes_every_check(
    server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = check(server, capsys)
    assert {name: one["ok"] for name, one in found.items()} == dict.fromkeys(NAMES, True), found
    assert code == 0
    assert "times real time" in str(found["speech"]["note"])


def test_the_table_has_a_line_for_each_check_and_a_verdict(
    server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--url", f"{server.url}/"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[8:20].strip() for line in lines[:-1]] == NAMES
    assert lines[-1] == "all is well"


def test_nobody_who_answers_is_one_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", "http://127.0.0.1:1", "--timeout", "5"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAILED  live")
    assert lines[1:] == ["1 of 1 checks failed"]


def test_what_is_no_address_is_an_error_of_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", "localhost:8000"]) == 1
    assert "http://HOST:PORT" in capsys.readouterr().err


def failed(found: dict[str, dict[str, object]]) -> list[str]:
    return [name for name, one in found.items() if not one["ok"]]


def test_a_wrong_key_fails_what_needs_one(
    server: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVACE_API_KEY", "wrong")
    code, found = check(server, capsys)
    assert (code, failed(found)) == (1, NAMES[2:])


def test_an_unknown_voice_fails_the_speech(
    server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = check(server, capsys, "--voice", "nobody")
    assert failed(found) == ["speech", "events", "websocket"]
    assert "nobody" in str(found["speech"]["note"])


def test_silence_and_speech_that_breaks_off_are_found(
    server: Running, backend: ScriptedSpeech, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(backend, "default", Plan(fails_at=9))
    _, found = check(server, capsys)
    assert failed(found) == ["speech", "events", "websocket"]
    monkeypatch.setattr(backend, "default", Plan())
    render = backend.render
    monkeypatch.setattr(
        backend, "render", lambda slots, frames: [0 * one for one in render(slots, frames)]
    )
    _, found = check(server, capsys)
    assert failed(found) == ["speech", "events", "websocket"]


class Changed:
    """The application, with some answers replaced."""

    def __init__(self, app: ASGIApp, answers: dict[str, tuple[int, bytes]]) -> None:
        self.app, self.answers = app, answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in self.answers:
            await self.app(scope, receive, send)
            return
        status, body = self.answers[scope["path"]]
        start: Message = {"type": "http.response.start", "status": status, "headers": []}
        await send(start)
        await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize(
    ("path", "answer", "names"),
    [
        ("/health/ready", (503, b'{"status": "loading"}'), ["ready"]),
        ("/v1/models", (200, b'{"data": []}'), ["models"]),
        ("/v1/audio/voices", (200, b"<html>"), ["voices"]),
        ("/v1/audio/speech", (400, b'{"detail": "no"}'), ["speech", "events", "bad request"]),
        ("/v1/audio/speech", (200, b""), ["speech", "events", "bad request"]),
    ],
)
def test_a_server_that_answers_wrongly_is_found_out(
    server: Running,
    capsys: pytest.CaptureFixture[str],
    path: str,
    answer: tuple[int, bytes],
    names: list[str],
) -> None:
    config = server.server._config
    app = config.loaded_app
    config.loaded_app = Changed(app, {path: answer})
    try:
        code, found = check(server, capsys)
    finally:
        config.loaded_app = app
    assert (code, failed(found)) == (1, names)


def test_without_an_address_it_examines_the_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor"]) == 0
    assert "auto picks" in capsys.readouterr().out
