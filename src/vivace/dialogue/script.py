"""Parses the lines of a dialogue from a script file or from a list of (voice, text).

Format of a script file:

Anna = vivian           # names and their voices come first; a voice's own name needs no line
Ben = voices/ben.wav

Anna: Did you hear that?
Ben: [overlap 0.3s] Hear what?
  An indented line continues the line before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vivace.errors import RequestError
from vivace.speech import shown
from vivace.text.files import decode_utf8, read_utf8
from vivace.text.pauses import MAX_PAUSE_S, Pause, parse_pauses

MAX_SCRIPT_BYTES = 4_000_000
MAX_NAME_CHARS = 100
_VOICE = re.compile(r"([^:：=]+)=\s*(.+)")
_SPOKEN = re.compile(r"([^:：]+)[:：]\s*(.+)")
_OVERLAP = re.compile(
    r"\s*\[overlap[ \t]{1,8}([0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})[ \t]{0,8}(ms|s)\]\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class DialogueLine:
    """One turn of a speaker."""

    speaker: Any  # a name, or a voice itself
    text: str
    where: str  # such as "talk.txt, line 3"
    overlap_s: float | None = None  # from `[overlap 0.3s]`, before the previous line's end

    @classmethod
    def of(cls, speaker: object, text: str, where: str) -> DialogueLine:
        """Parse and remove an overlap mark at the start of the text."""
        mark = _OVERLAP.match(text)
        if mark is None:
            return cls(speaker, text, where)
        overlap_s = float(mark[1]) / (1000 if mark[2].lower() == "ms" else 1)
        if overlap_s > MAX_PAUSE_S:
            raise RequestError(
                f"{where}: an overlap lasts at most {MAX_PAUSE_S:g} seconds, not {overlap_s:g}"
            )
        return cls(speaker, text[mark.end() :], where, overlap_s)

    @property
    def has_pauses(self) -> tuple[bool, bool]:
        """Whether the text begins, and ends, with a pause mark."""
        parts = parse_pauses(self.text.strip()) or [""]
        return isinstance(parts[0], Pause), isinstance(parts[-1], Pause)


@dataclass(frozen=True, slots=True)
class DialogueScript:
    """The lines of a dialogue and the voice of each name."""

    lines: tuple[DialogueLine, ...]
    voices: Mapping[str, Any] = field(default_factory=dict)
    _by_name: Mapping[str, Any] = field(init=False, repr=False, compare=False)  # case folded

    def __post_init__(self) -> None:
        by_name = {name.casefold(): voice for name, voice in self.voices.items()}
        object.__setattr__(self, "_by_name", by_name)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DialogueScript:
        """Read a script file. RequestError names the file, the line and the reason.

        Args:
            path: A text file with lines of `name: text` (docs/dialogue.md).
        """
        return _parse(read_utf8(path, MAX_SCRIPT_BYTES, RequestError), Path(path).name)

    @classmethod
    def parse(cls, content: bytes, name: str) -> DialogueScript:
        return _parse(decode_utf8(content, name, MAX_SCRIPT_BYTES, RequestError), name)

    @classmethod
    def of(
        cls, source: DialogueScript | Iterable[Any], voices: Mapping[str, Any]
    ) -> DialogueScript:
        """Accepts a script or pairs of (voice, text). `voices` has precedence over the script's."""
        if isinstance(source, DialogueScript):
            return cls(source.lines, {**source.voices, **voices})
        if isinstance(source, (str, bytes)) or not isinstance(source, Iterable):
            kind = type(source).__name__
            raise RequestError(f"lines must be a list of (voice, text), not {kind}")
        lines = tuple(_line_of(item, number) for number, item in enumerate(source, start=1))
        if not lines:
            raise RequestError("the dialogue has no lines; give at least one (voice, text)")
        return cls(lines, dict(voices))

    def voice_of(self, speaker: Any) -> Any:
        """The voice of a name, or the speaker itself."""
        if not isinstance(speaker, str):
            return speaker
        return self._by_name.get(speaker.casefold(), speaker)


def _line_of(item: object, number: int) -> DialogueLine:
    where = f"line {number} of the dialogue"
    if isinstance(item, DialogueLine):
        return item
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise RequestError(f"{where} must be (voice, text), not {shown(item)}")
    speaker, text = item
    if not isinstance(text, str):
        raise RequestError(f"{where}: the text must be a string, not {type(text).__name__}")
    return DialogueLine.of(speaker, text, where)


def _parse(text: str, name: str) -> DialogueScript:
    voices: dict[str, str] = {}
    known: set[str] = set()  # names with a voice, case folded
    spoken: list[tuple[str, list[str], str]] = []
    for number, row in enumerate(text.split("\n"), start=1):
        where, words = f"{name}, line {number}", row.strip()
        if not words or words.startswith("#"):
            continue
        if row[0].isspace() and spoken:
            spoken[-1][1].append(words)
        elif not spoken and (voice := _VOICE.fullmatch(words)):
            speaker = voice[1].rstrip()
            if speaker.casefold() in known:
                raise RequestError(f"{where}: {speaker[:80]!r} has a voice already")
            voices[speaker] = voice[2]
            known.add(speaker.casefold())
        elif (match := _SPOKEN.fullmatch(words)) and len(match[1].rstrip()) <= MAX_NAME_CHARS:
            spoken.append((match[1].rstrip(), [match[2]], where))
        else:
            hint = "" if spoken else ", Name = voice"
            raise RequestError(
                f"{where}: expected Name: text{hint}, or an indented line that continues the "
                f"previous one; found {shown(words)}"
            )
    if not spoken:
        raise RequestError(f"{name}: no line has the form Name: text; add at least one")
    return DialogueScript(
        tuple(DialogueLine.of(speaker, " ".join(rows), where) for speaker, rows, where in spoken),
        voices,
    )
