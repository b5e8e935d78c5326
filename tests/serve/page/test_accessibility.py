"""Names, keyboard, contrast, sizes and axe-core's rules, in Chromium."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.page_driver import (
    DESKTOP,
    PHONE,
    Driver,
    tab,
    with_abilities,
    with_two_models,
)
from tests.support.serving import Running

pytestmark = pytest.mark.ci  # Chromium; test_browser.py has the default tests


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
def test_text_has_sufficient_contrast(server: Running, page: Driver, scheme: str) -> None:
    page.tab.emulate_media(color_scheme=scheme)
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
    assert not page.tab.is_visible("#playback")
    page.button("Speak").click()
    page.wait(lambda: page.status.startswith("Spoken"))
    tree = page.tab.locator("body").aria_snapshot()
    for named in (
        'heading "Vivace"', 'textbox "Text to speak"', 'button "Speak"', 'button "Stop"',
        'switch "Live"', 'button "Replay"', 'button "Download"', 'radiogroup "Voice"',
        'radio "Heart"', 'textbox "Instructions"', 'combobox "Language"', 'textbox "Seed"',
        'slider "Speed', 'slider "Position in the speech"', "status", 'form "Clone a voice"',
        'form "Design a voice"', 'button "Record"', 'button "Preview heart"', 'button "Story"',
        'slider "Volume"', 'combobox "Download format"', 'link "API reference"',
        'button "Copy as curl"', 'button "Copy as Python"',
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


def test_buttons_with_the_same_text_have_different_descriptions(
    server: Running, page: Driver
) -> None:
    page.open(server.url)
    for text in ("One.", "Two."):  # each adds a line with buttons to the history
        page.say(text)
        page.wait(lambda: page.status.startswith("Spoken"))
    buttons = page.tab.evaluate(
        "[...document.querySelectorAll('button')].filter((each) => each.checkVisibility()).map("
        "(each) => `${each.ariaLabel ?? each.textContent}: ${each.ariaDescription}`)"
    )
    assert [text for text in buttons if text.startswith(("Copy command:", "Use again:"))]
    assert len(set(buttons)) == len(buttons), buttons


def test_tab_key_reaches_every_control_in_order(server: Running, page: Driver) -> None:
    page.open(server.url)
    page.say("Something.")
    page.wait(lambda: page.status.startswith("Spoken"))
    page.tab.focus("#text")
    reached = []
    for _ in range(20):
        reached.append(
            page.tab.evaluate(
                "({ activeElement: { id, value, ariaLabel } }) => id || value || ariaLabel",
                page.tab.evaluate_handle("document"),
            )
        )
        page.tab.keyboard.press("Tab")
    assert reached == [
        "text", None, None, None, "speak", "live", "text-file", "wave", "play", "volume", "format",
        "download", "heart", "Preview heart", None, "language", "seed", "speed", "curl", "python",
    ]  # fmt: skip


def test_page_fits_a_phone_screen(server: Running, launched: Any) -> None:
    with tab(launched, **PHONE) as page:
        page.tab.route("**/v1/audio/models", with_two_models)
        page.open(server.url)
        page.tab.fill("#text", "Supercalifragilisticexpialidocious" * 3)
        page.tab.tap("#speak")
        page.wait(lambda: page.status.startswith("Spoken"))
        assert page.num_loud > 1_000
        for width in (360, 320):
            page.tab.set_viewport_size({"width": width, "height": 740})
            wide = page.tab.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
            assert wide[0] <= wide[1] == width
            assert page.tab.locator("header").bounding_box()["height"] < 140
            assert page.tab.evaluate(SMALL_TARGETS) == []


def test_controls_are_visible_in_forced_colors(server: Running, page: Driver) -> None:
    page.tab.emulate_media(forced_colors="active")
    page.open(server.url)
    page.say("Something.")
    page.wait(lambda: page.status.startswith("Spoken"))

    def pictures() -> list[bytes]:
        page.tab.focus("#text")  # the focus is not the difference
        return [page.tab.locator(name).screenshot() for name in ("#speed", "#volume", "#live")]

    adjust = page.tab.evaluate("getComputedStyle(speak).forcedColorAdjust")
    assert adjust == "none"  # otherwise the browser draws a box behind the text, in its color
    before = pictures()
    page.tab.fill("#speed", "2")
    page.tab.fill("#volume", "20")
    page.tab.check("#live")
    assert [one == two for one, two in zip(before, pictures(), strict=True)] == [False] * 3


# A control inside a label is as large as the label. A hidden file input has a visible label.
SMALL_TARGETS = """() => [...document.querySelectorAll("a, button, input, select, textarea, canvas[tabindex]")]
  .filter((each) => each.checkVisibility())
  .map((each) => each.labels?.[0]?.matches(".switch, .voice label, [for$=file]") ? each.labels[0] : each)
  .filter((each) => { const { width, height } = each.getBoundingClientRect(); return width < 44 || height < 44; })
  .map((each) => each.id || each.textContent)"""  # noqa: E501


LOOKS = ("light", DESKTOP), ("dark", PHONE["viewport"])
OTHER_LOOKS = ("dark", DESKTOP), ("light", PHONE["viewport"])


@pytest.mark.parametrize("looks", [LOOKS, pytest.param(OTHER_LOOKS, marks=pytest.mark.slow)])
def test_axe_finds_no_violations(
    server: Running, launched: Any, looks: tuple[tuple[str, dict[str, int]], ...]
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-core").Axe()
    body = {"error": {"message": "the engine failed"}}
    with tab(launched, reduced_motion="reduce", **PHONE) as page:

        def check() -> None:
            for scheme, size in looks:
                page.tab.emulate_media(color_scheme=scheme)
                page.tab.set_viewport_size(size)
                violations = axe.run(page.tab).response["violations"]
                assert [(each["id"], each["nodes"][0]["html"]) for each in violations] == []

        page.open(server.url)
        check()
        page.button("Speak").click()
        page.wait(lambda: page.status.startswith("Spoken"))
        page.tab.click("#python")
        check()
        page.tab.route("**/v1/audio/models", with_abilities)
        page.tab.route("**/v1/audio/speech", lambda route: route.fulfill(status=500, json=body))
        page.tab.reload()
        page.wait(lambda: page.status == "Ready")
        page.button("Speak").click()
        page.wait(lambda: page.error, "no error")
        check()
        page.tab.goto(f"{server.url}/docs")
        check()
