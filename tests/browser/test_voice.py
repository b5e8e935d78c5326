"""The embedded voice in Chromium, with onnxruntime-web from the npm registry.

Run by hand: `pytest -m slow tests/browser`. VIVACE_ORT_WEB may name a downloaded package.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import page_driver
from tests.support.page_driver import Driver, tab
from tests.support.project import ROOT, load_script
from tests.support.try_page import Site, serve
from vivace import TTS

pytestmark = pytest.mark.slow

TEXT, SEED = "Hello, this is a test of the voice.", 3
ISOLATED = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page with float32 weights, which are larger than a published page may be."""
    scratch = tmp_path_factory.mktemp("voice")
    script = load_script(ROOT / "scripts" / "make_try_page.py")
    given = os.environ.get("VIVACE_ORT_WEB")
    try:
        runtime = script.check_runtime(Path(given) if given else script.fetch_runtime(scratch))
    except (script.BuildError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no onnxruntime-web: {error}")
    voice = script.export_voice(None, scratch, weights="float32")
    script.assemble(scratch / "page", voice, runtime, max_bytes=100_000_000)
    return scratch / "page"


@pytest.fixture(params=[{}, ISOLATED], ids=["one thread", "isolated"])
def site(folder: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    with serve(folder, request.param) as running:
        yield running


def speak(page: Driver, site: Site, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(page_driver, "LIMIT_S", 300.0)
    page.tab.goto(site.url)
    page.wait(lambda: page.status.startswith("Ready"))
    page.tab.fill("#seed", str(SEED))
    page.say(TEXT)
    page.wait(lambda: page.status.startswith("Spoken"))
    item: dict[str, Any] = page.tab.evaluate(
        "(({ numFrames, codes, track }) => ({ numFrames, codes, num: track.length,"
        " samples: Array.from(track.samples.subarray(0, track.length)) }))(vivaceTry.stage.item)"
    )
    return item


def test_page_speaks_the_codes_of_the_package(
    launched: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tab(launched) as page:
        item = speak(page, site, monkeypatch)
        page.check()
        isolated = page.tab.evaluate("crossOriginIsolated")
        assert (page.tab.evaluate("vivaceTry.speaker.numThreads") == 1) or isolated
        loud = page.num_loud
    with TTS.load(device="cpu") as tts:
        expected = tts.speak(TEXT, voice="heart", seed=SEED)
    codes = np.array(item["codes"]).reshape(item["numFrames"], -1)
    assert item["num"] == item["numFrames"] * 1920
    assert codes.tolist() == expected.codes.tolist()
    assert loud > 0.5 * item["num"]
    own, other = np.array(item["samples"]) / 32767, expected.samples
    length = min(len(own), len(other))  # the package may trim silence at the start
    assert np.abs(own[-length:] - other[-length:]).max() < 0.01
