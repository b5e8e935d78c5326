"""Tests of subtitles: timed words as SRT, WebVTT and JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from vivace import Audio, Usage, Word
from vivace.audio.subtitles import LINE_CHARS, MAX_CUE_S, split_cues, to_json, to_srt, to_vtt
from vivace.errors import AudioError, RequestError

TIME = re.compile(r"(\d\d):(\d\d):(\d\d)[,.](\d\d\d)")


def timed(text: str, step_s: float = 0.4, start_s: float = 0.0) -> list[Word]:
    """Consecutive words of equal duration."""
    words = []
    for number, found in enumerate(re.finditer(r"\S+", text)):
        begin_s = start_s + number * step_s
        words.append(
            Word(
                text=found[0],
                start_s=begin_s,
                end_s=begin_s + step_s,
                start_char=found.start(),
                end_char=found.end(),
            )
        )
    return words


def audio(words: list[Word] | None) -> Audio:
    usage = Usage(text_tokens=1, frames=1, audio_s=1.0, wall_s=1.0, seed=1)
    return Audio(
        samples=np.zeros(24_000, np.float32),
        sample_rate=24_000,
        codes=np.zeros((1, 1), np.int64),
        finish_reason="stop",
        usage=usage,
        words=None if words is None else tuple(words),
    )


def test_srt_has_numbered_cues() -> None:
    words = [*timed("Hello there."), *timed("It is late.", start_s=3661.5)]
    assert to_srt(words) == (
        "1\n00:00:00,000 --> 00:00:00,800\nHello there.\n"
        "\n"
        "2\n01:01:01,500 --> 01:01:02,700\nIt is late.\n"
    )


def test_vtt_has_word_times_and_escapes_markup() -> None:
    assert to_vtt(timed("A<b> & c")) == (
        "WEBVTT\n"
        "\n00:00:00.000 --> 00:00:01.200\n"
        "<00:00:00.000>A&lt;b&gt; <00:00:00.400>&amp; <00:00:00.800>c\n"
    )


def test_json_has_every_word() -> None:
    assert json.loads(to_json(timed("é b"))) == {
        "words": [
            {"text": "é", "start_s": 0.0, "end_s": 0.4, "start_char": 0, "end_char": 1},
            {"text": "b", "start_s": 0.4, "end_s": 0.8, "start_char": 2, "end_char": 3},
        ]
    }


def test_cue_has_at_most_two_lines_and_six_seconds() -> None:
    words = timed("word, " * 200, step_s=0.1) + timed("slow " * 20, step_s=1.5, start_s=60)
    cues = split_cues(words)
    assert [word for cue in cues for word in cue] == words
    assert all(cue[-1].end_s - cue[0].start_s <= MAX_CUE_S for cue in cues)
    for block in to_srt(words).strip().split("\n\n"):
        _, _, *lines = block.split("\n")
        assert 1 <= len(lines) <= 2
        assert all(len(line) <= LINE_CHARS + 1 for line in lines)


def test_sentence_or_pause_starts_new_cue() -> None:
    words = timed('He said "no." Then nothing') + timed("and then", start_s=9.0)
    assert [[word.text for word in cue] for cue in split_cues(words)] == [
        ["He", "said", '"no."'],
        ["Then", "nothing"],
        ["and", "then"],
    ]


def test_word_longer_than_cue_is_not_cut() -> None:
    assert "x" * 200 in to_srt(timed("x" * 200 + " y"))


def test_script_without_spaces_is_joined_without_spaces() -> None:
    words = [
        Word(text=text, start_s=n, end_s=n + 1, start_char=n, end_char=n + 1)
        for n, text in enumerate("你好")
    ]
    assert "你好" in to_srt(words)


@pytest.mark.parametrize("ending", ["srt", "vtt", "json", "SRT"])
def test_extension_selects_format(ending: str, tmp_path: Path) -> None:
    path = audio(timed("Hello there.")).save_subtitles(tmp_path / f"a.{ending}")
    content = path.read_text(encoding="utf-8")
    head = {"srt": "1\n", "vtt": "WEBVTT\n", "json": "{"}[ending.lower()]
    assert content.startswith(head)
    assert audio([]).save_subtitles(path, overwrite=True) == path  # no words are no error
    assert "Hello" not in path.read_text(encoding="utf-8")


def test_unwritable_subtitles_raise_error_with_reason(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="timings=True"):
        audio(None).save_subtitles(tmp_path / "a.srt")
    with pytest.raises(AudioError, match=r"\.srt, \.vtt, \.json"):
        audio([]).save_subtitles(tmp_path / "a.txt")
    with pytest.raises(AudioError, match="cannot write"):
        audio([]).save_subtitles(tmp_path / "none" / "a.srt")
    assert list(tmp_path.iterdir()) == []
