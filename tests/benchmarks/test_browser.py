"""benchmarks/browser.py in smoke size: a tone as voice."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.benchmarks.conftest import FOLDER, Forked
from tests.support.page_driver import CHROMIUM
from tests.support.project import ROOT, load_script
from tests.support.try_page import (
    NUM_FRAMES,
    SAMPLES_PER_FRAME,
    write_tone_runtime,
    write_tone_voice,
)


@pytest.mark.ci
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_browser_benchmark_writes_download_start_and_speed(tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api", reason="no Playwright")
    script = load_script(ROOT / "scripts" / "make_try_page.py")
    voice, runtime = write_tone_voice(tmp_path / "voice"), write_tone_runtime(tmp_path / "ort.tgz")
    script.assemble(tmp_path / "page", voice, runtime)
    target = tmp_path / "browser.json"
    command = [sys.executable, str(FOLDER / "browser.py"), str(tmp_path / "page")]
    options = ["--lines", "2", "--isolated", "--codec-threads", "2", "--json", str(target)]
    Forked().run([*command, *options])
    report = json.loads(target.read_text("utf-8"))
    assert report["download_bytes"] == sum(report["files"].values()) > 0
    assert [result["codec_threads"] for result in report["results"]] == [1, 2]
    for result in report["results"]:
        (line,) = result["lines"]
        assert (line["frames"], line["samples"]) == (NUM_FRAMES, NUM_FRAMES * SAMPLES_PER_FRAME)
        assert result["x_real_time"] > 0
        assert result["start_ms"] > 0
