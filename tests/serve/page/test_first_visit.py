"""The page on a first visit in Chromium: sample, examples, transport, downloads and code."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import httpx
import pytest

from tests.support.page_driver import Driver, is_on_screen, proxy, tab
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.serve.settings import ServeSettings

pytestmark = pytest.mark.ci  # Chromium; test_browser.py has the default tests


FORMATS = {"wav": b"RIFF", "mp3": (b"\xff", b"ID3"), "flac": b"fLaC", "opus": b"OggS"}


MAX_WIRE_BYTES = 90_000


def test_first_visit_transfers_little_and_from_one_host(server: Running, launched: Any) -> None:
    sizes: dict[str, int] = {}

    def measure(request: Any) -> None:
        found = request.sizes()
        sizes[request.url] = found["responseBodySize"] + found["responseHeadersSize"]

    with tab(launched) as page:
        page.tab.on("requestfinished", measure)
        page.open(server.url)
        page.button("Speak").click()  # also loads the worklet
        page.wait(lambda: page.status.startswith("Spoken"))
        page.tab.remove_listener("requestfinished", measure)
    assert {url.split("/")[2] for url in sizes} == {f"127.0.0.1:{server.port}"}
    own = {url: size for url, size in sizes.items() if "/v1/" not in url}
    assert len(own) > 15
    assert sum(own.values()) < MAX_WIRE_BYTES, own


def test_first_screen_speaks_the_sample(server: Running, page: Driver) -> None:
    page.open(server.url)
    for selector in ("#text", "#speak", "#examples", "#voices"):
        assert is_on_screen(page, selector)
    assert not page.tab.is_visible("#playback")
    page.button("Speak").click()
    page.wait(lambda: page.status.startswith("Spoken"))
    assert page.tab.text_content("#history p") == page.tab.input_value("#text")
    assert is_on_screen(page, "#wave")
    page.tab.focus("#text")
    page.tab.keyboard.type("Mine.")  # the sample is selected, so typing replaces it
    assert page.tab.input_value("#text") == "Mine."
    page.check()


def test_example_is_spoken_at_once(server: Running, page: Driver) -> None:
    page.open(server.url)
    page.button("Story").click()
    page.wait(lambda: page.status.startswith("Spoken"))
    assert page.tab.input_value("#text").startswith("The lighthouse keeper")
    assert page.num_loud > 1_000
    page.check()


def test_live_mode_starts_without_the_sample(server: Running, page: Driver) -> None:
    page.open(server.url)
    page.tab.get_by_role("switch", name="Live").check()
    assert page.tab.input_value("#text") == ""


def test_download_has_the_chosen_format(server: Running, page: Driver) -> None:
    page.open(server.url)
    page.say("Keep this.")
    page.wait(lambda: page.status.startswith("Spoken"))
    for format, start in FORMATS.items():
        page.tab.select_option("#format", format)
        with page.tab.expect_download() as saved:
            page.button("Download").click()
        assert saved.value.suggested_filename == f"Keep-this.{format}"
        content = saved.value.path().read_bytes()
        assert content.startswith(start), format
        assert b"AI-generated speech" in content, format
    page.check()


def is_at_rest(page: Driver) -> bool:
    """Whether the shown position stays. It may be drawn late."""
    before = page.tab.get_attribute("#wave", "aria-valuenow")
    page.tab.wait_for_timeout(500)
    return bool(page.tab.get_attribute("#wave", "aria-valuenow") == before)


def test_pause_holds_the_position_and_resume_continues(launched: Any, tmp_path: Any) -> None:
    backend = ScriptedSpeech(default=Plan(num_frames=40))
    settings = ServeSettings(port=0, voices=tmp_path, drain_timeout_s=5.0)
    with running(settings, backend.load) as server, tab(launched) as page:
        page.open(server.url)
        page.say("Wait for me, please. " * 200)  # longer than any pause of a busy machine
        page.wait(lambda: page.num_loud > 4_000, "no sound")
        page.button("Pause").click()
        page.wait(lambda: page.status == "Paused")
        page.wait(lambda: is_at_rest(page), "the position moves")
        num_before = page.num_loud
        page.button("Resume").click()
        page.wait(lambda: page.num_loud > num_before, "not heard again")
        page.tab.focus("#wave")
        page.tab.keyboard.press("Space")
        page.wait(lambda: page.status == "Paused")
        page.tab.keyboard.press("Space")
        page.wait(lambda: page.status == "Speaking")
        page.button("Stop").click()
        page.wait(lambda: page.button("Replay").is_visible())


def test_volume_is_applied_and_remembered(server: Running, page: Driver) -> None:
    page.open(server.url)
    page.say("Loud.")
    page.wait(lambda: page.status.startswith("Spoken"))
    page.wait(lambda: page.is_silent)
    num_before, num_shown = page.num_loud, len(page.statuses)
    page.tab.locator("#volume").fill("0")
    page.button("Replay").click()
    page.wait(lambda: "Speaking" in page.statuses[num_shown:])
    page.wait(lambda: page.status.startswith("Spoken"))
    page.wait(lambda: page.is_silent)
    assert page.num_loud < 1.5 * num_before
    page.tab.reload()
    page.wait(lambda: page.status == "Ready")
    assert page.tab.input_value("#volume") == "0"


def test_text_file_is_opened_and_other_files_are_refused(server: Running, page: Driver) -> None:
    page.open(server.url)
    for content in ("Grüße\r\naus Köln\n".encode(), "Grüße\naus Köln".encode("windows-1252")):
        page.tab.fill("#text", "")
        file = {"name": "a.txt", "mimeType": "text/plain", "buffer": content}
        page.tab.set_input_files("#text-file", file)
        page.wait(lambda: page.tab.input_value("#text") == "Grüße\naus Köln")
    binary = {"name": "a.zip", "mimeType": "", "buffer": b"PK\x03\x04\x00"}
    page.tab.set_input_files("#text-file", binary)
    page.wait(lambda: page.error == "a.zip is not a text file. Open a .txt or .md file.")
    assert page.tab.input_value("#text") == "Grüße\naus Köln"
    page.check()


HARD_TEXT = 'It\'s "fine": $HOME `x` \\n 你好 😀'


@pytest.mark.parametrize("kind", ["curl", "Python"])
def test_copied_code_makes_the_same_request(
    server: Running, page: Driver, tmp_path: Any, kind: str
) -> None:
    page.open(f"{server.url}/#seed=7&speed=1.5")
    page.tab.fill("#text", HARD_TEXT)
    page.button(f"Copy as {kind}").click()
    page.wait(lambda: "is copied" in page.status)
    code = page.tab.evaluate("navigator.clipboard.readText()")
    assert page.tab.text_content("#snippet") == code
    command = ["bash", "-c", code] if kind == "curl" else [sys.executable, "-c", code]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    said = httpx.post(
        f"{server.url}/v1/audio/speech",
        json={"input": HARD_TEXT, "seed": 7, "speed": 1.5, "response_format": "wav"},
    )
    assert (tmp_path / "speech.wav").read_bytes() == said.content


def test_copied_code_does_not_contain_the_key(server: Running, page: Driver) -> None:
    page.run_first("sessionStorage.setItem('vivace.key', 'secret-43')")
    page.open(server.url)
    for name in ("curl", "python"):
        page.tab.click(f"#{name}")
        page.wait(lambda: "is copied" in page.status)
        code = page.tab.text_content("#snippet")
        assert "secret" not in code
        assert "VIVACE_API_KEY" in code


def test_page_works_under_a_sub_path(server: Running, page: Driver) -> None:
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    with proxy(server.port, "/a/deep/path") as url:
        page.open(url)
        page.say("Hello from below.")
        page.wait(lambda: page.status.startswith("Spoken"))
        num_before = page.num_loud
        assert num_before > 1_000
        page.tab.get_by_role("switch", name="Live").check()
        page.tab.locator("#text").press_sequentially(" Now live. ")
        page.wait(lambda: page.num_loud > num_before, "the socket is not heard")
    assert sockets[0].endswith("/a/deep/path/v1/audio/speech/stream")
