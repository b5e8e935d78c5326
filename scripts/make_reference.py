"""Write the reference pages in `docs/reference` from docstrings, settings, metrics and OpenAPI.

    python scripts/make_reference.py

The pages are committed, so that they can be read without building the site. A test compares them
with the sources.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from reference.api import api_page
from reference.endpoints import endpoints_page
from reference.errors import errors_page
from reference.server import metrics_page, settings_page

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "api.md": api_page,
    "endpoints.md": endpoints_page,
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "errors.md": errors_page,
}


def write_pages(folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        (folder / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    write_pages()
