"""Settings, voices and history of the page in Chromium."""

from __future__ import annotations

import base64
import io
import json
import re
import wave
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.page_driver import (
    LONG_NAME,
    Driver,
    make_wav,
    with_abilities,
    with_two_models,
)
from tests.support.serving import Running

pytestmark = pytest.mark.ci  # Chromium; test_browser.py has the default tests


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
    page.renew(f"{server.url}/page/icon.svg")
    page.open(address)
    assert page.tab.input_value("#seed") == "41"
    assert page.tab.input_value("#speed") == "1.25"
    assert page.tab.input_value("#language") == "english"


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


CAPABLE = {"instruct": "1.7B-CustomVoice", "clone": "0.6B-Base", "design": "1.7B-VoiceDesign"}


def test_unsupported_feature_offers_a_command(server: Running, page: Driver) -> None:
    page.open(server.url)
    refused = server.context.models.cards()[0].refusals
    for deed in CAPABLE:
        assert refused[deed] is not None
        shown = page.tab.locator(f"#{deed}-need")
        assert "another model." in str(shown.text_content())
        assert shown.bounding_box()["height"] < 50  # one line
        shown.get_by_role("button", name="Copy command").click()
        page.wait(lambda: page.status == "The command is copied.")
        command = page.tab.evaluate("navigator.clipboard.readText()")
        assert command == f"vivace serve --model Qwen/Qwen3-TTS-12Hz-{CAPABLE[deed]}"
    assert page.tab.locator("#instruct").is_disabled()
    assert not page.tab.is_visible("#instruct")
    assert page.tab.locator("#clone fieldset:disabled").count() == 1
    assert page.tab.locator("#design fieldset:disabled").count() == 1


def test_chosen_model_is_stored_in_the_url(server: Running, page: Driver) -> None:
    page.tab.route("**/v1/audio/models", with_two_models)
    page.open(server.url)
    assert page.tab.locator("#instruct").is_disabled()
    need = page.tab.locator("#instruct-need")
    assert need.text_content() == f"Instructions need another model.Use {LONG_NAME}"
    need.get_by_role("button").click()
    page.wait(lambda: page.tab.locator("#instruct").is_enabled())
    page.tab.get_by_label("Instructions").fill("Softly.")
    page.wait(lambda: "instruct=Softly." in page.tab.url)
    page.tab.fill("#text", "Not yet spoken.")
    page.tab.reload()
    page.wait(lambda: page.status == "Ready")
    assert page.tab.input_value("#text") == "Not yet spoken."
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


def test_two_cloned_voices_are_mixed(server: Running, page: Driver) -> None:
    voices = [
        {"id": name, "name": name, "type": "audio_sample", "description": "Cloned"}
        for name in ("ann", "bob")
    ]

    def base(route: Any) -> None:
        model = route.fetch().json()["models"][0]
        abilities = {**model["capabilities"], "clone": None, "clone_in_context": None}
        changes = {"type": "base", "default_voice": None, "capabilities": abilities}
        route.fulfill(json={"models": [model | changes]})

    page.tab.route("**/v1/audio/models", base)
    page.tab.route("**/v1/audio/voices*", lambda route: route.fulfill(json={"voices": voices}))
    page.open(server.url)
    assert not page.tab.is_visible("#mix-share")
    page.tab.get_by_label("Mix with").select_option("bob")
    page.tab.locator("#mix-share").fill("30")
    page.wait(lambda: "voice=ann" in page.tab.url and "30" in page.tab.url)
    page.tab.reload()
    page.wait(lambda: page.status == "Ready")
    assert page.tab.text_content("#mix-value") == "30 %"
    with page.tab.expect_request("**/v1/audio/speech") as asked:
        page.say("Hello.")
    assert json.loads(asked.value.post_data)["voice"] == "ann(70)+bob(30)"
    page.tab.get_by_role("radio", name="Bob").check()
    with page.tab.expect_request("**/v1/audio/speech") as asked:
        page.say("Hello.")
    assert json.loads(asked.value.post_data)["voice"] == "bob"  # not mixed with itself


def test_transcript_is_hidden_if_the_model_clones_without_it(server: Running, page: Driver) -> None:
    def clones(route: Any) -> None:
        model = route.fetch().json()["models"][0]
        abilities = {**model["capabilities"], "clone": None, "clone_in_context": "no encoder"}
        route.fulfill(json={"models": [model | {"capabilities": abilities}]})

    page.tab.route("**/v1/audio/models", clones)
    page.open(server.url)
    assert page.tab.locator("#clone fieldset:disabled").count() == 0
    assert page.tab.locator("#transcript").evaluate("one => one.parentElement.hidden")


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
    page.tab.get_by_label("Description of the voice").fill("Low and dry.")
    page.tab.get_by_label("Name of the designed voice").fill("old man")
    with page.tab.expect_request(lambda asked: asked.method == "POST") as asked:
        page.button("Design").click()
    fields = asked.value.post_data
    assert 'name="prompt"\r\n\r\nLow and dry.\r\n' in fields
    assert 'name="type"\r\n\r\nprompt\r\n' in fields
    page.wait(lambda: page.error, "the real server cannot, and says so")
    assert page.button("Design").is_enabled()


LOSSES = {"skipped": ["Привет", "мир"], "missing_words": ["seven"]}
LOSSES_SHOWN = (
    "Spoken: 0.1 seconds. Left out, because this model does not read it: Привет, мир. "
    "Not spoken: seven."
)


def test_status_names_text_that_was_not_spoken(server: Running, page: Driver) -> None:
    sound = {"type": "speech.audio.delta", "audio": base64.b64encode(b"\0\x10" * 2400).decode()}
    done = {"type": "speech.audio.done", "usage": LOSSES}
    body = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in (sound, done))
    page.open(server.url)
    page.say("One, two.")
    page.wait(lambda: re.fullmatch(r"Spoken: [\d.]+ seconds\.", page.status))
    page.tab.route(
        "**/v1/audio/speech",
        lambda route: route.fulfill(content_type="text/event-stream", body=body),
    )
    page.say("Hello Привет мир seven.")
    page.wait(lambda: page.status == LOSSES_SHOWN)


def test_status_names_text_that_was_not_spoken_in_live_mode(server: Running, page: Driver) -> None:
    def answer(socket: Any, message: str) -> None:
        if json.loads(message)["type"] != "input.done":
            return
        socket.send(json.dumps({"type": "audio.start", "sample_rate": 24_000}))
        socket.send(b"\0\x10" * 2400)
        socket.send(json.dumps({"type": "audio.done", **LOSSES}))
        socket.send(json.dumps({"type": "session.done"}))

    page.tab.route_web_socket(
        "**/v1/audio/speech/stream",
        lambda socket: socket.on_message(lambda message: answer(socket, message)),
    )
    page.open(f"{server.url}/#live=1")
    page.tab.type("#text", "Hello Привет мир seven. ")
    page.wait(lambda: page.status == LOSSES_SHOWN)
