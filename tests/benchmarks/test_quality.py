"""benchmarks/quality.py resumes where it stopped and computes correct figures."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.support.project import ROOT, load_script


@pytest.fixture
def quality(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return load_script(ROOT / "benchmarks" / "quality.py")


def row(text: str, transcript: str, **changes: object) -> dict[str, object]:
    row = {"text": text, "transcript": transcript, "finish_reason": "stop", "mos": 4.0}
    return row | {"seconds": 1.0, "wall_s": 0.5, "span_s": 1.0, "reference_s": 1.0} | changes


def test_speak_resumes_where_it_stopped(quality: ModuleType, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("Yes.\nNo.\n")
    options: dict[str, Any] = {
        "texts": texts,
        "out": tmp_path / "out",
        "model": None,
        "voice": None,
    }
    options |= {"device": "cpu", "layout": None, "temperature": None, "teacher": None}
    options |= {"live": None, "weights": "full"}
    quality.speak(argparse.Namespace(**options, limit=1))
    first = (tmp_path / "out" / "0000.wav").stat().st_mtime_ns
    manifest = tmp_path / "out" / quality.MANIFEST
    with manifest.open("a") as file:
        file.write('{"line": 1, "te')  # stopped in the middle of a row
    quality.speak(argparse.Namespace(**options, limit=None))
    rows = quality.read_rows(manifest)
    assert [entry["text"] for entry in rows] == ["Yes.", "No."]
    assert (tmp_path / "out" / "0000.wav").stat().st_mtime_ns == first
    with pytest.raises(SystemExit, match="has recordings of another voice; use another folder"):
        quality.speak(argparse.Namespace(**options | {"temperature": 0.4}, limit=None))
    num_samples = len(quality.read_wav(tmp_path / "out" / "0001.wav"))
    assert num_samples == round(rows[1]["seconds"] * 24_000) > 0


def test_figures_count_words_losses_and_runaways(quality: ModuleType) -> None:
    rows = [
        quality.count(row("one two three four", "one two three four")),
        quality.count(row("five six seven eight", "nine six nine nine", span_s=2.0)),
        quality.count(row("nine ten", "nine ten", finish_reason="stall", mos=2.0)),
    ]
    figures = quality.summarise(rows)
    assert figures["wer_percent"] == 30.0
    assert (figures["lost_percent"], figures["runaways_percent"]) == (33.33, 33.33)
    assert figures["runaways_and_lost_percent"] == 66.67
    assert figures["distillmos"] == pytest.approx(10 / 3, abs=1e-3)
    assert figures["distillmos_5th_percentile"] == pytest.approx(2.2, abs=1e-3)
    assert figures["duration_ratio_median"] == 1.0
    assert figures["likeness"] is None
    assert figures["times_real_time_while_speaking"] == 2.0


def test_interval_contains_figure_and_shrinks_with_lines(quality: ModuleType) -> None:
    lines = [
        quality.count(row("one two", "one two", mos=3.0)),
        quality.count(row("three four", "three five", mos=4.0)),
        quality.count(row("six seven", "six seven", mos=5.0)),
    ]
    few, many = (quality.summarise(lines * times) for times in (5, 80))
    for name, (low, high) in many["intervals_95_percent"].items():
        assert low <= many[name] <= high
        wide = few["intervals_95_percent"][name]
        assert high - low < 0.5 * (wide[1] - wide[0]) or name == "distillmos_5th_percentile"
    assert many["intervals_95_percent"]["wer_percent"] == pytest.approx([13.7, 19.6], abs=0.3)
    assert many["intervals_95_percent"]["distillmos_5th_percentile"] == [3.0, 3.0]


def test_unrated_lines_have_no_interval(quality: ModuleType) -> None:
    silent = quality.count(row("one two", "", mos=None))
    assert quality.summarise([silent])["intervals_95_percent"] == {"wer_percent": [100.0, 100.0]}


def test_silence_around_speech_is_not_counted(quality: ModuleType) -> None:
    samples = np.zeros(24_000, dtype=np.float32)
    samples[6_000:18_000] = 0.5
    assert quality.span(samples) == 0.5
    assert quality.span(np.zeros(10, dtype=np.float32)) == 0.0
