"""`vivace --batch LINES -o FOLDER`: one file for each line; existing files are kept."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from vivace.audio.encode import FORMATS, open_encoder
from vivace.audio.subtitles import FORMATS as SUBTITLES
from vivace.audio.subtitles import write_subtitles
from vivace.audio.writer import FileWriter, claim_audio_file
from vivace.cli.messages import CUT_SHORT, LiveLine, Report, print_error, print_report
from vivace.cli.output import check_format, subtitle_path
from vivace.cli.speak import Speech
from vivace.cli.streams import plain, put, tell
from vivace.cli.text import decode, read_file, read_stdin
from vivace.disk import sweep
from vivace.errors import AudioError, RequestError, TTSError
from vivace.options import StreamOptions
from vivace.speech import SAMPLE_RATE

if TYPE_CHECKING:
    from vivace.tts import TTS

Line = tuple[int, str]  # its number, from 1, and its words


class Interrupted(Exception):
    """The batch was interrupted; the current line gets no file."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines to be spoken, each to a file named by its number."""

    lines: list[Line]
    folder: Path
    ending: str

    def path(self, number: int) -> Path:
        return self.folder / f"{number:04d}{self.ending}"

    def speak(
        self,
        tts: TTS,
        lines: Iterable[Line],
        options: StreamOptions,
        arguments: argparse.Namespace,
    ) -> int:
        """Speak these lines, each to its file; returns the worst exit code."""
        worst, is_over = 0, Event()
        live = LiveLine(is_quiet=arguments.quiet or arguments.json)
        threads = ThreadPoolExecutor(tts.engine.num_together, thread_name_prefix="vivace-batch")
        try:
            waiting = {
                threads.submit(self._speak, tts, line, options, arguments, is_over): line[0]
                for line in lines
            }
            for count, future in enumerate(as_completed(waiting), start=1):
                live.clear()
                worst = max(worst, _tell(future, waiting[future], arguments), key=_badness)
                live.show(f"{count} of {len(waiting)} lines")
        finally:
            is_over.set()
            threads.shutdown(wait=True, cancel_futures=True)
            live.clear()
        return worst

    def missing(self, arguments: argparse.Namespace) -> Iterator[Line]:
        """The lines without a file; reports the rest as skipped."""
        for number, words in self.lines:
            path = self.path(number)
            if arguments.force or not os.path.lexists(path):
                yield number, words
            elif arguments.json:
                put(json.dumps({"line": number, "output": str(path), "skipped": True}))
            elif not arguments.quiet:
                tell(plain(f"{path}: exists, skipped"))

    def _speak(
        self,
        tts: TTS,
        line: Line,
        options: StreamOptions,
        arguments: argparse.Namespace,
        is_over: Event,
    ) -> Report | None:
        def stop_if_over(_: object) -> None:
            if is_over.is_set():
                raise Interrupted

        number, words = line
        path = self.path(number)
        speech = Speech(tts, words, options)
        speech.on_chunk = stop_if_over
        subtitles = subtitle_path(arguments, str(path))
        claim = claim_audio_file(path, force=arguments.force)
        try:
            with FileWriter(claim, path, tts.sample_rate) as file:
                try:
                    speech.write_to([file], speed=arguments.speed, is_streamed=False)
                except BaseException:
                    file.discard()
                    raise
        finally:
            claim.discard()
        if subtitles is not None:
            write_subtitles(subtitles, speech.words, force=arguments.force)
        return speech.report(output=str(path), is_played=False, line=number)


def read_batch(arguments: argparse.Namespace) -> Batch:
    """The lines of a file, or of stdin, and the folder for them."""
    if arguments.text is not None or arguments.output is None or arguments.play:
        arguments.fail("--batch FILE takes no TEXT and no --play, and -o names the folder")
    if arguments.subtitles not in (None, *SUBTITLES):
        arguments.fail(f"--subtitles with --batch is one of: {', '.join(SUBTITLES)}")
    is_stdin = arguments.batch == "-"
    text = read_stdin() if is_stdin else decode(read_file(arguments.batch), arguments.batch)
    rows = enumerate(text.removeprefix("\ufeff").split("\n"), start=1)  # as editors count them
    lines = [(number, row.strip()) for number, row in rows if row.strip()]
    if not lines:
        raise RequestError(f"{arguments.batch} has no line to read")
    format = check_format(arguments.format) or "wav"
    open_encoder(format, SAMPLE_RATE).finish()  # a missing package is an error now
    folder = Path(arguments.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AudioError(f"cannot write to the folder {folder}: {error.strerror}") from error
    sweep(folder)
    return Batch(lines, folder, FORMATS[format].extensions[0])


def _tell(future: Future[Report | None], number: int, arguments: argparse.Namespace) -> int:
    """Report one line; its exit code."""
    try:
        report = future.result()
    except TTSError as error:
        print_error(error, is_json=arguments.json, line=number)
        return 1
    if report is None:
        return 0
    print_report(report, is_json=arguments.json, is_quiet=arguments.quiet)
    return report.exit_code


def _badness(code: int) -> int:
    return {0: 0, CUT_SHORT: 1}.get(code, 2)
