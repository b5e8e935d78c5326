"""The page with a GPU, in Chromium. The adapter and the graphs are simulated; see `try_page`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser.test_page import open_page, speak
from tests.support.page_driver import Driver
from tests.support.project import ROOT, load_script
from tests.support.try_page import (
    GPU_MARK,
    NUM_FRAMES,
    SAMPLES_PER_FRAME,
    serve,
    write_tone_runtime,
    write_tone_voice,
)

pytestmark = pytest.mark.ci  # Chromium

ADAPTER = """Object.defineProperty(navigator, "gpu", { value: {
  requestAdapter: async () => ({ info: { vendor: "test", isFallbackAdapter: %s } }) } });"""
STORE = "vivace.try.codec"
# A trial of an earlier visit, in which the GPU was much faster.
REMEMBER = f"""localStorage.setItem("{STORE}", JSON.stringify(
  {{ key: vivaceTry.speaker.trialKey, trial: {{ isFaster: true, ownMs: 1e6 }} }}))"""
SAMPLES = (
    "(({ track }) => Array.from(track.samples.subarray(0, track.length)))(vivaceTry.playback.item)"
)
CHUNKS = [1, 2, 4, 1]  # of 8 frames
# test_codec_session.py has these faults of a trial and of a run too, without a browser.
BAD_TRIALS = [pytest.param(fault, marks=pytest.mark.slow) for fault in ("wrong 0", "fails 1")]


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page with a codec that has the given fault on WebGPU."""
    script = load_script(ROOT / "scripts" / "make_try_page.py")

    def write(fault: str) -> Path:
        folder = tmp_path_factory.mktemp("gpu")
        voice = write_tone_voice(folder / "voice", codec=f"codec {fault}".strip().encode())
        script.assemble(folder / "page", voice, write_tone_runtime(folder / "runtime.tgz"))
        return folder / "page"

    return write


@pytest.fixture
def opened(kept_tab: Driver, assembled: Callable[[str], Path]) -> Any:
    """Opens a page whose GPU has the given fault."""

    @contextmanager
    def open_with(fault: str, *, is_fallback: bool = False) -> Iterator[Driver]:
        with serve(assembled(fault)) as site:
            kept_tab.run_first(ADAPTER % str(is_fallback).lower())
            try:
                open_page(kept_tab, site)
                yield kept_tab
            finally:
                kept_tab.renew(f"{site.url}page/icon.svg")

    return open_with


def wait_for_gpu(page: Driver, condition: str) -> None:
    page.wait(lambda: page.tab.evaluate(f"Boolean({condition})"), condition)


def start_gpu(page: Driver) -> None:
    """Speak once; WebGPU starts meanwhile, because an earlier visit found it faster."""
    page.tab.evaluate(REMEMBER)
    speak(page, "Start.")
    wait_for_gpu(page, "vivaceTry.speaker.gpu.isUsed")


def check_tone(page: Driver, num_on_gpu: int) -> None:
    """The samples of all chunks follow one another; the first chunks came from the GPU."""
    found = np.array(page.tab.evaluate(SAMPLES)) / 32767
    expected = 0.3 * np.sin(2 * np.pi * 300 * np.arange(NUM_FRAMES * SAMPLES_PER_FRAME) / 24_000)
    starts = np.cumsum([0, *CHUNKS[:-1]]) * SAMPLES_PER_FRAME
    expected[starts[:num_on_gpu]] = GPU_MARK
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 1e-3


def test_gpu_of_an_earlier_visit_decodes_every_chunk(opened: Any) -> None:
    with opened("") as page:
        start_gpu(page)
        speak(page, "Hello.")
        check_tone(page, len(CHUNKS))
        assert "WebGPU" in str(page.tab.text_content("#device"))
        page.check()


@pytest.mark.parametrize("fault", ["lost 2", pytest.param("fails 2", marks=pytest.mark.slow)])
def test_webassembly_continues_after_the_gpu_fails(fault: str, opened: Any) -> None:
    with opened(fault) as page:
        start_gpu(page)
        speak(page, "Hello.")
        check_tone(page, 2)
        assert page.tab.evaluate("vivaceTry.speaker.gpu.isUsed") is False
        assert page.tab.evaluate(f'localStorage.getItem("{STORE}")') is None  # tried again later
        assert "WebGPU" not in str(page.tab.text_content("#device"))
        speak(page, "And again.")
        check_tone(page, 0)
        page.check()


@pytest.mark.parametrize("fault", ["unsupported", *BAD_TRIALS])
def test_gpu_that_fails_the_trial_is_not_used(fault: str, opened: Any) -> None:
    with opened(fault) as page:
        speak(page, "Hello.")
        wait_for_gpu(page, "vivaceTry.speaker.gpu.reason")
        assert page.tab.evaluate(f'JSON.parse(localStorage.getItem("{STORE}")).trial.isFaster') is (
            False
        )
        speak(page, "Hello again.")
        check_tone(page, 0)
        assert page.tab.evaluate("vivaceTry.speaker.gpu.worker") is None
        page.check()


def test_trial_begins_after_the_first_speech_and_decides(opened: Any) -> None:
    """Which session wins depends on the machine; both continue to speak."""
    with opened("") as page:
        speak(page, "Hello.")
        check_tone(page, 0)
        wait_for_gpu(page, f'localStorage.getItem("{STORE}")')
        speak(page, "Hello again.")
        is_used = page.tab.evaluate("vivaceTry.speaker.gpu.isUsed")
        if not is_used:
            check_tone(page, 0)
        page.check()


def test_software_adapter_is_not_tried(opened: Any) -> None:
    with opened("", is_fallback=True) as page:
        speak(page, "Hello.")
        assert page.tab.evaluate("vivaceTry.speaker.gpu") is None
        page.check()
