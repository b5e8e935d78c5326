"""What the command line says: a live line while it works, one line at the end, errors in one."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from vivace.errors import TTSError
from vivace.speech import FinishReason, Usage

T = TypeVar("T")


class LiveLine:
    """One line on stderr, rewritten in place; nothing where stderr is no terminal."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_on = not is_quiet and sys.stderr.isatty()
        self._num_shown = 0

    def show(self, words: str) -> None:
        if self._is_on:
            words = words[: shutil.get_terminal_size().columns - 1]  # a second line would stay
            self._write(words.ljust(self._num_shown))
            self._num_shown = len(words)

    def each(self, values: Iterable[T], words: str) -> Iterator[T]:
        """The values, each shown in the words' braces while it is worked on."""
        for value in values:
            self.show(words.format(value))
            yield value

    def clear(self) -> None:
        if self._num_shown:
            self._write(" " * self._num_shown)
            self._write("")
            self._num_shown = 0

    def _write(self, words: str) -> None:
        print(f"\r{words}", end="", file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was made of one text, and where it went."""

    output: str | None  # a path, or - for stdout
    is_played: bool
    usage: Usage
    finish_reason: FinishReason

    def as_json(self) -> str:
        facts = {
            "output": self.output,
            "played": self.is_played,
            "finish_reason": self.finish_reason,
            **dataclasses.asdict(self.usage),
            "times_real_time": self.usage.times_real_time,
        }
        return json.dumps(facts)

    def __str__(self) -> str:
        usage = self.usage
        return (
            f"{self._places()}: {_first_audio(usage)}, {usage.audio_s:.2f} s of audio in "
            f"{usage.wall_s:.2f} s ({_pace(usage)}), seed {usage.seed}, {self.finish_reason}"
        )

    def _places(self) -> str:
        file = "stdout" if self.output == "-" else self.output
        return " and ".join(place for place in (file, "played" * self.is_played) if place)


def describe_progress(usage: Usage) -> str:
    return f"{_first_audio(usage)}, {usage.audio_s:.1f} s made, {_pace(usage)}"


def _first_audio(usage: Usage) -> str:
    return f"first audio in {usage.first_audio_ms or 0:.0f} ms"


def _pace(usage: Usage) -> str:
    return f"{usage.times_real_time:.2f} times real time"


def print_report(report: Report, *, is_json: bool, is_quiet: bool) -> None:
    if is_json:
        print(report.as_json(), file=sys.stderr if report.output == "-" else sys.stdout, flush=True)
    elif not is_quiet:
        print(report, file=sys.stderr)


def print_error(error: TTSError) -> None:
    print("vivace:", " ".join(str(error).split()), file=sys.stderr)


def plain(value: object) -> str:
    """Fit for a terminal: a voice file can come from anyone, escape codes and all."""
    text = "".join(letter if letter.isprintable() else "?" for letter in str(value))
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
