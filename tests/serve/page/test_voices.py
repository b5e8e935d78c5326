"""The page creates voices on a server with tiny checkpoints, and speaks with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.page_driver import Driver, make_wav
from tests.support.serving import Running, running
from vivace.serve.settings import ModelSpec, ServeSettings

pytestmark = pytest.mark.ci  # Chromium; test_browser.py has the default tests


@pytest.fixture(scope="module")
def server(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    kinds = ("custom_voice", "base", "voice_design")
    models = tuple(ModelSpec(f"tiny/{kind}", str(tiny_folder / kind)) for kind in kinds)
    voices = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, models=models, voices=voices, drain_timeout_s=5.0)) as made:
        yield made


def speaks(page: Driver) -> None:
    """Wait for any audio: untrained weights make noise of any length.

    With a seed, speech that does not end is no error.
    """
    before = page.num_loud
    page.tab.evaluate("document.getElementById('seed').value = '5'")
    page.say("Hello.")
    page.wait(lambda: page.num_loud > before or page.error, "no sound")
    assert page.error == ""
    page.button("Stop").click(force=True)


def test_page_clones_and_deletes_a_voice(server: Running, page: Driver) -> None:
    page.open(server.url)
    assert page.tab.locator("#model option").count() == 3
    speaks(page)

    page.tab.locator("#clone-need").get_by_role("button", name="Use tiny/base").click()
    page.wait(lambda: page.tab.is_visible("#drop"))
    content = make_wav(2, 0.5)
    page.tab.set_input_files("#file", {"name": "Me.wav", "mimeType": "", "buffer": content})
    page.wait(lambda: page.button("Clone").is_enabled())
    page.tab.fill("#clone-name", "日本")
    page.button("Clone").click()
    page.wait(lambda: page.error.startswith("The name needs a letter"))
    assert page.status == "That did not work."
    page.tab.fill("#clone-name", " Zoë Weiß ")
    page.button("Clone").click()
    page.wait(lambda: page.status == "The voice zoe-weiss is ready.", "not cloned")
    assert page.tab.get_by_role("radio", name="Zoe Weiss", exact=True).is_checked()
    speaks(page)

    page.on("dialog", lambda dialog: dialog.accept())
    page.button("Delete voice").click()
    page.wait(lambda: page.status == "The voice zoe-weiss is deleted.", "not deleted")
    assert page.tab.get_by_role("radio").count() == 0
    page.check()


def test_page_speaks_with_a_designed_voice(server: Running, page: Driver) -> None:
    page.open(f"{server.url}/#model=tiny/voice_design")
    page.tab.get_by_label("Instructions").fill("A calm, low voice.")
    speaks(page)
    page.check()
