"""Reports and errors of the command line: one line of text or one JSON object each."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from vivace.cli.streams import STDOUT, print_json, print_stderr, printable
from vivace.speech import FinishReason, SamplingParams, Usage

INCOMPLETE = 3  # exit code if words are missing or speech was cut, but not at --max-frames
MAX_SHOWN_WORDS = 5  # missing words in a warning
MAX_SHOWN_SKIPPED = 5  # skipped parts of a text in a warning

_OPTIONS = {"chunk_frames", "text_layout", *(f.name for f in dataclasses.fields(SamplingParams))}
_OPTION = re.compile("|".join(rf"\b{name}\b" for name in sorted(_OPTIONS) if "_" in name))
_LOAD_MODEL = re.compile(r"\bload (?=Qwen/)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one text."""

    output: str | None  # a path, or - for stdout
    is_played: bool
    usage: Usage
    finish_reason: FinishReason
    max_frames: int | None = None  # --max-frames
    first_audio_s: float | None = None  # from the start of the process
    line: int | None = None  # of a batch
    transcript: str | None = None  # of a speech recogniser, with --verify
    word_error_rate: float | None = None

    @property
    def exit_code(self) -> int:
        """INCOMPLETE if words are missing and --max-frames is not the reason, else 0."""
        if self.finish_reason == "stop":
            return INCOMPLETE if self.usage.missing_words else 0
        is_requested = self.finish_reason == "length" and self.max_frames is not None
        is_cancelled = self.finish_reason == "cancelled"  # the exit code is that of the signal
        return 0 if is_cancelled or is_requested else INCOMPLETE

    @property
    def warning(self) -> str | None:
        """A warning if speech was cut or words are missing."""
        if self.finish_reason == "cancelled":
            return None
        if self.finish_reason == "stop":
            return describe_missing(self.usage.missing_words)
        if not self.exit_code:
            return f"speech was cut at --max-frames {self.max_frames}; the text is incomplete"
        return f"speech was cut ({self.finish_reason}); try another --seed"

    def as_json(self) -> dict[str, Any]:
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
        return line | facts

    def __str__(self) -> str:
        usage, rate = self.usage, self.word_error_rate
        since = f" ({self.first_audio_s:.2f} s after the start)" if self.first_audio_s else ""
        verified = "" if rate is None else f", word error rate {100 * rate:.0f} %"
        return (
            f"{self.destination}: {_first_audio(usage)}{since}, {usage.audio_s:.2f} s of audio in "
            f"{usage.wall_s:.2f} s ({_speed(usage)}), seed {usage.seed}, {self.finish_reason}"
            f"{verified}"
        )

    @property
    def destination(self) -> str:
        file = "stdout" if self.output == STDOUT else self.output
        return printable(" and ".join(filter(None, (file, "played" * self.is_played))))


def describe_missing(words: Sequence[str]) -> str | None:
    """A warning with the first missing words, or None."""
    if not words:
        return None
    shown = ", ".join(repr(printable(word)) for word in words[:MAX_SHOWN_WORDS])
    num_more = len(words) - MAX_SHOWN_WORDS
    more = f" and {num_more} more" if num_more > 0 else ""
    return f"words not spoken: {shown}{more}; try another --seed"


def describe_progress(usage: Usage) -> str:
    return f"{_first_audio(usage)}, {usage.audio_s:.1f} s of audio, {_speed(usage)}"


def _first_audio(usage: Usage) -> str:
    return f"first audio in {usage.first_audio_ms or 0:.0f} ms"


def _speed(usage: Usage) -> str:
    return f"{usage.times_real_time:.2f} times real time"


def print_report(report: Report, *, is_json: bool, is_quiet: bool) -> None:
    if is_json:
        print_json(report.as_json(), on_stderr=report.output == STDOUT)
        return
    if not is_quiet:
        print_stderr(report)
    if report.usage.skipped:
        print_stderr(f"vivace: {report.destination}: {describe_skipped(report.usage.skipped)}")
    if report.warning:
        print_stderr(f"vivace: {report.destination}: {report.warning}")


def print_kept(report: Report, *, is_json: bool, is_quiet: bool) -> None:
    """Print the report of a file whose speech an error ended."""
    print_report(report, is_json=is_json, is_quiet=is_quiet)
    if not is_json:
        file, kept_s = printable(report.output or ""), report.usage.audio_s
        print_stderr(f"vivace: {file}: only the first {kept_s:.2f} s are kept")


def describe_skipped(skipped: Sequence[str]) -> str:
    """A warning with the first skipped parts of a text."""
    num_chars, names = sum(map(len, skipped)), ", ".join(map(repr, skipped[:MAX_SHOWN_SKIPPED]))
    more = ", …" * (len(skipped) > MAX_SHOWN_SKIPPED)
    return (
        f"skipped {num_chars} characters that the model does not support: {printable(names)}{more}"
    )


def print_error(
    error: object,
    *,
    is_json: bool = False,
    on_stderr: bool = False,
    line: int | None = None,
    file: str | None = None,
) -> None:
    """Print an error as one line, or with --json as an object instead of the report."""
    message = name_flags(" ".join(str(error).split()))
    if is_json:
        place = {"line": line, "file": file}
        facts = {name: value for name, value in place.items() if value is not None}
        facts |= {"error": message, "type": type(error).__name__}
        print_json(facts, on_stderr=on_stderr)
    else:
        print_stderr(f"vivace: {message}" if line is None else f"vivace: line {line}: {message}")


def name_flags(message: str) -> str:
    """The flags of the command line instead of the arguments of Python that an error names."""
    message = _OPTION.sub(lambda name: f"--{name[0].replace('_', '-')}", message)
    return _LOAD_MODEL.sub("use --model ", message)
