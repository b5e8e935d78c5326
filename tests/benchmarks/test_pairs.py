"""benchmarks/pairs.py compares two voices on the lines that both have."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.project import ROOT, load_script

TEXTS = ("Gate C17.", *(f"The ship sailed at noon from pier {n}." for n in range(2, 12)))


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return load_script(ROOT / "benchmarks" / "pairs.py")


def folder(path: Path, transcripts: dict[str, str], mos: float = 4.0) -> Path:
    """A judged folder whose transcripts equal the texts, except for those in `transcripts`."""
    path.mkdir()
    rows = [{"line": n, "text": text} for n, text in enumerate(TEXTS)]
    verdicts = [
        {"line": n, "transcript": transcripts.get(text, text), "mos": mos}
        for n, text in enumerate(TEXTS)
    ]
    for name, lines in (("manifest", rows), ("verdicts", verdicts)):
        path.joinpath(f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    return path


def test_equal_voices_have_zero_difference(pairs: ModuleType, tmp_path: Path) -> None:
    one = folder(tmp_path / "one", {TEXTS[3]: "The ship failed."})
    found = pairs.compare(one, one, {})
    assert found["lines"] == len(TEXTS)
    assert found["wer_percent"]["old"] > 0
    assert found["wer_percent"]["difference"] == 0
    assert found["wer_percent"]["interval"] == [0, 0]


def test_worse_voice_has_interval_above_zero(pairs: ModuleType, tmp_path: Path) -> None:
    old = folder(tmp_path / "old", {}, mos=4.2)
    new = folder(tmp_path / "new", dict.fromkeys(TEXTS, "Nothing of it."), mos=4.0)
    found = pairs.compare(old, new, {})
    assert found["wer_percent"]["interval"][0] > 0
    assert found["distillmos"]["interval"] == [-0.2, -0.2]
    assert found["lost"] == [0, len(TEXTS)]


def test_accepted_reading_is_no_error(pairs: ModuleType, tmp_path: Path) -> None:
    new = folder(tmp_path / "new", {TEXTS[0]: "Gate see seventeen."})
    old = folder(tmp_path / "old", {})
    assert pairs.compare(old, new, {})["wer_percent"]["difference"] > 0
    readings = {TEXTS[0]: [TEXTS[0], "Gate see seventeen."]}
    assert pairs.compare(old, new, readings)["wer_percent"]["difference"] == 0


def test_readings_belong_to_benchmark_texts(pairs: ModuleType) -> None:
    texts = (ROOT / "benchmarks" / "texts" / "codes.txt").read_text(encoding="utf-8")
    assert texts.splitlines() == list(pairs.accepted_readings())
