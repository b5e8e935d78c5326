"""Write docs/modules.md: every module of the package with the first line of its docstring.

    python scripts/make_modules.py

The page is built from the sources and not committed.
"""

from __future__ import annotations

import ast
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "vivace"


def main() -> None:
    (ROOT / "docs" / "modules.md").write_text(make_page(), encoding="utf-8")


def make_page() -> str:
    paths = (path for path in PACKAGE.rglob("*.py") if path.stat().st_size)
    modules = sorted(path.relative_to(PACKAGE) for path in paths)
    modules.sort(key=lambda path: path.parts[:-1][:1])  # stable: by package, then by name
    parts = ["# Modules", "Written by `scripts/make_modules.py` from the docstrings."]
    for package, members in groupby(modules, key=lambda path: path.parts[:-1][:1]):
        rows = [f"| `{path.as_posix()}` | {first_line(path)} |" for path in members]
        head = ["| module | responsibility |", "|---|---|"]
        parts.append(f"## {'/'.join(('vivace', *package))}\n\n" + "\n".join([*head, *rows]))
    return "\n\n".join(parts) + "\n"


def first_line(module: Path) -> str:
    """The first line of the docstring; empty without one."""
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").split("\n")[0]


if __name__ == "__main__":
    main()
