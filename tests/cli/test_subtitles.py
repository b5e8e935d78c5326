"""Tests of `--subtitles`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.cli_harness import Captured, run_here, say
from vivace import TTS
from vivace.audio.files import read_audio

TEXT = "Hello there. Bye."


def words_of(path: Path) -> list[dict[str, float | str]]:
    words: list[dict[str, float | str]] = json.loads(path.read_text())["words"]
    return words


def test_subtitles_are_written_beside_audio(tmp_path: Path) -> None:
    speech = tmp_path / "a.wav"
    options = ("--model", "mini", "--seed=1", "--quiet")
    assert run_here("say", TEXT, *options, "-o", speech, "--subtitles", "srt", "--stream") == 0
    cues = (tmp_path / "a.srt").read_text().strip().split("\n\n")
    assert [cue.split("\n")[2] for cue in cues] == ["Hello there.", "Bye."]


@pytest.mark.ci
def test_subtitle_times_follow_speed(tmp_path: Path) -> None:
    speech, words = tmp_path / "a.flac", tmp_path / "b.json"
    options = ("--model", "mini", "--seed=1", "--quiet", "--speed=2")
    assert run_here("say", TEXT, *options, "-o", speech, "--subtitles", words) == 0
    with TTS.load(device="cpu") as tts:
        audio = tts.speak(TEXT, seed=1, speed=2.0, timings=True)
    found = words_of(words)
    assert [word["text"] for word in found] == TEXT.split()
    for word, expected in zip(found, audio.words or (), strict=True):
        assert word["start_s"] == pytest.approx(expected.start_s, abs=2e-3)
        assert word["end_s"] == pytest.approx(expected.end_s, abs=2e-3)
    assert len(read_audio(speech).samples) == len(audio.samples)


@pytest.mark.parametrize(
    ("subtitles", "reason"),
    [
        ("a.srt", "exists"),
        ("a.txt", r"\.srt, \.vtt, \.json"),
        ("none/a.srt", "does not exist"),
        ("srt", "exists"),
    ],
)
def test_unwritable_subtitles_fail_before_speech(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    subtitles: str,
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.srt").write_text("kept")
    monkeypatch.setattr("vivace.cli.say.load_model", None)  # not called
    assert run_here("say", TEXT, "-o", "a.wav", "--subtitles", subtitles) == 1
    assert re.search(reason, capsys.readouterr().err)
    assert Path("a.srt").read_text() == "kept"
    assert not Path("a.wav").exists()


def test_model_without_timings_keeps_audio_and_fails(
    tiny_folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    speech = tmp_path / "a.wav"
    options = ("--seed=1", "--min-frames=20", "--max-frames=20", "-o", speech)
    assert say(tiny_folder / "custom_voice", TEXT, *options, "--subtitles", "vtt") == 1
    assert "no word timings" in capsys.readouterr().err
    assert speech.exists()
    assert not (tmp_path / "a.vtt").exists()


def test_batch_writes_subtitles_per_line(tmp_path: Path, capsys: Captured) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("Yes.\nNo.\n")
    folder = tmp_path / "out"
    batch = ("--model", "mini", "--batch", lines, "-o", folder, "--seed=1", "--quiet")
    assert run_here("say", *batch, "--subtitles", "json") == 0
    assert [word["text"] for word in words_of(folder / "0001.json")] == ["Yes."]
    assert [word["text"] for word in words_of(folder / "0002.json")] == ["No."]
    with pytest.raises(SystemExit):
        run_here("say", *batch, "--subtitles", "one.srt")
    assert "srt, vtt, json" in capsys.readouterr().err


def test_dialogue_subtitles_have_words_of_all_lines(embedded: TTS) -> None:
    talk = embedded.dialogue([("heart", "Yes."), ("heart", "Good evening.")], seed=1, timings=True)
    first, second = talk.lines
    assert [word.text for word in talk.words or ()] == ["Yes.", "Good", "evening."]
    assert talk.words
    assert first.start_s <= talk.words[0].start_s < talk.words[0].end_s <= first.end_s
    assert second.start_s <= talk.words[1].start_s < talk.words[2].end_s <= second.end_s
    assert talk.lines[0].audio.words
    assert embedded.dialogue([("heart", "Yes.")], seed=1).words is None
