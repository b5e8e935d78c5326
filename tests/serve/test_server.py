"""`vivace serve`: start-up messages, signals, drain and exit code."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.served_process import LIMIT_S, serve
from tests.support.serving import Running, running
from tests.support.websocket_client import finish_speech, unfinished_speech, wait_until
from vivace.cli.main import main
from vivace.cli.server_messages import ServerMessages
from vivace.serve.settings import ServeSettings

SECRET_TEXT = "Rutabaga is a word that no log shows."


def test_signal_finishes_running_streams_and_exits_with_0() -> None:
    with serve("--api-key-env=MY_KEY", MY_KEY="k3y-k3y") as served, httpx.Client() as client:
        url = served.url
        client.headers["authorization"] = "Bearer k3y-k3y"
        client.timeout = httpx.Timeout(LIMIT_S)
        body = {"input": SECRET_TEXT, "response_format": "pcm", "seed": 1, "voice": "alloy"}
        headers = {"authorization": client.headers["authorization"]}
        with unfinished_speech(url, SECRET_TEXT, additional_headers=headers) as talk:
            served.process.send_signal(signal.SIGTERM)
            wait_for_status(url, 503)
            refused = client.post(f"{url}/v1/audio/speech", json=body)
            num_bytes = len(finish_speech(talk))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["retry-after"]
        assert num_bytes > 24_000 * 2  # more than a second of speech
        assert served.end() == 0
        output = served.output
        assert "finishing 1 stream, up to 30 s; send the signal again to stop now" in output
        assert "stopped" in output
        assert "curl" in output
        before, _, after = output.partition("ready: ")
        assert before.splitlines()[-2:] == [
            "settings: port 0, api_keys 1 from MY_KEY",
            "loading vivace",
        ]
        assert " INFO " not in before
        assert " INFO " in after  # one line per request
        assert "Rutabaga" not in output  # the text is not logged
        assert "k3y-k3y" not in output  # API keys are not logged
        with pytest.raises(httpx.ConnectError):
            client.get(f"{url}/health/live")


def wait_for_status(url: str, status: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while httpx.get(f"{url}/health/ready", timeout=LIMIT_S).status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.ci
def test_signal_while_models_load_ends_the_server() -> None:
    with serve() as served:
        served.wait_for(r"(loading) ")
        deadline = time.monotonic() + LIMIT_S
        while served.process.poll() is None and time.monotonic() < deadline:
            served.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                served.process.wait(0.5)
        assert served.end() in (
            0,
            128 + signal.SIGTERM,
        )  # depends on whether the handler was installed
        assert "Traceback" not in served.output


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Running]:
    backend = ScriptedSpeech(default=Plan(5), plans={7: Plan(20_000)}, step_s=0.2)
    settings = ServeSettings(port=0, voices=tmp_path, drain_timeout_s=0.5)
    with running(settings, backend.load) as server:
        yield server


def test_endless_stream_is_cut_off_visibly_after_the_drain_timeout(endless: Running) -> None:
    body = {"input": "Hello.", "seed": 7, "response_format": "pcm"}
    drained: list[tuple[int, float, int]] = []
    cut: list[int] = []
    endless.server.on_drain = lambda *output: drained.append(output)
    endless.server.on_cut = cut.append
    with (
        httpx.Client(timeout=LIMIT_S) as client,
        client.stream("POST", f"{endless.url}/v1/audio/speech", json=body) as answer,
    ):
        parts = answer.iter_bytes()
        next(parts)
        began = time.monotonic()
        endless.loop.call_soon_threadsafe(endless.server.stop)
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in parts:
                pass
        assert 0.4 < time.monotonic() - began < LIMIT_S / 2
    wait_until(lambda: endless.context.streams.num_active == 0)
    assert (drained, cut) == ([(1, 0.5, signal.SIGTERM)], [1])


def test_websocket_handshake_during_a_drain_is_refused(tmp_path: Path) -> None:
    """A proxy can then choose another server; a close with code 1012 would reach the client."""
    settings = ServeSettings(port=0, voices=tmp_path, drain_timeout_s=LIMIT_S)
    with running(settings, ScriptedSpeech().load) as server:
        url = f"ws://127.0.0.1:{server.port}/v1/audio/speech/stream"
        with connect(url):
            pass  # control: accepted before the drain
        held = server.context.streams.hold()
        held.__enter__()
        server.loop.call_soon_threadsafe(server.server.stop)
        wait_for_status(server.url, 503)
        with pytest.raises(InvalidStatus) as refused:
            connect(url)
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["retry-after"]
        server.loop.call_soon_threadsafe(held.__exit__, None, None, None)


def test_second_signal_stops_now(tmp_path: Path) -> None:
    backend = ScriptedSpeech(default=Plan(5), plans={7: Plan(20_000)}, step_s=0.2)
    settings = ServeSettings(port=0, voices=tmp_path, drain_timeout_s=LIMIT_S)
    body = {"input": "Hello.", "seed": 7, "response_format": "pcm"}
    with running(settings, backend.load) as server, httpx.Client(timeout=LIMIT_S) as client:
        with client.stream("POST", f"{server.url}/v1/audio/speech", json=body) as answer:
            parts = answer.iter_bytes()
            next(parts)
            began = time.monotonic()
            for _ in range(2):
                server.loop.call_soon_threadsafe(server.server.stop)
            with pytest.raises(httpx.RemoteProtocolError):
                for _ in parts:
                    pass
        assert time.monotonic() - began < LIMIT_S / 2


# -- the command -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_streams", "number", "words"),
    [
        (3, signal.SIGINT, "finishing 3 streams, up to 25 s; press Ctrl-C again to stop now\n"),
        (1, signal.SIGINT, "finishing 1 stream, up to 25 s; press Ctrl-C again to stop now\n"),
        (2, signal.SIGTERM, "finishing 2 streams, up to 25 s; send the signal again to stop now\n"),
        (0, signal.SIGINT, ""),
    ],
)
def test_drain_message_names_streams_limit_and_second_signal(
    capsys: pytest.CaptureFixture[str], num_streams: int, number: int, words: str
) -> None:
    ServerMessages("text").show_drain(num_streams, 25.0, number)
    assert capsys.readouterr().err == words


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_start_prints_changed_settings_only_and_all_with_verbose(
    capsys: pytest.CaptureFixture[str], taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVACE_MAX_STREMS", "3")
    command = ["serve", f"--port={taken_port}", "--max-streams=2"]
    assert main(command) == 1
    lines = capsys.readouterr().err.splitlines()
    assert "VIVACE_MAX_STREMS is not a setting" in lines[0]
    assert "VIVACE_MAX_STREAMS?" in lines[0]
    assert lines[1] == f"settings: port {taken_port}, max_streams 2"
    assert lines[2].startswith("vivace: cannot listen on")
    assert len(lines) == 3
    assert main([*command, "--verbose"]) == 1
    names = [line.split()[0] for line in capsys.readouterr().err.splitlines()]
    assert {"port", "max_wait", "drain_timeout", "api_keys"} <= set(names)


@pytest.mark.ci
def test_json_log_is_json_from_the_first_line_to_the_error(taken_port: int) -> None:
    command = [sys.executable, "-m", "vivace", "serve", f"--port={taken_port}"]
    environment = {**os.environ, "VIVACE_LOG_FORMAT": "json", "VIVACE_PORTT": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    records = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert [record["level"] for record in records[:2]] == ["warning", "info"]
    assert "did you mean VIVACE_PORT?" in records[0]["message"]
    assert records[1]["settings"]["port"] == str(taken_port)
    assert records[-1]["level"] == "error"
    assert "cannot listen on" in records[-1]["message"]


@pytest.mark.parametrize("flag", ["--log-format=json", ""])
def test_setting_error_is_json_with_json_logs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    printed: list[str] = []
    monkeypatch.setattr("vivace.cli.serve.log_to_stderr", printed.append)
    monkeypatch.setenv("VIVACE_MAX_STREAMS", "many")
    if not flag:
        monkeypatch.setenv("VIVACE_LOG_FORMAT", "json")
    assert main(["serve", *filter(None, [flag])]) == 1
    assert printed == ["json"]
    assert "vivace:" not in capsys.readouterr().err


def test_public_address_without_a_key_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--host=0.0.0.0", "--port=0"]) == 1
    assert "--allow-anonymous" in capsys.readouterr().err


REPORT_PORTS = """import json, sys
from vivace.cli.main import main
for command in json.loads(sys.argv[1]):
    assert main(command) == 1, command
    assert "torch" not in sys.modules, command
"""


def test_port_in_use_is_reported_before_anything_is_loaded() -> None:
    """One process for all commands: each imports much of the server."""
    commands, errors = [], []
    with ExitStack() as stack:
        for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
            taken = stack.enter_context(socket.socket(family))
            taken.bind((host, 0))
            taken.listen()
            port = taken.getsockname()[1]
            for options in (
                [f"--port={port}"],
                [f"--port={port}", "--workers=2"],
                ["--port=0", f"--wyoming-port={port}"],
            ):
                commands.append(["serve", f"--host={host}", *options])
                errors.append(f"cannot listen on {host}:{port}")
        done = subprocess.run(
            [sys.executable, "-c", REPORT_PORTS, json.dumps(commands)],
            env={**os.environ, "VIVACE_API_KEYS": "k3y-k3y"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("vivace: ")]
    assert len(lines) == len(errors), done.stderr
    assert all(error in line for error, line in zip(errors, lines, strict=True)), lines
    assert "loading" not in done.stderr


def test_unreadable_certificate_is_a_one_line_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "not.pem").write_text("no certificate")
    for name in ("nowhere.pem", "not.pem"):
        path = tmp_path / name
        assert main(["serve", "--port=0", f"--tls-cert={path}", f"--tls-key={path}"]) == 1
        assert f"the certificate {path} and its key" in capsys.readouterr().err
