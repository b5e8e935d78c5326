"""Errors of the page in Chromium: what they say and where they are shown."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.page_driver import ABLE, PHONE, Driver, is_on_screen, tab, with_abilities
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.serve.settings import ServeSettings

pytestmark = pytest.mark.ci  # Chromium; test_browser.py has the default tests


BUSY = "all slots are busy and 4 requests are waiting (--max-queue); try again in 2.4 s"


@pytest.mark.parametrize(
    ("code", "message", "shown"),
    [
        ("queue_full", BUSY, "The server is busy. Try again in 3 seconds."),
        ("other", "no room, try again later", "No room. Try again in 3 seconds."),
    ],
)
def test_full_server_error_shows_the_retry_delay_once(
    server: Running, page: Driver, code: str, message: str, shown: str
) -> None:
    body = {"error": {"message": message, "code": code}}
    page.tab.route(
        "**/v1/audio/speech",
        lambda route: route.fulfill(status=429, headers={"Retry-After": "3"}, json=body),
    )
    page.open(server.url)
    page.say("Hello.")
    page.wait(lambda: page.error == shown)
    assert page.tab.get_by_role("alert").is_visible()
    assert page.button("Stop").is_disabled()
    page.tab.unroute("**/v1/audio/speech")
    page.button("Speak").click()
    page.wait(lambda: page.status.startswith("Spoken"))
    assert page.error == ""


def test_errors_are_shown_beside_their_controls(server: Running, launched: Any) -> None:
    body = {"error": {"message": "the engine failed", "code": "engine_failed"}}
    with tab(launched, **PHONE) as page:
        page.tab.route("**/v1/audio/models", with_abilities)
        page.tab.route("**/v1/audio/speech", lambda route: route.fulfill(status=500, json=body))
        page.tab.route("**/v1/audio/encode*", lambda route: route.fulfill(status=413, json=body))
        page.open(server.url)
        page.tab.tap("#speak")
        page.wait(lambda: page.tab.is_visible("#error"))
        assert page.error == "The engine failed."
        page.wait(lambda: is_on_screen(page, "#error"))
        page.wait(lambda: is_on_screen(page, "#speak"))
        page.button("Preview heart").tap()
        page.wait(lambda: page.tab.is_visible("#voice-error"))
        page.wait(lambda: is_on_screen(page, "#voice-error"))
        assert not page.tab.is_visible("#error")
        page.tab.get_by_label("Description of the voice").fill("Low and dry.")
        page.tab.get_by_label("Name of the designed voice").fill("old man")
        page.button("Design").tap()
        page.wait(lambda: page.tab.is_visible("#design-error"))
        page.wait(lambda: is_on_screen(page, "#design-error"))
        page.tab.unroute("**/v1/audio/speech")
        page.tab.tap("#speak")
        page.wait(lambda: page.status.startswith("Spoken"))
        page.tab.select_option("#format", "mp3")
        page.button("Download").tap()
        page.wait(lambda: page.tab.is_visible("#download-error"))
        assert page.error == "This is too long for the server to convert. Choose WAV."
        page.wait(lambda: is_on_screen(page, "#download-error"))


def test_speak_before_the_server_is_ready_works_later(server: Running, page: Driver) -> None:
    page.tab.route("**/v1/audio/models", lambda route: route.abort())
    page.open(server.url, is_ready=False)
    page.wait(lambda: page.error.startswith("The server does not answer."))
    page.tab.unroute("**/v1/audio/models")
    page.tab.route("**/v1/audio/models", lambda route: route.fulfill(json={"models": []}))
    page.button("Speak").click()
    page.wait(lambda: page.status == "The server is loading its model.")
    page.tab.unroute("**/v1/audio/models")
    page.wait(lambda: page.status.startswith("Spoken"))
    assert page.error == ""


@pytest.mark.parametrize(
    ("kind", "words"),
    [("base", "voices that you clone, and there is none"), ("voice_design", "Describe the voice")],
)
def test_speak_without_any_voice_shows_the_next_step(
    server: Running, page: Driver, kind: str, words: str
) -> None:
    def voiceless(route: Any) -> None:
        model = {**route.fetch().json()["models"][0], "type": kind, "capabilities": ABLE}
        route.fulfill(json={"models": [model]})

    page.tab.route("**/v1/audio/models", voiceless)
    page.tab.route("**/v1/audio/voices*", lambda route: route.fulfill(json={"voices": []}))
    page.open(server.url)
    assert page.tab.text_content("#voices") == "No voice yet."
    page.button("Speak").click()
    page.wait(lambda: words in page.error)
    if kind == "base":
        page.button("Clone a voice").click()
        page.wait(lambda: is_on_screen(page, "#record"))
    else:
        page.tab.keyboard.type("A calm voice.")  # the field has the focus
        page.button("Speak").click()
        page.wait(lambda: page.status.startswith("Spoken"))


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
    assert page.status == "Enter a text to speak."
    assert page.tab.evaluate("document.activeElement.id") == "text"


def test_api_key_is_requested_and_sent_everywhere(launched: Any, tmp_path: Any) -> None:
    backend = ScriptedSpeech(default=Plan(num_frames=6))
    settings = ServeSettings(port=0, voices=tmp_path, api_keys=("sesame-43",), drain_timeout_s=5.0)
    with running(settings, backend.load) as server, tab(launched) as page:
        page.open(server.url, is_ready=False)
        key = page.tab.get_by_label("This server needs a key")
        key.wait_for()
        assert (page.status, page.error) == ("A key is needed.", "")
        assert httpx.get(f"{server.url}/docs").status_code == 401
        assert not page.tab.is_visible("#reference")  # a link cannot send the key
        key.fill("wrong")
        page.button("Use key").click()
        page.wait(lambda: page.error == "The server does not accept this key.")
        key.fill("sesame-43")
        key.press("Enter")
        page.wait(lambda: page.status == "Ready")
        assert not page.tab.is_visible("#key-form")
        assert page.tab.evaluate("document.activeElement.id") == "text"
        page.say("Let me in.")
        page.wait(lambda: page.status.startswith("Spoken"))
        num_before = page.num_loud
        page.tab.get_by_role("switch", name="Live").check()
        page.tab.locator("#text").press_sequentially(" And here.")
        page.wait(lambda: page.num_loud > num_before, "the socket did not take the key")
        assert page.error == ""
        page.wait(lambda: page.tab.is_disabled("#stop"))
        page.tab.click("#key-toggle")
        key.fill("old")
        key.press("Enter")
        page.wait(lambda: page.error == "The server does not accept this key.")
        page.tab.click("#key-toggle")
        page.tab.locator("#text").press_sequentially(" Once more.")
        page.wait(lambda: page.tab.is_visible("#key-form"), "the socket gave no reason")
