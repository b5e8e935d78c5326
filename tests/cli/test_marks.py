"""`--mark` and `--c2pa-*`: signed files, and errors before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.c2pa_chain import write_chain
from tests.support.cli_harness import Captured, assert_fails, run_here

SHORT = ("Hello.", "--seed=1", "--max-frames=3")


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a model is loaded."""

    def load(*_: object, **__: object) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr("vivace.tts.TTS.load", load)


def detect(path: Path, capsys: Captured) -> dict[str, Any]:
    capsys.readouterr()
    assert run_here("detect", path, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("format", ["wav", "mp3"])
def test_certificate_and_key_sign_the_file(
    model: Path, tmp_path: Path, capsys: Captured, format: str
) -> None:
    pytest.importorskip("c2pa")
    chain, path = write_chain(tmp_path), tmp_path / f"a.{format}"
    flags = ("--mark", "c2pa", "--c2pa-cert", chain.certificate, "--c2pa-key", chain.key)
    assert run_here(*SHORT, "-o", path, *flags) == 0
    found = detect(path, capsys)
    assert found["manifest"]["state"] == "Valid"
    assert found["metadata"]["marks"] == "metadata, c2pa"


def test_variables_name_certificate_and_key(
    model: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("c2pa")
    chain = write_chain(tmp_path)
    monkeypatch.setenv("VIVACE_C2PA_CERT", str(chain.certificate))
    monkeypatch.setenv("VIVACE_C2PA_KEY", str(chain.key))
    assert run_here(*SHORT, "-o", "a.wav", "--mark", "c2pa") == 0
    assert detect(tmp_path / "a.wav", capsys)["manifest"]["state"] == "Valid"


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--mark", "c2pa"], "c2pa needs a certificate: give --c2pa-cert"),
        (["--mark", "c2pa", "--c2pa-cert", "no.pem"], "no.pem cannot be read: No such file"),
        (["--mark", "c2pa", "--c2pa-cert", "chain.pem"], "c2pa needs a private key"),
        (["--mark", "c2pa", "--c2pa-cert", "key.pem", "--c2pa-key", "key.pem"], "cannot be read"),
        (["--mark", "c2pa", "--c2pa-cert", "chain.pem", "--c2pa-key", "key.pem", "-o", "a.flac"],
         "c2pa cannot sign flac"),
        (["--mark", "c2pa", "--c2pa-cert", "chain.pem", "--c2pa-key", "key.pem", "-o", "-"],
         "c2pa signs complete files, not a stream"),
        (["--c2pa-cert", "chain.pem"], "--c2pa-cert has no effect with --mark metadata"),
        (["--mark", "none", "--c2pa-key", "key.pem"], "--c2pa-key has no effect with --mark none"),
        (["--mark", "loud"], "mark must be metadata, watermark, c2pa"),
    ],
)  # fmt: skip
def test_error_is_reported_before_a_model_is_loaded(
    model: Path, tmp_path: Path, capsys: Captured, flags: list[str], reason: str
) -> None:
    pytest.importorskip("c2pa")
    write_chain(tmp_path)
    output = [] if "-o" in flags else ["-o", "a.wav"]
    assert_fails(run_here(*SHORT, *output, *flags), capsys, reason)
    assert not (tmp_path / "a.wav").exists()
