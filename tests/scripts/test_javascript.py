"""Python written as JavaScript gives the results of Python."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.node import load_translator, run_modules
from tests.support.project import load_script

SAMPLE = '''
"""Constructs that the text rules use."""
import re
from dataclasses import dataclass, replace

WORDS = {"one": 1, "two": 2}
PATTERN = re.compile(r"(?P<word>[^\\W\\d_]+)\\s(\\d+)?\\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Pair:
    left: str
    right: str = "none"

    @property
    def both(self):
        return self.left + self.right


class Counter:
    def __init__(self, *, start=0):
        self.values = [start]

    def add(self, number, times=1, *, is_twice=False):
        self.values += [number] * times * (2 if is_twice else 1)
        return self


def unpack(values):
    first, *middle, last = values
    return [last, middle, first]


def values(text):
    pair = Pair("a")
    counter = Counter(start=4).add(7, is_twice=True).add(1, 2)
    alias = counter.values
    alias += [9]
    found = PATTERN.search(text)
    empty = [] or "empty"
    both = {**WORDS, "three": 3}
    kept = [number for name, number in both.items() if "o" in name and (last := number)]
    return [
        replace(pair, right="b").both, pair.both, counter.values, unpack([1, 2, 3, 4]), empty, kept,
        last, found and [found["word"], found[2], found.start("word"), found.span()],
        text[-3:], text[1:-1].upper(), -7 % 3, -7 // 2, f"{10**18 // 7}", 1 < len(text) <= 8,
        sorted({3, 1, 2}, reverse=True), max("ab", "c", key=len), text.partition(" "),
        re.sub(r"(\\w)\\b", r"<\\1>", text), "".join(reversed(text)),
        [bool(one) for one in map(PATTERN.search, [text])],
    ]
'''


UNSUPPORTED = {
    "def run():\n    with open('x') as file:\n        return file": "vivace_unsupported:2: With",
    "def run(**names):\n    return dict(**names)": "vivace_unsupported:2: Call",
    "import re\ndef run(text):\n    return re.compile(text)": "vivace_unsupported:3: Call",
    "import re\nPLACE = re.compile('(?m)^a')\ndef run():\n    return PLACE": "flags of",
}


def load(folder: Path, name: str, source: str) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(source)
    return load_script(path)


def test_results_are_those_of_python(tmp_path: Path) -> None:
    sample = load(tmp_path, "vivace_sample", SAMPLE)
    bundle = load_translator("bundle").Bundle({}, packages=("vivace_sample",))
    rules = bundle.export(["vivace_sample.values"])
    (tmp_path / "sample.js").write_text(f'import * as $py from "./python.js";\n{rules}')
    script = "import { values } from './sample.js';\nconst result = data.map(values);"
    texts = ["Wörd 12", "a word", "plain text 7", "x"]
    found = run_modules(tmp_path, script, texts)
    assert found == json.loads(json.dumps([sample.values(text) for text in texts]))


@pytest.mark.parametrize(("source", "message"), UNSUPPORTED.items())
def test_other_constructs_are_rejected(source: str, message: str, tmp_path: Path) -> None:
    load(tmp_path, "vivace_unsupported", source)
    with pytest.raises(load_translator("errors").UnsupportedError, match=message):
        load_translator("bundle").Bundle({}).export(["vivace_unsupported.run"])


def test_patterns_match_like_those_of_python(tmp_path: Path) -> None:
    draw = random.Random(2)
    modules = [module for name, module in sys.modules.items() if name.startswith("vivace.text")]
    values = [value for module in modules for value in vars(module).values()]
    known = {one for one in values if isinstance(one, re.Pattern)}
    # Not those of the tokenizer, and not `.*?`, which the rules use in whole matches only.
    written = [one for one in known if not one.flags & re.ASCII and "*?" not in one.pattern]
    patterns = sorted(written, key=lambda one: one.pattern)
    assert len(patterns) > 200
    signs = "aBz12 .,-–'’\"/$%()\n\t½²é°_İ\x85"
    texts = ["".join(draw.choices(signs, k=12)) for _ in range(60)]
    sources = [load_translator("regex").translate(one) for one in patterns]
    script = """
    import { Pattern } from './python-re.js';
    const spans = (pattern, text) => Array.from(pattern.finditer(text), (match) => match.span());
    const result = data.sources.map((source) => {
      const pattern = new Pattern(source);
      return data.texts.map((text) => spans(pattern, text));
    });
    """
    found = run_modules(tmp_path, script, {"sources": sources, "texts": texts})
    for pattern, spans in zip(patterns, found, strict=True):
        expected = [[list(one.span()) for one in pattern.finditer(text)] for text in texts]
        assert spans == expected, pattern.pattern
