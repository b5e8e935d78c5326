"""The page's tokenizer gives the ids of the package's tokenizer."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.support.node import run_modules
from tests.support.project import ROOT
from vivace.checkpoint import EMBEDDED
from vivace.text.tokenizer import TextTokenizer

ENCODE = """
import { Tokenizer } from './tokenizer.js';
const tokenizer = new Tokenizer(data.vocab, data.merges);
const result = data.lines.map((line) => tokenizer.encode(line));
"""
# White space, case variants, combining marks, other scripts, emoji. All are in Unicode since 2010,
# so that every Node.js knows their categories.
RARE = "\t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2003\u2028\u2029\u3000\ufeff\u200b\u200d"
LETTERS = "'sStTrReEvVmMlLdDſ’ aZéßñøŒΩжאあ漢한٣½²Ⅷ\u0301\u0308€😀👩"


def make_lines() -> list[str]:
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks" / "texts").iterdir()]
    lines = [line for file in sorted(files) for line in file.read_text("utf-8").splitlines()]
    draw = random.Random(7)
    signs = [*RARE, *LETTERS, *map(chr, range(32, 127))]
    lines += ["".join(draw.choices(signs, k=draw.randrange(24))) for _ in range(3_000)]
    return lines


def test_tokenizer_of_the_page_gives_the_ids_of_the_package(tmp_path: Path) -> None:
    lines = make_lines()
    assert len(lines) > 5_000
    tokenizer = TextTokenizer.from_folder(EMBEDDED)
    data = {
        "vocab": json.loads((EMBEDDED / "vocab.json").read_text("utf-8")),
        "merges": (EMBEDDED / "merges.txt").read_text("utf-8"),
        "lines": lines,
    }
    found = run_modules(tmp_path, ENCODE, data)
    expected = [tokenizer.encode(line) for line in lines]
    wrong = [line for line, own, other in zip(lines, found, expected, strict=True) if own != other]
    assert wrong == []


def test_tokenizer_of_the_page_rejects_half_of_a_surrogate_pair(tmp_path: Path) -> None:
    script = """
    import { Tokenizer } from './tokenizer.js';
    let result = '';
    try { new Tokenizer({}, '').encode('a\\ud800b'); } catch (error) { result = error.message; }
    """
    assert "valid Unicode" in run_modules(tmp_path, script, None)
