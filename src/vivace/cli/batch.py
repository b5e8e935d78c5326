"""`vivace say --batch LINES -o FOLDER`: writes one file per line. Existing files are kept."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from vivace.audio.encode import open_encoder
from vivace.audio.formats import find_format
from vivace.audio.subtitles import SUBTITLE_FORMATS, write_subtitles
from vivace.audio.writer import open_audio_file
from vivace.cli.messages import INCOMPLETE, Report, print_error, print_report
from vivace.cli.output import subtitle_path
from vivace.cli.progress import ProgressLine
from vivace.cli.request import check_signature
from vivace.cli.speak import Speech
from vivace.cli.streams import STDIN, print_json, print_stderr, printable
from vivace.cli.text import MAX_TEXT_BYTES, read_stdin
from vivace.disk import sweep
from vivace.errors import AudioError, RequestError, TTSError
from vivace.options import StreamOptions
from vivace.speech import SAMPLE_RATE
from vivace.text.files import read_utf8

if TYPE_CHECKING:
    from vivace.tts import TTS

SEVERITY = (0, INCOMPLETE, 1)  # exit codes, the worst last
TABLES = (".jsonl", ".json", ".csv", ".tsv")  # their fields would be spoken
NumberedLine = tuple[int, str]  # the number starts at 1


class BatchInterruptedError(Exception):
    """The batch was interrupted; the current line gets no file."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines to speak, each to a file named by its number."""

    lines: list[NumberedLine]
    folder: Path
    extension: str

    def path(self, number: int) -> Path:
        return self.folder / f"{number:04d}{self.extension}"

    def speak(
        self,
        tts: TTS,
        lines: Iterable[NumberedLine],
        options: StreamOptions,
        arguments: argparse.Namespace,
    ) -> int:
        """Speak the lines concurrently and return the worst exit code."""
        worst, is_interrupted = 0, Event()
        threads = ThreadPoolExecutor(tts.engine.num_together, thread_name_prefix="vivace-batch")
        with ProgressLine(is_quiet=arguments.quiet or arguments.json) as progress:
            try:
                speak = partial(self._speak, tts, options, arguments, is_interrupted)
                waiting = {threads.submit(speak, line): line[0] for line in lines}
                for count, future in enumerate(as_completed(waiting), start=1):
                    progress.clear()
                    code = _report(future, waiting[future], arguments)
                    worst = max(worst, code, key=SEVERITY.index)
                    progress.show(f"{count} of {len(waiting)} lines")
            finally:
                is_interrupted.set()
                threads.shutdown(wait=True, cancel_futures=True)
        return worst

    def missing(self, arguments: argparse.Namespace) -> Iterator[NumberedLine]:
        """The lines without a file. Prints the other lines as skipped."""
        for number, words in self.lines:
            path = self.path(number)
            if arguments.force or not os.path.lexists(path):
                yield number, words
            elif arguments.json:
                print_json({"line": number, "output": str(path), "skipped": True})
            elif not arguments.quiet:
                print_stderr(printable(f"{path}: exists, skipped"))

    def _speak(
        self,
        tts: TTS,
        options: StreamOptions,
        arguments: argparse.Namespace,
        is_interrupted: Event,
        line: NumberedLine,
    ) -> Report | None:
        def check_interrupt(_: object) -> None:
            if is_interrupted.is_set():
                raise BatchInterruptedError

        number, words = line
        path = self.path(number)
        speech = Speech(tts, words, options)
        speech.on_chunk = check_interrupt
        subtitles = subtitle_path(arguments, str(path))
        mark = tts.synthesizer.file_mark(options)
        with open_audio_file(path, tts.sample_rate, force=arguments.force, mark=mark) as file:
            try:
                speech.write_to([file], is_streamed=False)
            except BaseException:
                file.discard()
                raise
        if subtitles is not None:
            write_subtitles(subtitles, speech.words, force=arguments.force)
        return speech.report(output=str(path), is_played=False, line=number)


def read_batch(arguments: argparse.Namespace) -> Batch:
    """Read the lines from a file or stdin, and create the output folder."""
    if arguments.text is not None or arguments.play:
        arguments.fail("--batch FILE cannot be used with TEXT or --play")
    if arguments.output is None:
        arguments.fail("--batch FILE needs -o FOLDER")
    if arguments.subtitles not in (None, *SUBTITLE_FORMATS):
        arguments.fail(f"--subtitles with --batch must be one of: {', '.join(SUBTITLE_FORMATS)}")
    if Path(arguments.batch).suffix.lower() in TABLES:
        raise RequestError(
            f"--batch {arguments.batch}: a batch has one plain text per line; "
            "write the texts to a .txt file, or pipe them: `… | vivace --batch - -o FOLDER`"
        )
    is_stdin = arguments.batch == STDIN
    text = read_stdin() if is_stdin else read_utf8(arguments.batch, MAX_TEXT_BYTES, RequestError)
    rows = enumerate(text.split("\n"), start=1)  # numbered as in a text editor
    lines = [(number, row.strip()) for number, row in rows if row.strip()]
    if not lines:
        raise RequestError(f"--batch {arguments.batch}: the file has no lines to speak")
    format = find_format(arguments.format or "wav")
    open_encoder(format.name, SAMPLE_RATE).finish()  # raises now if a package is missing
    check_signature(arguments, format.name)
    folder = Path(arguments.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AudioError(f"cannot write to the folder {folder}: {error.strerror}") from error
    sweep(folder)
    return Batch(lines, folder, format.extensions[0])


def _report(future: Future[Report | None], number: int, arguments: argparse.Namespace) -> int:
    """Print the result of one line and return its exit code."""
    try:
        report = future.result()
    except TTSError as error:
        print_error(error, is_json=arguments.json, line=number)
        return 1
    if report is None:
        return 0
    print_report(report, is_json=arguments.json, is_quiet=arguments.quiet)
    return report.exit_code
