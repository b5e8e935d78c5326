#!/usr/bin/env python3
"""Write the text rules of the package as JavaScript, for the page in the browser.

    python scripts/make_text_module.py build/try

It writes text-rules.js and sign-names.js, the Unicode names that the rules use.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from functools import cache
from pathlib import Path

from javascript.bundle import Bundle

ENTRIES = (
    "vivace.script.parts.PartReader",
    "vivace.script.script.plan_parts",
    "vivace.text.letters.Letters",
    "vivace.text.options.ScriptOptions",
    "vivace.text.pauses.Pause",
    "vivace.text.plain.PlainRules",
)
# What docs/try/plain-text.js provides instead; "" leaves a method out.
REPLACED = {
    "vivace.text.cleaner.MarkdownCleaner": "$own.Unsupported",
    "vivace.text.options.ScriptOptions.of": "",
    "vivace.text.packing.BlockPacker": "$own.Unsupported",
    "vivace.text.spans.SpannedText": "$own.Unsupported",
    "vivace.text.tex.TexReader": "$own.Unsupported",
    "vivace.text.normalize.open_normalizer": "() => new "
    "{vivace.text.normalize.normalizer.LiveNormalizer}({vivace.text.normalize.english.RULES})",
    "vivace.text.respell.Respeller": "$own.respeller"
    "(() => {vivace.text.spelling.MARK}, {vivace.text.spelling.read_mark})",
    "vivace.text.scripts.scripts_of": "$own.scriptsOf",
    "vivace.text.spans.join": "$own.join",
    "vivace.text.spans.rewrite": "$own.rewrite",
    "vivace.text.spans.split": "$own.split",
    "vivace.text.spans.substitute": "$own.substitute",
}
IMPORTS = 'import * as $py from "./python.js";\nimport * as $own from "./plain-text.js";\n'
NAMED = (range(0x370, 0x400), range(0x20, 0x2300))  # Greek letters, mathematical and money signs


def write_module(folder: Path) -> None:
    """Write both files to `folder`."""
    for name, text in make_modules().items():
        (folder / name).write_text(text, "utf-8")


@cache
def make_modules() -> dict[str, str]:
    """The content of both files by name."""
    rules = Bundle(REPLACED).export(ENTRIES)
    head = "// Written by scripts/make_text_module.py from src/vivace/text.\n"
    names = json.dumps(_names(), ensure_ascii=False, indent=0)
    return {
        "text-rules.js": f"{head}{IMPORTS}\n{rules}",
        "sign-names.js": f"{head}export const NAMES = {names};\n",
    }


def _names() -> dict[str, str]:
    letters = [chr(code) for code in NAMED[0]]
    signs = [chr(code) for code in NAMED[1] if unicodedata.category(chr(code)) in ("Sm", "Sc")]
    return {one: name for one in (*letters, *signs) if (name := unicodedata.name(one, ""))}


if __name__ == "__main__":
    write_module(Path(sys.argv[1]))
