"""Tests of `vivace doctor --url` with healthy and faulty servers."""

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


def test_healthy_server_passes_all_checks(
    server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = check(server, capsys)
    assert {name: one["ok"] for name, one in found.items()} == dict.fromkeys(NAMES, True), found
    assert code == 0
    assert "times real time" in str(found["speech"]["note"])


def test_table_has_line_per_check_and_summary(
    server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--url", f"{server.url}/"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[8:20].strip() for line in lines[:-1]] == NAMES
    assert lines[-1] == "all 8 checks passed"


def test_unreachable_server_fails_one_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", "http://127.0.0.1:1", "--timeout", "5"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAILED  live")
    assert "no server listens at http://127.0.0.1:" in lines[0]
    assert lines[1:] == ["1 of 1 checks failed"]


def test_invalid_url_is_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", "localhost:8000"]) == 1
    assert "http://HOST:PORT" in capsys.readouterr().err


def failed(found: dict[str, dict[str, object]]) -> list[str]:
    return [name for name, one in found.items() if not one["ok"]]


def test_wrong_key_fails_checks_that_need_key(
    server: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVACE_API_KEY", "wrong")
    code, found = check(server, capsys)
    assert (code, failed(found)) == (1, NAMES[2:])


def test_unknown_voice_fails_speech_checks(
    server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = check(server, capsys, "--voice", "nobody")
    assert failed(found) == ["speech", "events", "websocket"]
    assert "nobody" in str(found["speech"]["note"])


def test_silent_or_incomplete_speech_fails_check(
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
    """The application with some responses replaced."""

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
def test_wrong_response_fails_check(
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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--voice", "heart", "--timeout=5"), "--voice, --timeout: no effect without --url"),
        (("--device", "cpu"), "--device: no effect without --model"),
        (("--url", "http://127.0.0.1:1", "--model", "mini"), "omit one of them"),
    ],
)
def test_option_without_effect_is_a_usage_error(
    given: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["doctor", *given])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_doctor_without_url_checks_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor"]) == 0
    assert "auto picks" in capsys.readouterr().out
