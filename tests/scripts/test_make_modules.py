"""The generated page of modules."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.support.project import ROOT, load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(ROOT / "scripts" / "make_modules.py")


@pytest.fixture(scope="module")
def page(script: ModuleType) -> str:
    made: str = script.make_page()
    return made


def test_page_describes_every_module_with_code(script: ModuleType, page: str) -> None:
    for path in script.PACKAGE.rglob("*.py"):
        name = path.relative_to(script.PACKAGE)
        if path.stat().st_size:
            line = script.first_line(name)
            assert line, f"{name} has no docstring"
            assert f"| `{name.as_posix()}` | {line} |" in page
        else:
            assert f"`{name.as_posix()}`" not in page


def test_page_groups_modules_by_package(page: str) -> None:
    headings = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    assert headings == sorted(set(headings))
    assert "vivace/engine" in headings
