"""Text of the training lines: what the talker sees, what the teacher reads, what is left out."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from tests.support.project import ROOT

pytest.importorskip("tomllib", reason="the recipe reads TOML with Python 3.11's own library")
SENTENCES = [
    "We walked along the river, and nobody had expected that the bridge would be closed.",
    'The clerk said "yes" at once.',
    "It was late.",
]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('"Yes," he said.', "Yes, he said."),
        ('He told us "this" and "that."', "He told us this and that."),
        ("It wasn't the dog's.", "It wasn't the dog's."),
        ("I said no. Is it no. 5?", "I said know. Is it no. 5?"),
        ("No. I won't.", "No. I won't."),
        ("Plan A works. A plan.", "Plan eh works. A plan."),
        ("The U S A won.", "The U S eh won."),
        ('He said, "A cat is here."', "He said, A cat is here."),
        ("She read A Tale of Two Cities.", "She read A Tale of Two Cities."),
        ("We need:\n- milk\n- eggs", "We need: milk. eggs"),
        ("We had\nto go.", "We had to go."),
        ("It rained.\n\nWe left.", "It rained. We left."),
        ("Anna\tten apples", "Anna, ten apples"),
        ("Wait... what?", "Wait, what?"),
        ("So . . . yes...", "So, yes."),
        ("Shh, listen. Shhh!", "[Shh](/ʃʃʃ/), listen. [Shhh](/ʃʃʃʃ/)!"),
        ("Ugh, the laughs.", "[Ugh](/ˈʌɡ/), the laughs."),
        ("The eh I said so.", "The eh I said so."),
    ],
)
def test_teacher_reads_plain_text_in_known_spellings(written: str, read: str) -> None:
    from recipes.mini_voice.reading import for_teacher

    assert for_teacher(written) == read


def test_line_breaks_and_tabs_survive_file_of_lines(tmp_path: Path) -> None:
    from recipes.mini_voice.lines import load_lines, save_lines

    lines = ["One.\n\nTwo.", "a\tb", "plain"]
    save_lines(tmp_path / "lines.txt", lines)
    assert len((tmp_path / "lines.txt").read_text().splitlines()) == 3
    assert load_lines(tmp_path / "lines.txt") == lines


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """A folder with the lexicons of the teacher."""
    assets = tmp_path / "hibari" / "assets"
    assets.mkdir(parents=True)
    words = [f"str{a}{b}" for a in "aeiou" for b in "bdfgklmn"] + ["Anna", "Weber"]
    for name in ("gold", "silver"):
        packed = gzip.compress(json.dumps(dict.fromkeys(words, "")).encode())
        (assets / f"lexicon_us_{name}.json.gz").write_bytes(packed)
    return tmp_path


def test_lines_of_every_kind_are_read_without_breaks_and_quotes(teacher: Path) -> None:
    from recipes.mini_voice.rare_lines import Writer
    from recipes.mini_voice.reading import for_teacher

    lines = Writer(teacher, SENTENCES, seed=3).lines(1500)
    for part in ("\n\n", "\t", "...", '"', "Ha ha", "Hmm", "Uh-huh", "Oh", "\n- ", " at "):
        assert any(part in line for line in lines), part
    for line in lines:
        assert not set('\n\t"') & set(for_teacher(line)), line
    again = Writer(teacher, SENTENCES, seed=3).lines(1500)
    assert lines == again


def test_talk_lines_have_interjections_short_sentences_and_letters_beside_a() -> None:
    from recipes.mini_voice.rare_lines import with_letter_names
    from recipes.mini_voice.talk_lines import MISREAD, SHORT, WORDS, TalkLines
    from vivace.text.normalize import normalize_text

    talk = TalkLines(["Anna", "Weber"], random.Random(4))
    lines = [normalize_text(talk.line()) for _ in range(3000)]
    for word in MISREAD:
        assert sum(word.lower() in line.lower() for line in lines) > 20, word
    for short in (WORDS, SHORT):
        assert len({line[:-1] for line in lines} & set(short)) > 20
    for part in ("A I", "at anna", "underscore"):
        assert any(part in line for line in lines), part
    assert not any("@" in line for line in lines)
    assert with_letter_names("Ask the A I. A cat.") == "Ask the eh I. A cat."


def test_rare_lines_leave_out_benchmarks_and_known_lines(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recipes.mini_voice import rare_lines
    from recipes.mini_voice.lines import load_lines, save_lines

    texts = (ROOT / "benchmarks" / "texts" / "hard.txt").read_text("utf-8").splitlines()
    made = [*texts[:20], "it was LATE", "A line of its own."]
    monkeypatch.setattr(rare_lines.Writer, "lines", lambda self, count: made)
    lines, rare = tmp_path / "lines.txt", tmp_path / "rare.txt"
    save_lines(lines, ["Dev.", *SENTENCES])
    sets = {"data.lines": lines, "data.rare": rare, "data.teacher": teacher, "data.num_dev": 1}
    sets |= {"data.num_more_templates": 0}
    options = [f"--set={name}={json.dumps(value, default=str)}" for name, value in sets.items()]
    monkeypatch.setattr("sys.argv", ["rare_lines", *options, "--codec-lines=1"])
    rare_lines.main()
    assert load_lines(lines) == ["Dev.", SENTENCES[0]]
    assert sorted(load_lines(rare)) == sorted(["A line of its own.", *SENTENCES[1:]])


def test_wrapped_line_continues_with_lower_case() -> None:
    from recipes.mini_voice.layout_lines import LayoutLines

    writer = LayoutLines(SENTENCES, random.Random(1))
    wrapped = [writer._wrapped().split("\n") for _ in range(200)]
    assert any(len(rows) > 1 for rows in wrapped)
    assert all(row[0].islower() for rows in wrapped for row in rows[1:])
