"""benchmarks/long_text.py detects missing words and resumes after an interruption."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.project import ROOT, load_script
from tests.support.recording_backend import stop_after
from vivace import TTS


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return load_script(ROOT / "benchmarks" / "long_text.py")


def test_missing_words_are_marked(script: ModuleType) -> None:
    verdict = script.compare("One two three four five.", "one two five")
    assert (verdict["errors"], verdict["words"], verdict["missing"]) == (2, 5, "00110")
    assert script.compare("It cost $5.", "it cost five dollars")["errors"] == 0


def test_missing_words_are_counted_across_windows(script: ModuleType) -> None:
    verdicts = [script.compare("One two three.", "one"), script.compare("Four five.", "five")]
    window = {"stream": 0, "end": 48_000, "rate": 24_000, "rss_mib": 1.0, "wall_s": 1.0}
    windows = [{**window, "first": n - 1, "last": n, "finish_reason": None} for n in (1, 2)]
    report = script.summarise(["One two three.", "Four five."], windows, windows, verdicts)
    assert report["longest_missing_run"] == 3
    assert report["missing_word_rate"] == 0.6
    assert report["lost_windows"] == [0]


def test_words_after_seam_are_counted_in_their_window(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = ["One two. Three four.", "Five six.", "Seven."]
    windows = [{"first": n, "last": n + 1} for n in range(3)]
    transcripts = ["one two", "three four five", "seven"]
    verdicts = [script.compare(*pair) for pair in zip(sentences, transcripts, strict=True)]
    [run] = script.compare_together(sentences, windows, verdicts)
    assert (run["errors"], run["words"], run["missing"]) == (1, 7, "0000010")
    apart = list(script.compare_together(sentences, [windows[0], windows[2]], verdicts[:2]))
    assert [run["words"] for run in apart] == [4, 1]
    monkeypatch.setattr(script, "TOGETHER", 2)
    runs = list(script.compare_together(sentences, windows, verdicts))
    assert [run["words"] for run in runs] == [6, 1]


def test_interrupted_text_resumes_at_next_sentence(
    script: ModuleType, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = [f"This is sentence number {n}, and it says little." for n in range(30)]
    path, rows = tmp_path / "speech.pcm", []
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        stop_after(tts, monkeypatch, 3)
        for row in script.speak_windows(tts, sentences, [], path):
            rows.append(json.loads(json.dumps(row)))
            if len(rows) == 2:
                break
        path.write_bytes(path.read_bytes() + b"of a window that was not noted")
        first = path.read_bytes()[: 2 * rows[-1]["end"]]
        rows += script.speak_windows(tts, sentences, rows, path)
    assert [row["first"] for row in rows] == [0, *(row["last"] for row in rows[:-1])]
    assert rows[-1]["last"] == len(sentences)
    assert [row["stream"] for row in rows[:3]] == [0, 0, 1]
    assert path.read_bytes()[: len(first)] == first
    assert path.stat().st_size == 2 * rows[-1]["end"]


def test_seam_windows_cover_seams_and_long_utterances(script: ModuleType) -> None:
    ends = [0, 600, 650, 1300]  # at a rate of 100: 6 s, half a second, 6.5 s
    windows = [{"start": start, "end": end, "rate": 100} for start, end in itertools.pairwise(ends)]
    at_seams, inside = script.seam_windows(windows)
    assert [(row["start"], row["end"]) for row in at_seams] == [(360, 760), (410, 810)]
    assert [(row["start"], row["end"]) for row in inside] == [(75, 475), (750, 1150)]
    assert script.seam_windows(windows, seconds=20) == ([], [])


def test_seam_figures_are_added_to_report(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "judges.NaturalnessJudge", lambda: lambda samples, rate: float(len(samples))
    )
    rows = [{"start": 0, "end": 700, "rate": 100}, {"start": 700, "end": 1400, "rate": 100}]
    (tmp_path / script.WINDOWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / script.SPEECH).write_bytes(bytes(2 * 1400))
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"characters": 12}))
    arguments = ["long_text.py", "seams", str(tmp_path), "--json", str(report)]
    monkeypatch.setattr("sys.argv", arguments)
    script.main()
    found = json.loads(report.read_text())
    assert found["characters"] == 12
    assert found["seams"]["at_seams"] == {"windows": 1, "distillmos": 400.0}
    assert found["seams"]["difference_95_percent"] == [0.0, 0.0]
