"""Speaks, plays, stops and saves on the page in Chromium. Skipped if Chromium is missing."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator

import pytest

from tests.support.page_driver import Driver
from tests.support.scripted_tts import SAMPLES_PER_FRAME, Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.serve.settings import ServeSettings

SHORT = 1  # a seed
LONG_TEXT = "This goes on and on. " * 2_000  # minutes of speech, so that it is active when stopped


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech(plans={SHORT: Plan(num_frames=12)}, step_s=0.02)


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose voice is a tone."""
    voices = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, voices=voices, drain_timeout_s=5.0), backend.load) as served:
        yield served


def num_running(server: Running) -> int:
    return sum(model.tts.engine.num_running for model in server.context.models.loaded())


def milliseconds(page: Driver, name: str) -> int:
    number, unit = str(page.tab.text_content(f"#{name}")).split()
    assert unit == "ms"
    return int(number)


def test_speak_button_plays_the_speech(server: Running, page: Driver) -> None:
    page.open(f"{server.url}/#seed={SHORT}")
    assert page.num_loud == 0
    page.say("Hello.")
    page.wait(lambda: page.status.startswith("Spoken"))
    assert page.num_loud > 1_000  # on a busy machine the recorder loses most samples
    assert page.pitch_hz == pytest.approx(440, rel=0.15)
    assert milliseconds(page, "audible") == milliseconds(page, "first-audio")
    assert page.tab.text_content("#real-time").endswith("×")
    assert page.tab.text_content("#clock").endswith("1.0 s")
    page.check()


def test_audible_counts_the_silence_before_the_first_sound(server: Running, page: Driver) -> None:
    page.open(f"{server.url}/#seed={SHORT}")
    page.say("[pause 1s] Hello.")
    page.wait(lambda: page.status.startswith("Spoken"))
    silence = milliseconds(page, "audible") - milliseconds(page, "first-audio")
    assert silence == pytest.approx(1_000, abs=25)  # in steps of 20 ms
    page.check()


@pytest.mark.ci
def test_playback_starts_before_the_last_byte_and_ends_on_stop(
    server: Running, page: Driver
) -> None:
    page.open(server.url)
    page.say(LONG_TEXT)
    page.wait(lambda: page.num_loud > 4_000, "no sound")
    page.button("Stop").click()
    page.wait(lambda: page.is_silent, "not silent after Stop")
    # The body was incomplete; otherwise the request would not count as aborted.
    page.wait(lambda: page.aborted == [f"{server.url}/v1/audio/speech"], "still asked for")
    page.wait(lambda: num_running(server) == 0, "the slot is not free")
    assert page.status == "Stopped."
    assert page.button("Stop").is_disabled()
    page.check()


@pytest.mark.ci
def test_keyboard_shortcuts_speak_and_stop(server: Running, page: Driver) -> None:
    page.open(server.url)
    page.tab.focus("#text")
    page.tab.keyboard.insert_text(LONG_TEXT)
    page.tab.keyboard.type("Typed.")
    page.tab.keyboard.press("Control+Enter")
    page.wait(lambda: page.num_loud > 1_000, "no sound")
    page.tab.keyboard.press("Escape")
    page.wait(lambda: page.is_silent, "not silent after Escape")
    page.wait(lambda: page.aborted == [f"{server.url}/v1/audio/speech"], "still asked for")
    assert page.status == "Stopped."
    assert page.tab.input_value("#text") == f"{LONG_TEXT}Typed."
    page.check()


@pytest.mark.ci
def test_second_speech_replaces_the_first(server: Running, page: Driver) -> None:
    page.open(server.url)
    page.say(LONG_TEXT)
    page.wait(lambda: page.num_loud > 1_000, "no sound")
    page.tab.fill("#seed", str(SHORT))
    page.say("Only this.")
    page.wait(lambda: page.status.startswith("Spoken"))
    page.wait(lambda: num_running(server) == 0, "the first is still made")
    page.check()


@pytest.mark.ci
def test_replay_of_an_older_speech_stops_the_newer(server: Running, page: Driver) -> None:
    page.open(f"{server.url}/#seed={SHORT}")
    page.say("The older one.")
    page.wait(lambda: page.status.startswith("Spoken"))
    page.say(LONG_TEXT)
    page.wait(lambda: page.status == "Speaking")
    page.button("Play").click()
    page.wait(lambda: page.aborted == [f"{server.url}/v1/audio/speech"], "still asked for")
    page.wait(lambda: page.status == "Spoken: 1.0 seconds.")
    page.check()


@pytest.mark.ci
def test_download_saves_the_speech(server: Running, page: Driver) -> None:
    page.open(f"{server.url}/#seed={SHORT}")
    page.say("Save me, please!")
    page.wait(lambda: page.status.startswith("Spoken"))
    with page.tab.expect_download() as saved:
        page.button("Download").click()
    assert saved.value.suggested_filename == "Save-me-please.wav"
    content = saved.value.path().read_bytes()
    with wave.open(io.BytesIO(content)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        assert file.getnframes() == 12 * SAMPLES_PER_FRAME
    page.check()


def test_samples_split_at_any_byte_are_played(server: Running, page: Driver) -> None:
    page.open(server.url)
    samples, peaks = page.tab.evaluate("""async () => {
      const { Track } = await import("/page/audio.js");
      const track = new Track(100), all = Int16Array.from({ length: 5000 }, (_, i) => i);
      for (let at = 0, size = 1; at < all.length; at += size, size = 1 + (size * 7) % 613) {
        track.add(all.slice(at, at + size));
      }
      return [[...track.samples.slice(0, track.length)], track.peaks.length];
    }""")
    assert samples == list(range(5_000))
    assert peaks == 2_500  # one every 20 ms


# In a timer, because the policy does not apply to Playwright's own call.
EVALUATE = """() => new Promise((tell) => setTimeout(() => {
  try { tell(eval("1 + 1")); } catch { tell("refused"); }
}))"""


def test_page_under_its_policy_evaluates_no_text_and_speaks(server: Running, page: Driver) -> None:
    page.open(server.url)
    assert page.tab.evaluate(EVALUATE) == "refused"
    assert page.tab.evaluate("violations.splice(0)") == ["eval"]
    page.tab.fill("#seed", str(SHORT))
    page.say("Hello.")
    page.wait(lambda: page.num_loud > 0, "nothing is heard under the strict policy")


def test_api_reference_under_its_policy_is_styled(server: Running, page: Driver) -> None:
    page.tab.goto(f"{server.url}/docs")
    assert page.tab.evaluate("getComputedStyle(document.body).maxWidth") == "896px"
    page.check()
