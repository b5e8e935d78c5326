"""The examples of docs/websockets.md, run against a server."""

from __future__ import annotations

import re

import pytest

from tests.support.project import ROOT
from tests.support.serving import Running

PAGE = (ROOT / "docs" / "websockets.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```py\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example_of_the_page_runs(server: Running, code: str) -> None:
    assert "127.0.0.1:8000" in code
    names: dict[str, object] = {}
    exec(compile(code.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}"), "page", "exec"), names)
    audio = names.get("audio")
    assert audio is None or (isinstance(audio, bytes) and len(audio) > 10_000)


def test_page_has_an_example_of_each_protocol() -> None:
    paths = re.findall(r"127\.0\.0\.1:8000(/[a-z0-9/-]+)", "".join(EXAMPLES))
    assert set(paths) == {
        "/v1/audio/speech/stream",
        "/v1/text-to-speech/alloy/stream-input",
        "/v1/realtime",
    }
