"""Subtitles of timed words: SRT and WebVTT in cues that can be read, JSON with every word."""

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

from vivace.disk import write_whole
from vivace.errors import AudioError, OutputExistsError, RequestError
from vivace.speech import Word

LINE_CHARS = 42  # two lines of these are a cue
MAX_CUE_S = 6.0
GAP_S = 0.7  # silence after which another cue begins
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’)\]»」』]*\Z")


def to_srt(words: Sequence[Word]) -> str:
    """SubRip: numbered cues."""
    cues = (
        f"{number}\n{_clock(cue[0].start_s, ',')} --> {_clock(cue[-1].end_s, ',')}\n{_text(cue)}\n"
        for number, cue in enumerate(split_cues(words), start=1)
    )
    return "\n".join(cues)


def to_vtt(words: Sequence[Word]) -> str:
    """WebVTT, with the time of each word inside its cue, as karaoke styles want."""
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


FORMATS: dict[str, Callable[[Sequence[Word]], str]] = {
    "srt": to_srt,
    "vtt": to_vtt,
    "json": to_json,
}


def subtitle_format(path: str | os.PathLike[str]) -> str:
    """By the extension of a path, or an AudioError."""
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise AudioError(f"{path} is no name of subtitles; they are written as {known}")
    return ending


def write_subtitles(
    path: str | os.PathLike[str], words: Sequence[Word] | None, *, force: bool = True
) -> Path:
    """A whole file or none; `words` of None is a RequestError: there are no timings."""
    path, format = Path(path), subtitle_format(path)
    if words is None:
        raise RequestError(
            f"there are no word timings for {path}: speak with timings=True, and with a checkpoint "
            "whose attention follows the text (docs/timings.md)"
        )
    try:
        write_whole(path, FORMATS[format](words).encode(), replace=force)
    except FileExistsError as error:
        raise OutputExistsError(path) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AudioError(f"cannot write {path}: {reason}") from error
    return path


def split_cues(words: Sequence[Word]) -> list[list[Word]]:
    """Words that are shown together: of one sentence, without a long pause, in two lines."""
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
    """With a space between words, unless they are written without one."""
    parts = [show(words[0])]
    for last, word in itertools.pairwise(words):
        parts += ["" if word.start_char == last.end_char else " ", show(word)]
    return "".join(parts)


def _text(cue: Sequence[Word], show: Callable[[Word], str] = lambda word: word.text) -> str:
    """A cue in one line or two."""
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
