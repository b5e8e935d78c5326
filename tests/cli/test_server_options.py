"""The flags of `vivace serve` and `vivace wyoming`, generated from the server's settings."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.cli_harness import LIMIT_S, environment
from vivace.cli import server_options
from vivace.cli.main import main, parse
from vivace.cli.server_options import HTTP_ONLY
from vivace.serve.settings import public_name, setting_names

WITHOUT_PYDANTIC = """
import sys
sys.modules["pydantic"] = None
from vivace.cli.main import main
main(["--help"])
"""


def test_help_without_pydantic_is_printed() -> None:
    command = [sys.executable, "-c", WITHOUT_PYDANTIC]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=True, env=environment()
    )
    assert "usage: vivace TEXT" in done.stdout


def test_serve_without_its_packages_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_options, "find_spec", lambda name: None)
    assert main(["serve", "--port=0"]) == 1
    message = capsys.readouterr().err
    assert "the server needs pydantic, fastapi, " in message
    assert "pip install '.[server]'" in message


def test_flags_are_parsed_by_the_type_of_their_setting() -> None:
    line = "serve --model a=b --model c --port 1 --max-wait 2 --no-otel --zeroconf --host h"
    arguments = parse(line.split())
    assert (arguments.model, arguments.port, arguments.max_wait) == (["a=b", "c"], 1, 2.0)
    assert (arguments.otel, arguments.zeroconf, arguments.host) == (False, True, "h")
    assert arguments.max_queue is None  # other sources decide


def test_wyoming_has_no_flags_of_http() -> None:
    arguments = vars(parse(["wyoming", "--port", "1"]))
    assert arguments["wyoming_port"] == 1
    names = {public_name(name) for name in setting_names()}
    assert names - arguments.keys() == HTTP_ONLY - {"api_keys"}


def test_help_shows_defaults_with_units(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["serve", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    for line in (
        "--port N TCP port; 0 takes a free one; default: 8000",
        "--max-body-bytes N size of one request body; default: 14 MiB",
        "--max-message-bytes N size of one socket message; default: 256 KiB",
        "--body-timeout SECONDS time to receive a request body; default: 30 s",
    ):
        assert line in words
