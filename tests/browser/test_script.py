"""The page reads texts like the package, because it runs the same rules as JavaScript."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from tests.support.node import load_text_script, run_modules
from tests.support.project import ROOT
from tests.text import normalize_cases
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.options import SpeechOptions
from vivace.script.checks import RequestChecker
from vivace.script.parts import PartReader
from vivace.script.request import Request
from vivace.script.script import plan_parts
from vivace.script.text_settings import TextSettings
from vivace.text.normalize.english import numbers
from vivace.text.pauses import Pause

WRITE = """
import { ScriptWriter } from './script.js';
const writer = new ScriptWriter(data.reading);
const result = data.texts.map((text) => {
  try { return writer.write(text).map(({ text: own, pause }) => own ?? pause); } catch (error) { return error.message; }
});
"""  # noqa: E501
CASES = [
    "Dr. Lee lives at 12 Elm Dr. near St. Paul. She left at 5 p.m. Then it rained.",
    "On 12/25/2024 it cost $1,234.50, i.e. 20% more than in 1999.",
    "Henry VIII met NASA and the FBI. STOP! DON'T go.",
    "Mail me at jane.doe@example.com or see https://example.com/a.",
    "It was 3:30 pm, 14:05 and 9am; 10-20 kg, 1/2, 1 1/2, the 1990s, 21st and -5°C.",
    "A wise I said “Hello there.” She replied... yes.",
    "A first paragraph.\n\nA second one, with a 10-year-old and B12.",
    "One. Two. Three. Four sentences, and here comes another one that makes the text long enough "
    "to be cut into several utterances. The last one ends here.",
    "A sentence, that goes on, and on, with many clauses, " * 6 + "and ends.",
    "Hello 😀 world. © 2024",
    "Add 2½ cups, ¾ tsp salt and 1/2 tsp. oil. A 5 ft. 10 in. man, 6 ft 2 in, 12 oz. of it.",
    "Call (212) 555-0198, +44 20 7946 0958 or 1-800-FLOWERS; 123-45-6789.",
    "It costs $5–$10, 50¢, $3tn or $1.5m-2m; 1,000+ users, 2.3M views, 10K+ downloads, a 5K run.",
    "Open 9:30-11, 7:30-8:45 am and 5pm–7pm, Mon–Fri. Mon., Dec. 5; Tues. and Thurs.",
    "A 2x4, 10x20x30cm, 9.8/10, 3x/day, Salem, OR 97301, Eq. (2).",
    "It left at 2:30 p.m. EST. Step 1/5, 24/38, a 60/40 split, the 23/24 season, 8/10, 20/20.",
    "See No.1, pp.5-7. The 30-yr. rate, a 13-in. pan, 5-10$ and ISO 9001:2015. Jan 1st-3rd, Q1–Q3.",
    "Flight UA 1549, account ending in 4821, est. value, 6:42a, 1 ½ cups, NO2 and CO2.",
    "1. Eggs\n2. Milk\n3. Bread\n\nName:\tAnna\tAge:\t31",
    "I. Am. Here. Now. Go! Stop? Then Mr. Wu left. Yes. J. R. Roe. No.",
    "Yes yes yes yes yes. No no. Very very very good! 5. 4. 3. 2. 1. “Yes.” “No.” he said.",
]


def make_parts(texts: list[str]) -> list[list[str | float]]:
    """Utterances and pauses by the package."""
    config = Checkpoint.open(EMBEDDED).config
    settings = TextSettings(config)
    checker = RequestChecker(config, settings)
    found = []
    for text in texts:
        request = Request(text=text, options=SpeechOptions(), voice="heart", breaks=True)
        options = settings.script_options(request)
        reader = PartReader(options, checker.letters, checker.letter_error)
        parts = plan_parts(text, reader)
        found.append([part.seconds if isinstance(part, Pause) else part for part in parts])
    return found


def write_parts(folder: Path, texts: list[str]) -> list[list[str | float] | str]:
    """Utterances and pauses by the page; a message where it rejects a text."""
    data = {
        "reading": json.loads((EMBEDDED / "config.json").read_text("utf-8"))["reading_config"],
        "texts": texts,
    }
    found: list[list[str | float] | str] = run_modules(folder, WRITE, data)
    return found


def test_page_writes_the_utterances_of_the_package(tmp_path: Path) -> None:
    lines = [
        line.split("\t")[0]
        for file in sorted((ROOT / "benchmarks" / "texts").iterdir())
        for line in file.read_text("utf-8").splitlines()
        if line.strip() and not line.startswith("#")
    ]
    examples = re.findall(r'data-text="([^"]+)"', (ROOT / "docs/try/index.html").read_text("utf-8"))
    assert len(examples) == 3
    written = [text for kind in normalize_cases.CASES.values() for text in kind]
    texts = [*lines, *examples, *CASES, *written]
    assert len(texts) > 700
    found, expected = write_parts(tmp_path, texts), make_parts(texts)
    wrong = [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "no words"), ("… !?", "no words"), ("Привет", "“П”"), ("Hello мир", "“м”")],
)
def test_page_rejects_text_that_cannot_be_spoken(text: str, message: str, tmp_path: Path) -> None:
    (found,) = write_parts(tmp_path, [text])
    assert isinstance(found, str)
    assert message in found


def test_page_limits_utterances_and_reads_any_word(tmp_path: Path) -> None:
    """Names of JavaScript's own properties are words; nothing is longer than the limit."""
    draw = random.Random(3)
    signs = "abcXYZ 0123456789.,;:!?'\"()[]{}<>@#$%^&*-_=+/\\|~`\n\t€£½°™é"
    texts = ["constructor __proto__ toString 5 constructor valueOf hasOwnProperty", "x" * 500]
    texts += ["word " + "".join(draw.choices(signs, k=draw.randrange(200))) for _ in range(150)]
    for text, parts in zip(texts, write_parts(tmp_path, texts), strict=True):
        assert isinstance(parts, list), (text, parts)
        spoken = [part for part in parts if isinstance(part, str)]
        assert spoken
        assert all(len(part) <= 121 for part in spoken), text  # and a full stop
        assert not any(re.search(r"[\d@#$%^&*_=+/\\|~<>{}\[\]]", part) for part in spoken), text


def test_page_reads_numbers_like_the_package(tmp_path: Path) -> None:
    names = ("read_digits", "ordinal", "year", "in_pairs")
    modules = load_text_script()
    rules = modules.Bundle({}).export([f"{numbers.__name__}.{name}" for name in names])
    (tmp_path / "numbers.js").write_text(f'import * as $py from "./python.js";\n{rules}')
    script = """
    import * as numbers from './numbers.js';
    const result = data.map((digits) => [
      numbers.read_digits(digits), numbers.ordinal(Number(digits)),
      numbers.year(Math.min(Number(digits), 99999)), numbers.in_pairs(digits)]);
    """
    draw = random.Random(5)
    values = [*range(130), *range(990, 1130), *range(1890, 2030), 10**15]
    values += [draw.randrange(10 ** draw.randrange(1, 16)) for _ in range(500)]
    long = [str(10**18 - 1), "9" * 17, str(10**20 + 7)]  # above the exact numbers of JavaScript
    found = run_modules(tmp_path, script, [*map(str, values), *long])
    assert found[: len(values)] == [
        [
            numbers.read_digits(str(value)),
            numbers.ordinal(value),
            numbers.year(min(value, 99_999)),
            numbers.in_pairs(str(value)),
        ]
        for value in values
    ]
    assert [one[0] for one in found[len(values) :]] == [numbers.read_digits(one) for one in long]
