"""Chromium on the page: what it plays is counted in the audio graph, complaints are kept."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
LIMIT_S = 60.0  # on a busy machine
FLAGS = [
    "--no-sandbox",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",  # beeps
]

# Every connection to the speakers is tapped, whatever made the sound.
TAP = """(() => {
  const ear = window.ear = { loud: 0, quietFor: 0, contexts: 0 };
  const connect = AudioNode.prototype.connect;
  AudioNode.prototype.connect = function (target, ...rest) {
    if (target instanceof AudioDestinationNode && !this.isTap) {
      const tap = this.context.createScriptProcessor(1024, 1, 1);
      tap.isTap = true;
      ear.contexts++;
      (ear.taps ??= []).push(tap);
      tap.onaudioprocess = ({ inputBuffer }) => {
        const loud = inputBuffer.getChannelData(0).filter((s) => Math.abs(s) > 1e-4).length;
        ear.loud += loud;
        ear.quietFor = loud ? 0 : ear.quietFor + inputBuffer.length;
      };
      connect.call(this, tap);
      connect.call(tap, target);
    }
    return connect.call(this, target, ...rest);
  };
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (e) => violations.push(e.blockedURI));
})();"""


@dataclass
class Driver:
    """A page in a tab of its own."""

    tab: Any
    faults: list[str] = field(default_factory=list)

    def open(self, url: str, is_ready: bool = True) -> None:
        self.tab.goto(url)
        if is_ready:
            self.wait(lambda: self.status in ("Ready", "Live: type, and it is spoken."))

    @property
    def status(self) -> str:
        return str(self.tab.text_content("#status"))

    @property
    def error(self) -> str:
        return str(self.tab.text_content("#error")) if self.tab.is_visible("#error") else ""

    @property
    def num_loud(self) -> int:
        """Samples that were heard so far."""
        return int(self.tab.evaluate("ear.loud"))

    @property
    def is_silent(self) -> bool:
        """Nothing was heard for a quarter of a second."""
        return bool(self.tab.evaluate("ear.quietFor > 6000"))

    def say(self, text: str) -> None:
        self.tab.fill("#text", text)
        self.button("Speak").click()

    def button(self, name: str) -> Any:
        return self.tab.get_by_role("button", name=name, exact=True)

    def wait(self, is_so: Callable[[], object], what: str = "") -> None:
        """Until `is_so`. The page's policy forbids Playwright's own way, which evaluates text."""
        limit = time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < limit, f"{what}; {self.status=} {self.error=} {self.faults=}"
            self.tab.wait_for_timeout(30)

    def check(self) -> None:
        """No error in the console, nothing that the policy had to stop."""
        assert self.faults == []
        assert self.tab.evaluate("violations") == []


@contextmanager
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    with playwright.sync_playwright() as driven:
        launched = driven.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@contextmanager
def tab(launched: Any, **options: Any) -> Iterator[Driver]:
    context = launched.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    try:
        page = context.new_page()
        driver = Driver(page)
        page.add_init_script(TAP)
        page.on("pageerror", lambda error: driver.faults.append(str(error)))
        page.on(
            "console",
            lambda said: driver.faults.append(said.text) if said.type == "error" else None,
        )
        yield driver
    finally:
        context.close()
