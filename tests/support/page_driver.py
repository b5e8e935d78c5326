"""Drives the web page in Chromium, counts the samples it plays and records its errors."""

from __future__ import annotations

import io
import shutil
import socket
import threading
import time
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
LIMIT_S = 180.0  # on a busy machine
POLL_MS = 100  # each poll wakes three processes
FLAGS = [
    "--no-sandbox",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",  # beeps
]

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
DEFAULT_MEDIA = {
    "color_scheme": "light",
    "reduced_motion": "no-preference",
    "forced_colors": "none",
}
ABLE = {"instruct": None, "clone": None, "design": None}
LONG_NAME = "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"

# Every connection to the speakers is tapped, whatever made the sound.
TAP = """(() => {
  const meter = window.meter = { loud: 0, quietFor: 0, seconds: 0, turns: 0, statuses: [] };
  new MutationObserver(() => {
    const status = document.getElementById("status")?.textContent;
    if (status && status !== meter.statuses.at(-1)) meter.statuses.push(status);
  }).observe(document, { childList: true, characterData: true, subtree: true });
  const connect = AudioNode.prototype.connect;
  AudioNode.prototype.connect = function (target, ...rest) {
    if (target instanceof AudioDestinationNode && !this.isTap) {
      const tap = this.context.createScriptProcessor(1024, 1, 1);
      tap.isTap = true;
      (meter.taps ??= []).push(tap);
      tap.onaudioprocess = ({ inputBuffer }) => {
        const samples = inputBuffer.getChannelData(0);
        const loud = samples.filter((s) => Math.abs(s) > 1e-4).length;
        meter.loud += loud;
        meter.seconds += loud / inputBuffer.sampleRate;
        meter.turns += samples.filter((s, i) => i && s < 0 !== samples[i - 1] < 0).length;
        meter.quietFor = loud ? 0 : meter.quietFor + inputBuffer.length;
      };
      connect.call(this, tap);
      connect.call(tap, target);
    }
    return connect.call(this, target, ...rest);
  };
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (e) => violations.push(e.blockedURI));
})();"""


# Timeouts of the page are multiplied by `timeoutScale`, so that a busy machine does not reach them.
LONG_TIMEOUTS = """(() => {
  window.timeoutScale = 50;
  const wait = window.setTimeout;
  window.setTimeout = (work, ms = 0, ...rest) =>
    wait(work, ms < 500 ? ms : ms * timeoutScale, ...rest);
})();"""


@dataclass
class Driver:
    """The page in a browser tab."""

    tab: Any
    faults: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)  # requests that did not finish
    listeners: list[tuple[str, Callable[..., object]]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)  # identifiers of those of `run_first`

    @cached_property
    def devtools(self) -> Any:
        session = self.tab.context.new_cdp_session(self.tab)
        session.send("Page.enable")
        return session

    def open(self, url: str, is_ready: bool = True) -> None:
        self.tab.goto(url)
        if is_ready:
            self.wait(lambda: self.status in ("Ready", "Live: type, and it is spoken."))

    def on(self, event: str, listener: Callable[..., object]) -> None:
        """Call `listener` for an event of the tab, until `renew` is called."""
        self.tab.on(event, listener)
        self.listeners.append((event, listener))

    def run_first(self, script: str) -> None:
        """Run a script before the scripts of each page, until `renew` is called."""
        added = self.devtools.send("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        self.scripts.append(added["identifier"])

    def renew(self, url: str) -> None:
        """Make the tab like a new one, except for the HTTP cache.

        `url` is a file of the origin that the tab has open. A new tab takes a second of CPU time,
        because it starts a process; between pages of one origin, the browser keeps it.
        """
        self.tab.unroute_all(behavior="ignoreErrors")
        while self.listeners:
            self.tab.remove_listener(*self.listeners.pop())
        while self.scripts:
            script = {"identifier": self.scripts.pop()}
            self.devtools.send("Page.removeScriptToEvaluateOnNewDocument", script)
        self.tab.goto(url)
        self.tab.evaluate("sessionStorage.clear()")
        self.tab.emulate_media(**DEFAULT_MEDIA)
        self.devtools.send("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
        self.faults.clear()
        self.aborted.clear()

    @property
    def status(self) -> str:
        return str(self.tab.text_content("#status"))

    @property
    def statuses(self) -> list[str]:
        """All statuses since the page was opened, also those that were shown for a moment."""
        return list(self.tab.evaluate("meter.statuses"))

    @property
    def error(self) -> str:
        """The text of the error that is shown, beside whichever control."""
        shown = self.tab.locator(".error:visible")
        return str(shown.first.text_content()) if shown.count() else ""

    @property
    def num_loud(self) -> int:
        """Number of non-silent samples played so far."""
        return int(self.tab.evaluate("meter.loud"))

    @property
    def pitch_hz(self) -> float:
        """Pitch of the played audio, by zero crossings."""
        return float(self.tab.evaluate("meter.turns / 2 / meter.seconds"))

    @property
    def is_silent(self) -> bool:
        """Whether nothing was played for a quarter of a second."""
        return bool(self.tab.evaluate("meter.quietFor > 6000"))

    def say(self, text: str) -> None:
        self.tab.fill("#text", text)
        self.button("Speak").click()

    def button(self, name: str) -> Any:
        return self.tab.get_by_role("button", name=name, exact=True)

    def wait(self, is_so: Callable[[], object], what: str = "") -> None:
        """Wait for a condition. The page's CSP forbids Playwright's `wait_for_function`."""
        limit = time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < limit, f"{what}; {self.status=} {self.error=} {self.faults=}"
            self.tab.wait_for_timeout(POLL_MS)

    def record_error(self, said: Any) -> None:
        """Add a console error to `faults`, unless the page did not ask for the resource.

        The browser requests a favicon for a file without one, at any time later.
        """
        address = said.location["url"]
        if said.type == "error" and not address.endswith("/favicon.ico"):
            self.faults.append(f"{said.text} ({address})")

    def check(self) -> None:
        """Expect no console error and no CSP violation."""
        assert self.faults == [], self.faults  # a tab that is renewed forgets them
        assert self.tab.evaluate("violations") == []


@contextmanager
def browser() -> Iterator[Any]:
    """The system's Chromium or Playwright's own. Skips the test if neither is installed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright")
    with playwright.sync_playwright() as driven:
        try:
            launched = driven.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        except playwright.Error as error:
            pytest.skip(f"no Chromium: {str(error).splitlines()[0]}")
        yield launched
        launched.close()


@contextmanager
def tab(launched: Any, **options: Any) -> Iterator[Driver]:
    context = launched.new_context(**{"viewport": DESKTOP, **options})
    context.set_default_timeout(1000 * LIMIT_S)
    try:
        page = context.new_page()
        driver = Driver(page)
        page.add_init_script(TAP)
        page.on("requestfailed", lambda request: driver.aborted.append(request.url))
        page.on("pageerror", lambda error: driver.faults.append(str(error)))
        page.on("console", driver.record_error)
        yield driver
    finally:
        context.close()


def with_abilities(route: Any) -> None:
    """The server's response, changed to a model with all capabilities."""
    models = route.fetch().json()["models"]
    route.fulfill(json={"models": [{**model, "capabilities": ABLE} for model in models]})


def with_two_models(route: Any) -> None:
    """The server's response, with a second model of a long name."""
    first = route.fetch().json()["models"][0]
    second = {**first, "id": LONG_NAME, "capabilities": ABLE}
    route.fulfill(json={"models": [first, second]})


def is_on_screen(page: Driver, selector: str) -> bool:
    box = page.tab.locator(selector).bounding_box()
    return bool(box["y"] >= 0 and box["y"] + box["height"] <= page.tab.viewport_size["height"])


def make_wav(seconds: float, amplitude: float) -> bytes:
    """A tone at 16 kHz, as a file."""
    time_s = np.arange(int(seconds * 16_000)) / 16_000
    samples = (amplitude * 32_767 * np.sin(2 * np.pi * 220 * time_s)).astype("<i2")
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(samples.tobytes())
    return out.getvalue()


@contextmanager
def proxy(port: int, prefix: str) -> Iterator[str]:
    """A proxy that serves `port` under `prefix`, with WebSockets; one request per connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener, port, prefix), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{prefix}/"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _accept(listener: socket.socket, port: int, prefix: str) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_relay, args=(client, port, prefix), daemon=True).start()


def _relay(client: socket.socket, port: int, prefix: str) -> None:
    with client, suppress(OSError):
        head = b""
        while b"\r\n" not in head:
            head += client.recv(65_536) or b"\r\n"
        line, rest = head.split(b"\r\n", 1)
        if f" {prefix}/".encode() not in line:
            client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        if b"Upgrade: websocket" not in rest:
            rest = b"Connection: close\r\n" + rest.replace(b"Connection: keep-alive\r\n", b"")
        with socket.create_connection(("127.0.0.1", port)) as server:
            server.sendall(line.replace(f" {prefix}/".encode(), b" /") + b"\r\n" + rest)
            threading.Thread(target=_pump, args=(client, server), daemon=True).start()
            _pump(server, client)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
