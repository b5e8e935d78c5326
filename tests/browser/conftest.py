"""A browser, a tab in it, and the page with a voice that is a tone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.page_driver import Driver, browser, tab
from tests.support.project import ROOT, load_script
from tests.support.try_page import Site, serve, write_tone_runtime, write_tone_voice


@pytest.fixture(scope="module")
def launched() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def kept_tab(launched: Any) -> Iterator[Driver]:
    with tab(launched) as driver:
        yield driver


@pytest.fixture
def page(kept_tab: Driver, site: Site) -> Iterator[Driver]:
    """A tab without stored data; the next test uses it again."""
    yield kept_tab
    site.is_down = False
    kept_tab.renew(f"{site.url}page/icon.svg")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The assembled page."""
    scratch = tmp_path_factory.mktemp("try")
    script = load_script(ROOT / "scripts" / "make_try_page.py")
    voice = write_tone_voice(scratch / "voice")
    script.assemble(scratch / "page", voice, write_tone_runtime(scratch / "runtime.tgz"))
    return scratch / "page"


@pytest.fixture(scope="module")
def kept_site(folder: Path) -> Iterator[Site]:
    with serve(folder) as running:
        yield running


@pytest.fixture
def site(kept_site: Site) -> Site:
    """A site without requests so far. Tests share its origin, so that the tab keeps its process."""
    kept_site.renew()
    return kept_site
