"""Runs the programs of docs/integrations unchanged with a scripted voice.

Programs of frameworks that are not installed are skipped. Addresses refer to a real server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import ROOT
from tests.support.pyaudio_stub import install_loudspeaker
from tests.support.voice_sources import VoiceUnderTest, voice_under_test
from vivace.compat import uninstall

pytestmark = pytest.mark.filterwarnings("ignore")
NEEDED = {
    "pipecat": "pipecat",
    "livekit": "livekit.agents",
    "realtimetts": "RealtimeTTS",
    "speech-to-speech": "speech_to_speech",
    "callbacks": "langchain_core",
}
SERVER = "127.0.0.1:8000"
SPOKEN_S = 2 * 25 * 0.08 + 0.5  # two sentences and the pause between them
PROGRAMS = [
    pytest.param(name, code, id=f"{name}-{number}")
    for name in NEEDED
    for number, code in enumerate(
        re.findall(
            r"^```py\n(.*?)^```",
            (ROOT / "docs" / "integrations" / f"{name}.md").read_text(encoding="utf-8"),
            re.M | re.S,
        )
    )
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoiceUnderTest]:
    with voice_under_test("over a socket", tmp_path_factory.mktemp("voices")) as served:
        yield served


@pytest.mark.parametrize(("name", "code"), PROGRAMS)
def test_example_program_of_a_guide_runs(
    name: str,
    code: str,
    served: VoiceUnderTest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name != "callbacks" or "langchain" in code:
        pytest.importorskip(NEEDED[name])
    install_loudspeaker(monkeypatch)
    monkeypatch.setattr(
        "vivace.engine.checkpoints.loading.build_backend", lambda *_: served.backend
    )
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(tmp_path)
    address = str(served.voice).removeprefix("http://")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code.replace(SERVER, address), f"{name}.md", "exec"), names)
    uninstall()
    if "wav" in code:
        (path,) = tmp_path.glob("*.wav")
        assert path.stat().st_size == pytest.approx(2 * 24_000 * SPOKEN_S, rel=0.01)
    if "seconds = asyncio.run" in code:
        assert names["seconds"] == pytest.approx(SPOKEN_S, abs=0.01)
    if "chunks = []" in code:
        assert sum(len(chunk.samples) for chunk in names["chunks"]) == 25 * 1_920
    if "blocks = " in code:
        assert {len(block) for block in names["blocks"]} == {512}


def test_guides_have_example_programs() -> None:
    assert len(PROGRAMS) >= 12
