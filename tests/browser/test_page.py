"""The page that speaks in the browser, in Chromium. The voice is a tone; see `try_page`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import soundfile

from tests.support.page_driver import DESKTOP, LONG_TIMEOUTS, PHONE, Driver, tab
from tests.support.try_page import NUM_FRAMES, SAMPLES_PER_FRAME, Site, serve

pytestmark = pytest.mark.ci  # Chromium

SPEECH_MS = 600
NUM_CORES = "Object.defineProperty(navigator, 'hardwareConcurrency', { value: %d })"
MOST_REPEATS = 30
DAMAGE = """async () => {
  const cache = await caches.open("vivace-try"), keys = await cache.keys();
  await cache.put(keys.find(({ url }) => url.includes("frame.onnx")), new Response("damaged"));
}"""
ITEM = "(({ numFrames, codes, seed, track }) => ({ numFrames, codes, seed, num: track.length }))"


def open_page(page: Driver, site: Site) -> None:
    page.tab.goto(site.url)
    page.wait(lambda: page.status.startswith("Ready"), "ready")


def speak(page: Driver, text: str) -> dict[str, Any]:
    """Speak a text to its end; return its frames and samples."""
    page.say(text)
    page.wait(lambda: page.status.startswith("Spoken"), "spoken")
    item: dict[str, Any] = page.tab.evaluate(f"{ITEM}(vivaceTry.playback.item)")
    return item


def wait_for_error(page: Driver, message: str) -> None:
    page.wait(lambda: message in page.error, message)


def test_page_speaks_all_samples_of_all_frames(page: Driver, site: Site) -> None:
    loads: list[str] = []
    page.on("framenavigated", lambda frame: loads.append(frame.url))
    page.run_first(NUM_CORES % 2)
    open_page(page, site)
    assert site.num_assets == 0  # nothing is downloaded before the first speech
    page.tab.fill("#seed", "5")
    item = speak(page, "Hello there.")
    assert item["numFrames"] == NUM_FRAMES
    assert item["num"] == NUM_FRAMES * SAMPLES_PER_FRAME
    for _ in range(MOST_REPEATS):  # a busy machine loses most samples
        page.tab.wait_for_timeout(2 * SPEECH_MS)
        if page.num_loud > 1_000:
            break
        assert speak(page, "Hello there.")["codes"] == item["codes"]
    assert page.num_loud > 1_000
    assert page.pitch_hz == pytest.approx(300, rel=0.15)
    assert speak(page, "Hello there.")["codes"] == item["codes"]
    page.tab.fill("#seed", "6")
    assert speak(page, "Hello there.")["codes"] != item["codes"]
    # Two cores have no thread for the codec, so that the page need not be isolated.
    assert page.tab.evaluate("[vivaceTry.speaker.numThreads, crossOriginIsolated]") == [1, False]
    assert loads == [site.url]
    page.check()


def test_page_contacts_its_own_host_only_and_downloads_once(launched: Any, site: Site) -> None:
    """A stored file that is damaged is downloaded again, alone."""
    requests: list[str] = []
    with tab(launched) as page:
        page.tab.context.on("request", lambda request: requests.append(request.url))
        open_page(page, site)
        speak(page, "First visit.")
        num_files = site.num_assets
        assert num_files >= 6
        page.tab.reload()
        page.wait(lambda: page.status.startswith("Ready"))
        speak(page, "Second visit.")
        assert site.num_assets == num_files
        page.tab.evaluate(DAMAGE)
        page.tab.reload()
        page.wait(lambda: page.status.startswith("Ready"))
        speak(page, "Third visit.")
        assert site.num_assets == num_files + 1
        page.check()
    assert len(requests) > 20
    assert [url for url in requests if not url.startswith((site.url, "blob:", "data:"))] == []


def test_page_adds_silence_between_sentences(page: Driver, site: Site) -> None:
    open_page(page, site)
    item = speak(page, "Hello.\n\nGood bye, and see you soon.")
    assert item["numFrames"] == 2 * NUM_FRAMES
    assert item["num"] == 2 * NUM_FRAMES * SAMPLES_PER_FRAME + round(0.9 * 24_000)


def test_stop_ends_sound_and_work(page: Driver, site: Site) -> None:
    open_page(page, site)
    page.say(
        "This one sentence is so long that the tone of this test speaks on and on and on until "
        "somebody finally stops it."
    )
    page.wait(lambda: page.num_loud > 5_000, "sound")
    page.tab.click("#stop")
    assert page.status == "Stopped"
    page.wait(lambda: page.is_silent, "silence")
    item = speak(page, "Short.")  # the workers are free again
    assert item["numFrames"] == NUM_FRAMES
    page.check()


def test_download_is_a_wav_file_of_the_speech(page: Driver, site: Site) -> None:
    open_page(page, site)
    item = speak(page, "Save me.")
    with page.tab.expect_download() as waiting:
        page.button("Download WAV").click()
    path = Path(waiting.value.path())
    assert waiting.value.suggested_filename == "Save-me.wav"
    body = path.read_bytes()
    assert int.from_bytes(body[4:8], "little") == len(body) - 8
    assert b"ICMT" in body[:120]
    assert b"AI-generated speech" in body[:120]
    samples, rate = soundfile.read(path)
    assert (len(samples), rate) == (item["num"], 24_000)
    assert 0.2 < abs(samples).max() < 0.35


def test_page_names_invalid_input(page: Driver, site: Site) -> None:
    cases = [
        ("", "", "Enter a text"),
        ("Привет", "", "only English"),
        ("?!", "", "no words"),
        ("x" * 5_001, "", "5,001 characters"),
        ("Hello.", "-1", "Seed must be"),
        ("Hello.", "9" * 15, "Seed must be"),
    ]
    open_page(page, site)
    for text, seed, message in cases:
        page.tab.fill("#seed", seed)
        page.say(text)
        wait_for_error(page, message)
        assert page.tab.is_enabled("#speak")
    page.tab.fill("#seed", "")
    speak(page, "It still speaks.")
    assert page.error == ""


def test_page_without_webassembly_shows_the_reason(page: Driver, site: Site) -> None:
    page.run_first("delete globalThis.WebAssembly")
    page.tab.goto(site.url)
    wait_for_error(page, "WebAssembly")
    assert not page.tab.is_enabled("#speak")


@pytest.mark.slow  # as the test of an interrupted download
def test_page_retries_after_a_failed_download(page: Driver, site: Site) -> None:
    open_page(page, site)
    page.tab.route("**/codec.onnx.gz*", lambda route: route.abort())
    page.say("Hello.")
    wait_for_error(page, "could not be downloaded")
    page.tab.unroute("**/codec.onnx.gz*")
    assert speak(page, "Hello again.")["numFrames"] == NUM_FRAMES


def test_page_rejects_a_damaged_file(page: Driver, site: Site) -> None:
    page.tab.route("**/frame.onnx.gz*", lambda route: route.fulfill(body=b"something else"))
    open_page(page, site)
    page.say("Hello.")
    wait_for_error(page, "damaged")


def test_page_without_a_voice_shows_no_controls(page: Driver, site: Site) -> None:
    page.tab.route("**/assets/**", lambda route: route.fulfill(status=404))
    page.tab.goto(site.url)
    page.tab.wait_for_selector("#no-voice:visible")
    assert not page.tab.is_visible("#speak")
    assert not page.tab.is_visible("#text")


def test_interrupted_download_is_reported_and_can_be_repeated(page: Driver, site: Site) -> None:
    open_page(page, site)
    site.truncated = "codec.onnx.gz"
    page.say("Hello.")
    wait_for_error(page, "again")
    num_files = site.num_assets
    site.truncated = ""
    assert speak(page, "Hello again.")["numFrames"] == NUM_FRAMES
    assert site.num_assets < 2 * num_files  # files that were complete are not downloaded again


FORBIDDEN = """for (const name of ["localStorage", "sessionStorage", "caches"]) {
  Object.defineProperty(window, name, { get() { throw new DOMException("no", "SecurityError"); } });
}
const refuse = () => Promise.reject(new DOMException("no", "SecurityError"));
Object.defineProperty(navigator, "serviceWorker", {
  value: { controller: null, register: refuse, getRegistration: refuse } });"""
FULL = """const full = () => { throw new DOMException("full", "QuotaExceededError"); };
Cache.prototype.put = async () => full();
Storage.prototype.setItem = full;"""


@pytest.mark.parametrize("storage", [FORBIDDEN, FULL], ids=["forbidden", "full"])
def test_page_speaks_without_storage(storage: str, page: Driver, site: Site) -> None:
    page.run_first(storage)
    open_page(page, site)
    speak(page, "Nothing is kept.")
    speak(page, "It speaks again.")
    page.check()


def test_page_speaks_without_a_connection_after_a_visit(launched: Any, site: Site) -> None:
    with tab(launched) as page:
        open_page(page, site)
        page.tab.evaluate("""navigator.serviceWorker.addEventListener("message",
          ({ data }) => { window.isKept = data.isKept; })""")
        speak(page, "First visit.")
        page.wait(lambda: page.tab.evaluate("window.isKept"), "files kept")
        site.is_down = True
        for path in ("index.html", ""):
            page.tab.goto(site.url + path)
            page.wait(lambda: page.status == "Ready", "ready")
        speak(page, "There is no connection.")
        assert page.tab.evaluate("document.fonts.size") > 0


@pytest.mark.parametrize(
    ("num_cores", "path"),
    [
        pytest.param(8, "", id="8 cores in an iframe"),
        pytest.param(2, "try/", id="2 cores", marks=pytest.mark.slow),
        pytest.param(2, "", id="2 cores in an iframe", marks=pytest.mark.slow),
        pytest.param(8, "try/", id="8 cores", marks=pytest.mark.slow),
    ],
)
def test_page_becomes_isolated_for_threads(
    num_cores: int, path: str, launched: Any, folder: Path, tmp_path: Path
) -> None:
    """The page loads itself again, once, if the codec can use more than one thread."""
    shutil.copytree(folder, tmp_path / "try")
    (tmp_path / "index.html").write_text('<!doctype html><iframe src="try/"></iframe>')
    loads: list[str] = []
    with serve(tmp_path) as site, tab(launched) as page:
        page.tab.add_init_script(LONG_TIMEOUTS)  # the page waits 3 s for its service worker
        page.tab.add_init_script(NUM_CORES % num_cores)
        page.tab.on("framenavigated", lambda frame: loads.append(frame.url))
        page.tab.goto(site.url + path)
        frame = page.tab.frames[-1]
        page.wait(lambda: str(frame.text_content("#status")).startswith("Ready"), "ready")
        assert frame.evaluate("crossOriginIsolated") is (num_cores > 2)
        assert loads.count(f"{site.url}try/") == (2 if num_cores > 2 else 1)
        frame.fill("#text", "Short.")  # the page's own text lasts a minute
        frame.click("#speak")
        page.wait(lambda: str(frame.text_content("#status")).startswith("Spoken"), "spoken")
        assert frame.evaluate("vivaceTry.speaker.numThreads") == (4 if num_cores > 2 else 1)


def test_blocked_sound_starts_with_a_click(page: Driver, site: Site) -> None:
    """A browser that blocks sound: the context stays suspended until it is resumed by a click."""
    page.run_first("""const resume = AudioContext.prototype.resume;
      AudioContext.prototype.resume = function () {
        if (window.isAllowed) return resume.call(this);
        this.suspend();
        return new Promise(() => {});
      };""")
    open_page(page, site)
    page.say("Hello.")
    page.wait(lambda: "blocks sound" in page.status, "hint")
    page.tab.evaluate("window.isAllowed = true")
    page.tab.click("#count")
    page.wait(lambda: page.status.startswith("Spoken"), "spoken")
    assert page.num_loud > 0


def test_axe_finds_no_violations(launched: Any, site: Site) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-core").Axe()
    with tab(launched, reduced_motion="reduce", **PHONE) as page:

        def check() -> None:
            for scheme, size in (("light", DESKTOP), ("dark", PHONE["viewport"])):
                page.tab.emulate_media(color_scheme=scheme)
                page.tab.set_viewport_size(size)
                violations = axe.run(page.tab).response["violations"]
                assert [(each["id"], each["nodes"][0]["html"]) for each in violations] == []
                width = page.tab.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert width <= 0

        open_page(page, site)
        check()
        speak(page, "Accessible.")
        check()
        page.say("")
        page.wait(lambda: page.error)
        check()
