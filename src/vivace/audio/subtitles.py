"""Subtitles from word timings: SRT and WebVTT in readable cues, JSON with every word."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from vivace.arguments import as_path
from vivace.disk import write_whole
from vivace.errors import AudioError, OutputExistsError, RequestError
from vivace.speech import Word

LINE_CHARS = 42  # a cue has at most two lines
MAX_CUE_S = 6.0
GAP_S = 0.7  # silence that starts a new cue
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’)\]»」』]*\Z")


def to_srt(words: Sequence[Word]) -> str:
    """SubRip: numbered cues."""
    cues = (
        f"{number}\n{_clock(cue[0].start_s, ',')} --> {_clock(cue[-1].end_s, ',')}\n{_text(cue)}\n"
        for number, cue in enumerate(split_cues(words), start=1)
    )
    return "\n".join(cues)


def to_vtt(words: Sequence[Word]) -> str:
    """WebVTT with the time of each word inside its cue, for karaoke styles."""
    cues = ["WEBVTT\n"]
    for cue in split_cues(words):
        times = f"{_clock(cue[0].start_s, '.')} --> {_clock(cue[-1].end_s, '.')}"
        cues.append(f"{times}\n{_text(cue, _timed)}\n")
    return "\n".join(cues)


def to_json(words: Sequence[Word]) -> str:
    rows = [dataclasses.asdict(word) for word in words]
    for row in rows:
        row.update(start_s=round(row["start_s"], 3), end_s=round(row["end_s"], 3))
    return json.dumps({"words": rows}, ensure_ascii=False, indent=1) + "\n"


SUBTITLE_FORMATS: dict[str, Callable[[Sequence[Word]], str]] = {
    "srt": to_srt,
    "vtt": to_vtt,
    "json": to_json,
}


def subtitle_format(path: str | os.PathLike[str]) -> str:
    """The subtitle format of the file's extension. AudioError if there is none."""
    extension = Path(path).suffix.lower().removeprefix(".")
    if extension not in SUBTITLE_FORMATS:
        known = ", ".join(f".{name}" for name in SUBTITLE_FORMATS)
        raise AudioError(f"{path}: unknown extension of a subtitle file; use one of: {known}")
    return extension


def write_subtitles(
    path: str | os.PathLike[str], words: Sequence[Word] | None, *, force: bool = True
) -> Path:
    """Write the file completely or not at all. RequestError if `words` is None."""
    path = as_path("path", path, AudioError)
    format = subtitle_format(path)
    if words is None:
        raise RequestError(
            f"{path}: there are no word timings; use timings=True and a checkpoint that supports "
            "timings (docs/timings.md)"
        )
    try:
        write_whole(path, SUBTITLE_FORMATS[format](words).encode(), replace=force)
    except FileExistsError as error:
        raise OutputExistsError(path) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AudioError(f"cannot write {path}: {reason}") from error
    return path


def split_cues(words: Sequence[Word]) -> list[list[Word]]:
    """Groups of words to show together: one sentence, no long pause, at most two lines."""
    cues: list[list[Word]] = []
    for word in words:
        if not cues or _is_apart(cues[-1], word):
            cues.append([])
        cues[-1].append(word)
    return cues


def _is_apart(cue: Sequence[Word], word: Word) -> bool:
    last = cue[-1]
    return (
        word.start_s - last.end_s >= GAP_S
        or word.end_s - cue[0].start_s > MAX_CUE_S
        or len(_join([*cue, word])) > 2 * LINE_CHARS
        or _SENTENCE_END.search(last.text) is not None
    )


def _join(words: Sequence[Word], show: Callable[[Word], str] = lambda word: word.text) -> str:
    """Join words as in the text: with a space, or without one in scripts that use none."""
    parts = [show(words[0])]
    for last, word in itertools.pairwise(words):
        parts += ["" if word.start_char == last.end_char else " ", show(word)]
    return "".join(parts)


def _text(cue: Sequence[Word], show: Callable[[Word], str] = lambda word: word.text) -> str:
    """The text of a cue in one or two lines."""
    if len(_join(cue)) <= LINE_CHARS:
        return _join(cue, show)
    first = textwrap.wrap(_join(cue), LINE_CHARS)[0]
    size = next(n for n in range(len(cue), 0, -1) if n == 1 or len(_join(cue[:n])) <= len(first))
    rest = f"\n{_join(cue[size:], show)}" if cue[size:] else ""
    return _join(cue[:size], show) + rest


def _timed(word: Word) -> str:
    return f"<{_clock(word.start_s, '.')}>{escape(word.text, quote=False)}"


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{point}{rest % 1000:03d}"
