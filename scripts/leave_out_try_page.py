"""Copy the documentation without the try page, for a site that is built without the voice.

    python scripts/leave_out_try_page.py build

Writes build/docs and build/mkdocs.yml, whose site is build/site. The lines between
`<!-- try page -->` and `<!-- end of try page -->` are left out; all links to the page are there.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"^<!-- try page -->\n.*?^<!-- end of try page -->\n", re.MULTILINE | re.DOTALL)
FOLDERS = {"docs_dir": "docs", "site_dir": "site"}  # beside the written mkdocs.yml


def leave_out(target: Path) -> None:
    docs = target / "docs"
    shutil.rmtree(docs, ignore_errors=True)
    shutil.copytree(ROOT / "docs", docs, ignore=shutil.ignore_patterns("try"))
    for page in docs.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        page.write_text(MARKED.sub("", text), encoding="utf-8")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name, folder in FOLDERS.items():
        config = re.sub(rf"^{name}: .*$", f"{name}: {folder}", config, flags=re.MULTILINE)
    (target / "mkdocs.yml").write_text(config, encoding="utf-8")


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: leave_out_try_page.py FOLDER", file=sys.stderr)
        return 2
    leave_out(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
