"""The page with the embedded voice: speech and live mode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.page_driver import LONG_TIMEOUTS, Driver
from tests.support.serving import Running, running
from vivace.serve.settings import ServeSettings

pytestmark = pytest.mark.ci  # Chromium; test_browser.py has the default tests


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The embedded voice."""
    voices = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, voices=voices, drain_timeout_s=5.0)) as served:
        yield served


@dataclass
class Wire:
    """Messages that the page sends over WebSockets."""

    num_sockets: int = 0
    sent: list[dict[str, Any]] = field(default_factory=list)

    def watch(self, page: Driver) -> Wire:
        page.on("websocket", self._opened)
        return self

    def _opened(self, socket: Any) -> None:
        self.num_sockets += 1
        socket.on("framesent", lambda text: self.sent.append(json.loads(text)))

    def types(self) -> list[str]:
        return [message["type"] for message in self.sent]

    def text(self) -> str:
        return "".join(message["text"] for message in self.sent if "text" in message)


def num_running(server: Running) -> int:
    return sum(model.tts.engine.num_running for model in server.context.models.loaded())


def test_embedded_voice_is_played(server: Running, page: Driver) -> None:
    page.open(f"{server.url}/#seed=3")
    page.say("Hello there.")
    page.wait(lambda: page.status.startswith("Spoken"))
    assert page.num_loud > 5_000
    assert page.error == ""
    page.check()


def test_live_speech_follows_typing_and_stops(server: Running, page: Driver) -> None:
    wire = Wire().watch(page)
    page.run_first(LONG_TIMEOUTS)
    page.open(f"{server.url}/#live=1&seed=3")
    assert page.tab.get_by_role("switch", name="Live").is_checked()
    text = page.tab.locator("#text")
    text.focus()
    num_words = 0
    while not page.num_loud:  # no pause in typing is long enough to end the utterance
        text.press_sequentially("and then another word ", delay=20)
        num_words += 4
        assert num_words < 400, "no sound while typing"
    assert "input.done" not in wire.types()
    assert wire.types()[0] == "session.config"
    assert wire.sent[0]["seed"] == 3
    assert wire.text().startswith("and then another word ")
    page.tab.keyboard.press("Escape")
    page.wait(lambda: page.is_silent, "not silent after Escape")
    page.wait(lambda: num_running(server) == 0, "the slot is not free")
    assert wire.types()[-1] == "input.cancel"
    num_before = page.num_loud
    page.tab.evaluate("window.timeoutScale = 1")  # the next pause ends the utterance
    text.focus()
    page.tab.keyboard.insert_text("Hello again. ")
    page.wait(lambda: page.num_loud > num_before, "nothing after a stop")
    page.wait(lambda: page.status.startswith("Spoken"))
    assert wire.types()[-1] == "input.done"
    assert wire.num_sockets == 1  # one connection for all utterances
    assert page.tab.text_content("#history p") == "Hello again."
    page.check()


def test_live_mode_sends_each_whole_word_once(server: Running, page: Driver) -> None:
    page.open(server.url)
    said = page.tab.evaluate(
        """async (steps) => {
      const { Live } = await import("/page/live.js");
      const live = new Live({ end() {}, fail() {} }), said = [];
      live.say = (piece) => { said.push(piece); live.sent += piece; live.isOpen = true; };
      live.sent = "Not this.";
      for (const [text, isAtEnd] of steps) live.type(text, {}, isAtEnd);
      live.pause("Afresh. 你好，世界", {});
      return said;
    }""",
        [
            ("Not this. One", True), ("Not this. One ", True), ("Not this. One twx", True),
            ("Not this. One tw", True), ("Not this. One two, thr", True),
            ("Not that. One two, thr", False), ("Not that. One two, three ", True),
            ("Not that. One two, th", True), ("Not that. One two, thirty ", True),
            ("", True), ("Af", True), ("Afresh.", True), ("Afresh. 你好，世", True),
        ],
    )  # fmt: skip
    # A change in earlier text has no effect; a corrected last word is spoken again.
    assert said == [" One ", "two, ", "three ", "thirty ", "Afresh.", " 你好，", "世界"]


def test_typing_pause_ends_the_utterance(server: Running, page: Driver) -> None:
    wire = Wire().watch(page)
    page.open(f"{server.url}/#live=1")
    page.tab.locator("#text").focus()
    page.tab.keyboard.insert_text("One word")
    page.wait(lambda: "input.done" in wire.types())
    assert wire.text() == "One word"
    page.wait(lambda: page.status.startswith("Spoken"))
    page.check()


def test_audio_in_flight_at_stop_is_discarded(server: Running, page: Driver) -> None:
    page.open(server.url)
    events = page.tab.evaluate("""async () => {
      const { Live } = await import("/page/live.js"), events = [];
      const live = new Live({ start() { events.push("start"); }, grow() { events.push("audio"); }, end() {}, fail() {} });
      live.socket = { send() {}, close() {} };
      live.isOpen = true;
      const tell = (type) => live.take(JSON.stringify({ type, sample_rate: 24000 }));
      const all = () => { tell("audio.start"); live.take(new ArrayBuffer(2)); };
      all();
      live.cancel();
      all();
      events.push("cancelled");
      tell("audio.cancelled");
      all();
      return events;
    }""")  # noqa: E501
    assert events == ["start", "audio", "cancelled", "start", "audio"]


SEEN = """() => {
  window.seen = [];
  const mark = document.querySelector("#said mark");
  const watch = new MutationObserver(() => seen.push(mark.parentElement.textContent));
  watch.observe(mark, { childList: true });
}"""


def test_playing_word_is_highlighted(server: Running, page: Driver) -> None:
    text = "😀 Remarkable weather, everybody agreed."
    page.open(f"{server.url}/#seed=7")
    page.tab.evaluate(SEEN)
    page.say(text)
    page.wait(lambda: page.status.startswith("Spoken"))
    page.wait(lambda: page.tab.text_content("#said") == "", "it is shown no longer")
    seen = [shown for shown in page.tab.evaluate("seen") if shown]
    assert seen
    assert set(seen) == {text}  # character positions count code points, as in Python
    page.check()
