"""The examples of docs/websockets.md and docs/clients.md, run against a server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol, runtime_checkable

import pytest

from tests.support.project import ROOT
from tests.support.serving import Running


def examples(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```py\n(.*?)^```", text, re.M | re.S)


@runtime_checkable
class Closable(Protocol):
    def close(self) -> None: ...


EXAMPLES = examples("websockets.md")
ALL_EXAMPLES = [*EXAMPLES, *examples("clients.md")]


@pytest.mark.parametrize("code", ALL_EXAMPLES, ids=range(len(ALL_EXAMPLES)))
def test_example_of_the_page_runs(
    server: Running, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "127.0.0.1:8000" in code
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}"), "page", "exec"), names)
    if isinstance(client := names.get("client"), Closable):
        client.close()  # an example leaves this to the end of the process
    audio = names.get("audio")
    assert audio is None or (isinstance(audio, bytes) and len(audio) > 10_000)


def test_page_has_an_example_of_each_protocol() -> None:
    paths = re.findall(r"127\.0\.0\.1:8000(/[a-z0-9/-]+)", "".join(EXAMPLES))
    assert set(paths) == {
        "/v1/audio/speech/stream",
        "/v1/text-to-speech/alloy/stream-input",
        "/v1/realtime",
    }
