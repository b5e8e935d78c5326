"""Messages of the command line: progress, reports and errors, a line each."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from vivace.cli.streams import plain, put, tell
from vivace.speech import FinishReason, SamplingParams, Usage

T = TypeVar("T")
CUT_SHORT = 3  # exit code if words are missing: speech was cut, but not at --max-frames
MAX_SHOWN_WORDS = 5  # of those that are missing
MAX_SKIPPED_SHOWN = 5  # parts of a text that a warning names

_OPTIONS = {"chunk_frames", "text_layout", *(f.name for f in dataclasses.fields(SamplingParams))}
_OPTION = re.compile("|".join(rf"\b{name}\b" for name in sorted(_OPTIONS) if "_" in name))


class LiveLine:
    """One line on stderr, rewritten in place; nothing where stderr is no terminal."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self.is_on = not is_quiet and sys.stderr.isatty()
        self._num_shown = 0

    def show(self, words: str) -> None:
        if self.is_on:
            words = words[: shutil.get_terminal_size().columns - 1]  # a second line would stay
            tell(words.ljust(self._num_shown), start="\r", end="")
            self._num_shown = len(words)

    def each(self, values: Iterable[T], words: str) -> Iterator[T]:
        """Iterate over the values; show each, formatted into `words`, while it is processed."""
        for value in values:
            self.show(words.format(value))
            yield value

    def end(self) -> None:
        """Leave the line as it is; what is printed next begins a new one."""
        if self._num_shown:
            tell("")
            self._num_shown = 0

    def clear(self) -> None:
        if self._num_shown:
            tell(" " * self._num_shown, start="\r", end="\r")
            self._num_shown = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one text and its output."""

    output: str | None  # a path, or - for stdout
    is_played: bool
    usage: Usage
    finish_reason: FinishReason
    max_frames: int | None = None  # the user's own limit
    first_audio_s: float | None = None  # from the start of the process
    line: int | None = None  # of a batch
    transcript: str | None = None  # a recogniser's, with --verify
    word_error_rate: float | None = None

    @property
    def exit_code(self) -> int:
        """0, or CUT_SHORT if words are missing and no limit of the user explains it."""
        if self.finish_reason == "stop":
            return CUT_SHORT if self.usage.missing_words else 0
        is_asked_for = self.finish_reason == "length" and self.max_frames is not None
        is_cancelled = self.finish_reason == "cancelled"  # a signal has a code of its own
        return 0 if is_cancelled or is_asked_for else CUT_SHORT

    @property
    def warning(self) -> str | None:
        """The warning that speech was cut or words are missing, or None."""
        if self.finish_reason == "cancelled":
            return None
        if self.finish_reason == "stop":
            return describe_missing(self.usage.missing_words)
        if not self.exit_code:
            return f"cut at --max-frames {self.max_frames}: the text was not read to its end"
        return f"cut ({self.finish_reason}): the speech did not end by itself; try another --seed"

    def as_json(self) -> str:
        line = {} if self.line is None else {"line": self.line}
        facts = {
            "output": self.output,
            "played": self.is_played,
            "finish_reason": self.finish_reason,
            "is_complete": self.finish_reason == "stop" and not self.usage.missing_words,
            **dataclasses.asdict(self.usage),
            "times_real_time": self.usage.times_real_time,
            "start_to_first_audio_ms": self.first_audio_s and round(1000 * self.first_audio_s),
        }
        if self.transcript is not None:
            facts |= {"transcript": self.transcript, "word_error_rate": self.word_error_rate}
        return json.dumps(line | facts)

    def __str__(self) -> str:
        usage = self.usage
        since = f" ({self.first_audio_s:.2f} s from the start)" if self.first_audio_s else ""
        return (
            f"{self.places}: {_first_audio(usage)}{since}, {usage.audio_s:.2f} s of audio in "
            f"{usage.wall_s:.2f} s ({_pace(usage)}), seed {usage.seed}, {self.finish_reason}"
            f"{self._verified}"
        )

    @property
    def _verified(self) -> str:
        rate = self.word_error_rate
        return "" if rate is None else f", word error rate {100 * rate:.0f} %"

    @property
    def places(self) -> str:
        file = "stdout" if self.output == "-" else self.output
        return plain(" and ".join(place for place in (file, "played" * self.is_played) if place))


def describe_missing(words: Sequence[str]) -> str | None:
    """Names the first missing words; None if there are none."""
    if not words:
        return None
    shown = ", ".join(repr(plain(word)) for word in words[:MAX_SHOWN_WORDS])
    num_more = len(words) - MAX_SHOWN_WORDS
    more = f" and {num_more} more" if num_more > 0 else ""
    return f"words not spoken: {shown}{more}; try another --seed"


def describe_progress(usage: Usage) -> str:
    return f"{_first_audio(usage)}, {usage.audio_s:.1f} s made, {_pace(usage)}"


def _first_audio(usage: Usage) -> str:
    return f"first audio in {usage.first_audio_ms or 0:.0f} ms"


def _pace(usage: Usage) -> str:
    return f"{usage.times_real_time:.2f} times real time"


def print_report(report: Report, *, is_json: bool, is_quiet: bool) -> None:
    if is_json:
        (tell if report.output == "-" else put)(report.as_json())
        return
    if not is_quiet:
        tell(report)
    if report.usage.skipped:
        tell(f"vivace: {report.places}: {describe_skipped(report.usage.skipped)}")
    if report.warning:
        tell(f"vivace: {report.places}: {report.warning}")


def describe_skipped(skipped: Sequence[str]) -> str:
    """A warning that names the first parts of a text that were left out."""
    num_chars, names = sum(map(len, skipped)), ", ".join(map(repr, skipped[:MAX_SKIPPED_SHOWN]))
    more = ", …" * (len(skipped) > MAX_SKIPPED_SHOWN)
    return f"skipped {num_chars} characters that this model does not read: {plain(names)}{more}"


def print_error(
    error: object, *, is_json: bool = False, on_stderr: bool = False, line: int | None = None
) -> None:
    """Print an error as one line; with --json, as an object where the report would be."""
    message = _OPTION.sub(
        lambda name: f"--{name[0].replace('_', '-')}", " ".join(str(error).split())
    )
    if is_json:
        facts = {"error": message, "type": type(error).__name__}
        show = tell if on_stderr else put
        show(json.dumps(facts if line is None else {"line": line, **facts}))
    else:
        tell(f"vivace: {message}" if line is None else f"vivace: line {line}: {message}")
