"""Take the pictures of the web page in `docs/images` while the embedded voice speaks.

    vivace serve --port 8000 &
    pip install playwright; python scripts/make_page_pictures.py http://127.0.0.1:8000

Needs Chromium of the system. The pictures show the figures of the machine; run this on an idle one.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDE = {"viewport": {"width": 1280, "height": 800}, "device_scale_factor": 1.5}
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "has_touch": True,
    "is_mobile": True,
}
PICTURES = {
    "page-light": ("light", WIDE),
    "page-dark": ("dark", WIDE),
    "page-phone": ("dark", PHONE),
    "page-phone-light": ("light", PHONE),
}
SHOWN_S = 3.0  # into the speech


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--seed", default="11")
    parser.add_argument("--out", type=Path, default=IMAGES)
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--autoplay-policy=no-user-gesture-required"],
        )
        for name, (scheme, screen) in PICTURES.items():
            tab = browser.new_page(color_scheme=scheme, **screen)
            tab.goto(arguments.url)
            photograph(tab, arguments.seed, arguments.out / f"{name}.png")
            tab.close()
        browser.close()


def photograph(tab: Any, seed: str, path: Path) -> None:
    """Speak the sample twice, so that the second time everything is warm, and take a picture."""
    tab.fill("#seed", seed)
    for _ in range(2):
        tab.click("#speak:enabled")
        tab.wait_for_selector("#real-time:not(:text-is('–'))")
        tab.mouse.move(0, 0)
        tab.evaluate("document.activeElement.blur()")
        tab.wait_for_timeout(1000 * SHOWN_S)
    tab.evaluate("scrollTo(0, 0)")
    tab.screenshot(path=path)
    print(path, tab.inner_text("#figures").replace("\n", " "))


if __name__ == "__main__":
    main()
