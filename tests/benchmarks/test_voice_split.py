"""The split of word errors between teacher, codec and voice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.benchmarks.conftest import Run
from tests.support.project import ROOT

pytest.importorskip("tomllib", reason="the recipe reads TOML with Python 3.11's own library")
TEXTS = ["One two three four five.", "Six seven eight nine ten."]
TRANSCRIPTS = {
    "teacher": TEXTS,
    "codec": [TEXTS[0], "Six seven eight nine then."],
    "voice": ["Want two three four five.", "Six seven eight nine then."],
}


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def test_split_counts_errors_that_each_step_adds(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    for part, transcripts in TRANSCRIPTS.items():
        rows = [{"line": line, "text": text} for line, text in enumerate(TEXTS)]
        if part == "teacher":
            rows.append({"line": 2, "text": "No other part has this line."})
        write_rows(tmp_path / part / "manifest.jsonl", rows)
        verdicts = [
            {"line": line, "transcript": text, "mos": None} for line, text in enumerate(transcripts)
        ]
        write_rows(tmp_path / part / "verdicts.jsonl", verdicts)
    out = tmp_path / "split.json"
    run("voice_split.py", "judge", tmp_path, "--parts", *TRANSCRIPTS, "--json", out)
    report = json.loads(out.read_text("utf-8"))
    assert (report["lines"], report["words"]) == (2, 10)
    errors = {part: one["word_error_percent"] for part, one in report["parts"].items()}
    assert errors["teacher"] == {"all": 0, "first_words": 0, "later_words": 0}
    assert errors["codec"] == {"all": 10, "first_words": 0, "later_words": 25}
    assert errors["voice"] == {"all": 20, "first_words": 16.67, "later_words": 25}
    step = report["steps"]["codec to voice"]
    assert step["points"] == {"all": 10, "first_words": 16.67, "later_words": 0}
    assert step["intervals_95_percent"]["all"] == [0, 20]
    assert step["intervals_95_percent"]["later_words"] == [0, 0]
    assert set(report["steps"]) == {"teacher to codec", "codec to voice", "teacher to voice"}
