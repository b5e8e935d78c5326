"""Settings, voices, history, keys, errors and accessibility of the page in Chromium."""

from __future__ import annotations

import io
import json
import re
import wave
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.page_driver import Driver, browser, make_wav, proxy, tab
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.serve.settings import ServeSettings

pytestmark = pytest.mark.ci  # Chromium; test_browser.py has the default tests

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
ABLE = {"instruct": None, "clone": None, "design": None}


@pytest.fixture(scope="module")
def launched() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A voice that is a short tone, which leaves the processor to the browser."""
    voices = tmp_path_factory.mktemp("voices")
    backend = ScriptedSpeech(default=Plan(num_frames=6))
    with running(ServeSettings(port=0, voices=voices, drain_timeout_s=5.0), backend.load) as served:
        yield served


@pytest.fixture
def page(launched: Any) -> Iterator[Driver]:
    with tab(launched, permissions=["microphone", "clipboard-read", "clipboard-write"]) as driver:
        yield driver


def with_abilities(route: Any) -> None:
    """The server's response, changed to a model with all capabilities."""
    models = route.fetch().json()["models"]
    route.fulfill(json={"models": [{**model, "capabilities": ABLE} for model in models]})


def with_two_models(route: Any) -> None:
    """The server's response, with a second model of a long name."""
    first = route.fetch().json()["models"][0]
    second = {**first, "id": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "capabilities": ABLE}
    route.fulfill(json={"models": [first, second]})


# --- Settings, history ------------------------------------------------------------------------


def test_settings_are_restored_from_the_url(server: Running, page: Driver) -> None:
    page.open(server.url)
    page.tab.fill("#seed", "41")
    page.tab.locator("#speed").fill("1.25")
    page.tab.select_option("#language", "english")
    page.wait(lambda: "seed=41" in page.tab.url)
    address = page.tab.url
    assert "speed=1.25" in address
    assert "language=english" in address
    assert "?" not in address  # what follows the # the fragment is never sent
    with tab(page.tab.context.browser) as other:
        other.open(address)
        assert other.tab.input_value("#seed") == "41"
        assert other.tab.input_value("#speed") == "1.25"
        assert other.tab.input_value("#language") == "english"


def test_settings_are_sent_to_the_server(server: Running, page: Driver) -> None:
    page.open(f"{server.url}/#seed=3&speed=1.5&language=english")
    with page.tab.expect_request("**/v1/audio/speech") as asked:
        page.say("Hello.")
    assert json.loads(asked.value.post_data) == {
        "model": "vivace", "voice": "heart", "language": "english", "seed": 3, "speed": 1.5,
        "input": "Hello.", "response_format": "pcm", "stream_format": "sse",
        "word_timestamps": True,
    }  # fmt: skip


def test_hostile_url_is_shown_as_text(server: Running, page: Driver) -> None:
    hostile = "%3Cimg%20src=x%20onerror=window.broken=1%3E"
    page.open(f"{server.url}/#text={hostile}&voice={hostile}&model={hostile}&speed=1e9&live=")
    assert page.tab.input_value("#text") == "<img src=x onerror=window.broken=1>"
    page.button("Speak").click()
    page.wait(lambda: page.status.startswith("Spoken"))
    assert page.tab.text_content("#history p") == "<img src=x onerror=window.broken=1>"
    assert page.tab.evaluate("window.broken") is None
    page.check()


@pytest.mark.slow
def test_copied_link_contains_the_text(server: Running, page: Driver) -> None:
    page.open(f"{server.url}/#seed=5")
    page.tab.fill("#text", "Grüße & mehr #1")
    page.button("Copy link").click()
    page.wait(lambda: "copied" in page.status)
    link = page.tab.evaluate("navigator.clipboard.readText()")
    page.tab.goto("about:blank")
    page.open(link)
    assert page.tab.input_value("#text") == "Grüße & mehr #1"
    assert page.tab.input_value("#seed") == "5"


def test_history_replays_and_keeps_texts(server: Running, page: Driver) -> None:
    page.open(f"{server.url}/#seed=9")
    page.say("Remember this: speak, stop, download.")
    page.wait(lambda: page.status.startswith("Spoken"))
    for name in ("Speak", "Stop", "Download"):  # button names do not contain the texts
        assert page.tab.get_by_role("button", name=name).count() == 1
    before = page.num_loud
    page.button("Play").click()
    page.wait(lambda: page.num_loud > before, "not heard again")
    page.tab.goto("about:blank")
    page.open(server.url)
    assert page.tab.input_value("#seed") == ""
    page.button("Use again").click()
    assert page.tab.input_value("#text").startswith("Remember this: ")
    assert page.tab.input_value("#seed") == "9"
    page.button("Clear").click()
    assert page.tab.locator("#history li").count() == 0
    page.check()


@pytest.mark.slow
def test_corrupt_local_storage_is_ignored(server: Running, page: Driver) -> None:
    page.open(server.url)
    for spoilt in ("{", "7", "null", '[{}, null, {"text": 5}]'):
        page.tab.evaluate("(text) => localStorage.setItem('vivace.history', text)", spoilt)
        page.tab.goto("about:blank")
        page.open(server.url)
        assert page.tab.locator("#history li").count() == 0
    page.check()


@pytest.mark.slow
def test_waveform_is_a_slider(server: Running, page: Driver) -> None:
    page.open(server.url)
    page.say("Again from the start.")
    page.wait(lambda: page.status.startswith("Spoken"))
    slider = page.tab.get_by_role("slider", name="Position in the speech")
    assert slider.get_attribute("aria-valuemax") == "0.5"
    before = page.num_loud
    slider.press("Home")
    page.wait(lambda: page.num_loud > before, "not heard again")
    page.wait(lambda: page.status.startswith("Spoken"))
    before = page.num_loud
    slider.click()  # in the middle
    page.wait(lambda: page.num_loud > before or page.status.startswith("Spoken"))
    page.check()


# --- Voices -----------------------------------------------------------------------------------


def test_unsupported_feature_shows_its_reason(server: Running, page: Driver) -> None:
    page.open(server.url)
    refused = server.context.models.cards()[0].refusals
    for deed, reason in refused.items():
        assert reason is not None
        shown = page.tab.locator(f"#{deed}-why")
        assert shown.is_visible()
        assert reason.lower() in str(shown.text_content()).lower()
    assert page.tab.locator("#instruct").is_disabled()
    assert page.tab.locator("#clone fieldset:disabled").count() == 1
    assert page.tab.locator("#design fieldset:disabled").count() == 1


def test_chosen_model_is_stored_in_the_url(server: Running, page: Driver) -> None:
    page.tab.route("**/v1/audio/models", with_two_models)
    page.open(server.url)
    assert page.tab.locator("#instruct").is_disabled()
    assert "Choose Qwen/Qwen3-TTS" in page.tab.text_content("#instruct-why")
    page.tab.select_option("#model", index=1)
    page.wait(lambda: page.tab.locator("#instruct").is_enabled())
    page.tab.get_by_label("Instructions").fill("Softly.")
    page.wait(lambda: "instruct=Softly." in page.tab.url)
    page.tab.reload()
    page.wait(lambda: page.status == "Ready")
    with page.tab.expect_request("**/v1/audio/speech") as asked:
        page.say("Hello.")
    sent = json.loads(asked.value.post_data)
    assert (sent["model"][:5], sent["instructions"]) == ("Qwen/", "Softly.")


def test_preview_plays_the_voice(server: Running, page: Driver) -> None:
    page.open(server.url)
    assert page.tab.get_by_role("radio", name="Heart").is_checked()
    page.button("Preview heart").click()
    page.wait(lambda: page.num_loud > 1_000, "no sound")
    page.wait(lambda: page.status.startswith("Spoken"))
    assert page.tab.locator("#history li").count() == 0
    page.check()


def read_upload(body: bytes) -> tuple[wave.Wave_read, str]:
    """The recording in a multipart body, and the other parts as text."""
    start = body.index(b"RIFF")
    size = int.from_bytes(body[start + 4 : start + 8], "little") + 8
    rest = body[:start] + body[start + size :]
    return wave.open(io.BytesIO(body[start : start + size])), rest.decode()


def test_recording_is_uploaded_as_wav(server: Running, page: Driver) -> None:
    page.tab.route("**/v1/audio/models", with_abilities)
    sent: list[bytes] = []

    def made(route: Any) -> None:
        voice = {"id": "my-voice", "name": "my-voice", "model": "vivace", "type": "audio_sample"}
        if route.request.method == "GET":
            listed = route.fetch().json()["voices"]
            return route.fulfill(json={"voices": [*listed, *([voice] if sent else [])]})
        sent.append(route.request.post_data_buffer)
        return route.fulfill(json=voice)

    page.tab.route("**/v1/audio/voices*", made)
    page.open(server.url)
    page.button("Record").click()
    page.wait(lambda: "2." in str(page.tab.text_content("#sample-line")), "not recording")
    page.button("Stop recording").click()
    page.wait(lambda: page.button("Clone").is_enabled())
    seconds = float(re.findall(r"recording, ([\d.]+) s", page.tab.text_content("#sample-line"))[0])
    page.tab.get_by_label("Name of the cloned voice").fill("My Voice")
    page.tab.fill("#transcript", "Beep, beep.")
    page.button("Clone").click()
    page.wait(lambda: "is ready" in page.status)
    assert page.tab.get_by_role("radio", name="My Voice").is_checked()
    assert page.button("Delete voice").is_visible()
    file, fields = read_upload(sent[0])
    assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
    assert file.getframerate() >= 44_100  # the microphone's rate
    assert file.getnframes() / file.getframerate() == pytest.approx(seconds, abs=0.1)
    samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert np.abs(samples).max() > 1_000  # the fake microphone beeps
    assert 'name="name"\r\n\r\nmy-voice\r\n' in fields
    assert "Beep, beep." in fields
    page.check()


def has_sample_line(page: Driver, words: str) -> bool:
    return words in str(page.tab.text_content("#sample-line"))


@pytest.mark.slow
def test_chosen_file_is_decoded_and_checked(server: Running, page: Driver) -> None:
    page.tab.route("**/v1/audio/models", with_abilities)
    page.open(server.url)
    files = [(2, 0.5, "me.wav, 2.0 s"), (0.4, 0.5, "short"), (2, 0, "silent"), (40, 0.5, "30.0 s")]
    for seconds, amplitude, said in files:
        content = make_wav(seconds, amplitude)
        page.tab.set_input_files("#file", {"name": "me.wav", "mimeType": "", "buffer": content})
        page.wait(partial(has_sample_line, page, said))
        assert page.button("Clone").is_enabled() == said.endswith(" s")
    page.check()


def test_dropped_file_is_read_and_invalid_file_is_reported(server: Running, page: Driver) -> None:
    page.tab.route("**/v1/audio/models", with_abilities)
    page.open(server.url)
    drop = """([name, bytes]) => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(bytes)], name));
      document.getElementById("drop").dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
    }"""  # noqa: E501
    page.tab.evaluate(drop, ["voice.wav", list(make_wav(1.5, 0.5))])
    page.wait(lambda: "voice.wav, 1.5 s" in str(page.tab.text_content("#sample-line")))
    page.tab.evaluate(drop, ["notes.txt", list(b"not audio at all")])
    page.wait(lambda: "notes.txt cannot be read here" in page.error)
    page.check()


def test_design_form_creates_a_voice(server: Running, page: Driver) -> None:
    page.tab.route("**/v1/audio/models", with_abilities)
    page.open(server.url)
    page.tab.get_by_label("Describe how it sounds").fill("Low and dry.")
    page.tab.get_by_label("Name of the designed voice").fill("old man")
    with page.tab.expect_request(lambda asked: asked.method == "POST") as asked:
        page.button("Design").click()
    fields = asked.value.post_data
    assert 'name="prompt"\r\n\r\nLow and dry.\r\n' in fields
    assert 'name="type"\r\n\r\nprompt\r\n' in fields
    page.wait(lambda: page.error, "the real server cannot, and says so")
    assert page.button("Design").is_enabled()


# --- Who may, and from where ------------------------------------------------------------------


def test_api_key_is_requested_and_sent_everywhere(launched: Any, tmp_path: Any) -> None:
    backend = ScriptedSpeech(default=Plan(num_frames=6))
    settings = ServeSettings(port=0, voices=tmp_path, api_keys=("sesame-43",), drain_timeout_s=5.0)
    with running(settings, backend.load) as server, tab(launched) as page:
        page.open(server.url, is_ready=False)
        key = page.tab.get_by_label("This server asks for a key")
        key.wait_for()
        assert (page.status, page.error) == ("A key is needed.", "")
        key.fill("wrong")
        page.button("Use key").click()
        page.wait(lambda: page.error == "The server does not accept this key.")
        key.fill("sesame-43")
        key.press("Enter")
        page.wait(lambda: page.status == "Ready")
        assert not page.tab.is_visible("#key-form")
        page.say("Let me in.")
        page.wait(lambda: page.status.startswith("Spoken"))
        heard = page.num_loud
        page.tab.get_by_role("switch", name="Live").check()
        page.tab.locator("#text").press_sequentially(" And here.")
        page.wait(lambda: page.num_loud > heard, "the socket did not take the key")
        assert page.error == ""


def test_page_works_under_a_sub_path(server: Running, page: Driver) -> None:
    sockets: list[str] = []
    page.tab.on("websocket", lambda socket: sockets.append(socket.url))
    with proxy(server.port, "/a/deep/path") as url:
        page.open(url)
        page.say("Hello from below.")
        page.wait(lambda: page.status.startswith("Spoken"))
        heard = page.num_loud
        assert heard > 1_000
        page.tab.get_by_role("switch", name="Live").check()
        page.tab.locator("#text").press_sequentially(" Now live. ")
        page.wait(lambda: page.num_loud > heard, "the socket is not heard")
    assert sockets[0].endswith("/a/deep/path/v1/audio/speech/stream")


# --- Faults -----------------------------------------------------------------------------------


def test_full_server_error_shows_the_retry_delay(server: Running, page: Driver) -> None:
    body = {"error": {"message": "All places are taken.", "code": "full"}}
    page.tab.route(
        "**/v1/audio/speech",
        lambda route: route.fulfill(status=429, headers={"Retry-After": "3"}, json=body),
    )
    page.open(server.url)
    page.say("Hello.")
    page.wait(lambda: page.error == "All places are taken. Try again in 3 s.")
    assert page.tab.get_by_role("alert").is_visible()
    assert page.button("Stop").is_disabled()
    page.tab.unroute("**/v1/audio/speech")
    page.button("Speak").click()
    page.wait(lambda: page.status.startswith("Spoken"))
    assert page.error == ""


@pytest.mark.slow
def test_incomplete_speech_is_reported_and_kept(launched: Any, tmp_path: Any) -> None:
    backend = ScriptedSpeech(plans={13: Plan(fails_at=24)}, step_s=0.1)
    settings = ServeSettings(port=0, voices=tmp_path, drain_timeout_s=5.0)
    with running(settings, backend.load) as server, tab(launched) as page:
        page.open(f"{server.url}/#seed=13")
        page.say("This will break.")
        page.wait(lambda: "broke off" in page.error)
        page.wait(lambda: page.num_loud > 1_000, "what was made is not heard")


def test_empty_text_shows_a_hint(server: Running, page: Driver) -> None:
    page.open(server.url)
    page.say("   ")
    assert page.status == "There is nothing to say yet."
    assert page.tab.evaluate("document.activeElement.id") == "text"


def test_page_without_audio_worklet_plays(server: Running, page: Driver) -> None:
    """Browsers offer no AudioWorklet over plain HTTP from another machine."""
    page.tab.add_init_script("delete BaseAudioContext.prototype.audioWorklet")
    page.open(server.url)
    page.say("The old way.")
    page.wait(lambda: page.status.startswith("Spoken"))
    assert page.num_loud > 1_000
    page.check()


def test_ring_plays_without_gaps(server: Running, page: Driver) -> None:
    page.open(server.url)
    got = page.tab.evaluate("""async () => {
      const { Ring } = await import("/page/ring.js");
      const ring = new Ring(4000, 0.25), out = [], block = new Float32Array(128);
      ring.take({ reset: 1 });
      let next = 1;
      const push = (n) => ring.take({ push: Float32Array.from({ length: n }, () => next++) });
      for (let i = 0; i < 60; i++) {
        if (ring.queued < 700) push(1 + (i * 37) % 300);
        ring.pull(block);
        out.push(...block);
      }
      const gaps = ring.gaps, heard = out.filter((s) => s !== 0);
      ring.take({ reset: 2 });
      ring.pull(block);
      const ramp = [...block];
      ring.pull(block);
      return { gaps, heard, ramp, after: [...block], state: ring.state };
    }""")
    assert got["heard"] == list(range(1, len(got["heard"]) + 1))  # no sample is lost or repeated
    assert len(got["heard"]) > 5_000  # the buffer wraps many times
    assert got["gaps"] == 0
    assert got["ramp"][0] > 0
    assert 0 <= got["ramp"][-1] < got["ramp"][0] / 50
    assert not any(got["after"])
    assert got["state"]["id"] == 2


def test_ring_after_a_stop_keeps_all_samples(server: Running, page: Driver) -> None:
    page.open(server.url)
    heard, state = page.tab.evaluate("""async () => {
      const { Ring } = await import("/page/ring.js");
      const ring = new Ring(1000, 4), block = new Float32Array(128), heard = [];
      ring.take({ push: new Float32Array(1000).fill(0.5) });
      ring.pull(block);
      ring.take({ reset: 1 }); // a stop, and at once another track, before the next block
      ring.take({ reset: 2 });
      ring.take({ push: new Float32Array(500).fill(2) });
      ring.take({ end: true });
      for (let i = 0; i < 6; i++) { ring.pull(block); heard.push(...block); }
      return [heard, ring.state];
    }""")
    assert [round(sample) for sample in heard[:500]] == [
        2
    ] * 500  # mixed with the fade-out of the old track
    assert heard[0] > 2.4
    assert heard[200:500] == [2] * 300
    assert not any(heard[500:])
    assert (state["id"], state["played"], state["isDone"]) == (2, 500, True)


def test_ring_after_a_gap_waits_longer(server: Running, page: Driver) -> None:
    page.open(server.url)
    waits = page.tab.evaluate("""async () => {
      const { Ring } = await import("/page/ring.js");
      const ring = new Ring(10000, 20), block = new Float32Array(100), waits = [];
      for (let gap = 0; gap < 5; gap++) {
        let pushed = 0;
        while (ring.isWaiting) { ring.take({ push: new Float32Array(100) }); pushed += 100; ring.pull(block); }
        waits.push([pushed, ring.gaps]);
        while (!ring.isWaiting) ring.pull(block);
      }
      return waits;
    }""")  # noqa: E501
    assert [count for _, count in waits] == [0, 1, 2, 3, 4]
    assert [pushed for pushed, _ in waits] == [800, 2_400, 7_200, 21_600, 30_000]


# --- Access -----------------------------------------------------------------------------------


CONTRAST = """() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => [r, g, b].reduce((sum, c, i) => {
    c /= 255;
    return sum + [0.2126, 0.7152, 0.0722][i] * (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  }, 0);
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = rgb(getComputedStyle(each).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
  };
  return [...document.querySelectorAll("body *")].filter((element) =>
    element.checkVisibility() && !element.closest(":disabled") && !element.classList.contains("unseen")
    && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
  ).map((element) => {
    const [a, b] = [light(rgb(getComputedStyle(element).color)), light(ground(element))];
    return [element.id || element.textContent.trim().slice(0, 30), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
  });
}"""  # noqa: E501


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_sufficient_contrast(server: Running, launched: Any, scheme: str) -> None:
    with tab(launched, color_scheme=scheme) as page:
        page.open(server.url)
        assert page.tab.evaluate("document.documentElement.dataset.theme") == scheme
        page.say("Contrast.")
        page.wait(lambda: page.status.startswith("Spoken"))
        measured = page.tab.evaluate(CONTRAST)
        assert len(measured) > 25
        assert [pair for pair in measured if pair[1] < 4.5] == []


@pytest.mark.slow
def test_theme_switch_is_remembered(server: Running, page: Driver) -> None:
    page.open(server.url)
    before = page.tab.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.button("Dark or light").click()
    assert page.tab.evaluate("document.documentElement.dataset.theme") == "dark"
    assert before != page.tab.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.open(server.url)
    page.tab.reload()
    assert page.tab.evaluate("document.documentElement.dataset.theme") == "dark"


def test_every_control_has_an_accessible_name(server: Running, page: Driver) -> None:
    page.tab.route("**/v1/audio/models", with_abilities)
    page.open(server.url)
    tree = page.tab.locator("body").aria_snapshot()
    for named in (
        'heading "Vivace"', 'textbox "Text to speak"', 'button "Speak"', 'button "Stop"',
        'switch "Live"', 'button "Replay"', 'button "Download"', 'radiogroup "Voice"',
        'radio "Heart"', 'textbox "Instructions"', 'combobox "Language"', 'textbox "Seed"',
        'slider "Speed', 'slider "Position in the speech"', "status", 'form "Clone a voice"',
        'form "Design a voice"', 'button "Record"', 'button "Preview heart"',
    ):  # fmt: skip
        assert named in tree, f"{named} is not in\n{tree}"
    controls = "button, input, select, textarea, [role=slider]"
    unnamed = page.tab.evaluate(
        """(controls) => [...document.querySelectorAll(controls)].filter((each) =>
          !(each.ariaLabel || each.textContent.trim() || each.labels?.length)).map((each) => each.outerHTML)""",  # noqa: E501
        controls,
    )
    assert unnamed == []
    assert (
        page.tab.get_by_role("status").count() == 1
    )  # text that changes with every letter is not announced


def test_tab_key_reaches_every_control_in_order(server: Running, page: Driver) -> None:
    page.open(server.url)
    page.say("Something.")
    page.wait(lambda: page.status.startswith("Spoken"))
    page.tab.focus("#wave")
    reached = []
    for _ in range(11):
        reached.append(
            page.tab.evaluate("document.activeElement.id || document.activeElement.value")
        )
        page.tab.keyboard.press("Tab")
    assert reached == [
        "wave", "text", "speak", "live", "replay", "download", "link", "heart", "preview",
        "language", "seed",
    ]  # fmt: skip


def test_page_fits_a_phone_screen(server: Running, launched: Any) -> None:
    with tab(launched, **PHONE) as page:
        page.tab.route("**/v1/audio/models", with_two_models)
        page.open(server.url)
        page.tab.fill("#text", "Supercalifragilisticexpialidocious" * 3)
        page.tab.tap("#speak")
        page.wait(lambda: page.status.startswith("Spoken"))
        assert page.num_loud > 1_000
        wide = page.tab.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1] == 360
        assert page.tab.locator("header").bounding_box()["height"] < 140
        small = page.tab.evaluate(
            """() => [...document.querySelectorAll(".main, #stop, .switch, #voices span")]
              .filter((each) => each.getBoundingClientRect().height < 30).length"""
        )
        assert small == 0
