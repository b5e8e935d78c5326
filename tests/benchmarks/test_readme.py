"""benchmarks/README.md lists every script and every result."""

from __future__ import annotations

import re
from fnmatch import fnmatch

from tests.support.project import ROOT

FOLDER = ROOT / "benchmarks"
CODE = re.findall(r"`([^`]+)`", (FOLDER / "README.md").read_text(encoding="utf-8"))


def test_readme_lists_every_script() -> None:
    named = {word for text in CODE for word in re.findall(r"[\w.]+\.(?:py|sh)", text)}
    scripts = {path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".sh")}
    assert scripts - named == set()
    elsewhere = {"make_tables.py", "tiles.py"}
    assert named - scripts - elsewhere == set()


def test_readme_lists_every_result() -> None:
    patterns = [text for text in CODE if text.endswith((".json", "-h200.log"))]
    results = sorted(path.name for path in (FOLDER / "results").iterdir())
    assert [name for name in results if not any(fnmatch(name, each) for each in patterns)] == []
    for pattern in patterns:
        assert any(fnmatch(name, pattern) for name in results), f"no result is named {pattern}"
