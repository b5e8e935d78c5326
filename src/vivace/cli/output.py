"""Outputs of a command: a file, a pipe, the loudspeaker, or a combination.

Outputs are checked and file names reserved before a model is loaded, so that no speech is lost to
an invalid path or to another process.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from vivace.audio.encode import open_encoder, tags_of
from vivace.audio.file_mark import FileMark
from vivace.audio.formats import FORMATS, find_format, format_of
from vivace.audio.play import Loudspeaker, find_output
from vivace.audio.subtitles import SUBTITLE_FORMATS, subtitle_format
from vivace.audio.wav import Samples
from vivace.audio.writer import FileWriter, claim_audio_file, claim_free_name
from vivace.cli.request import check_signature
from vivace.cli.streams import STDOUT, STDOUT_PATHS, write_stdout
from vivace.disk import AtomicFile, sweep, why_unwritable
from vivace.errors import AudioError, OutputExistsError
from vivace.speech import SAMPLE_RATE

DEFAULT_NAME = "speech"


class AudioSink(Protocol):
    def write(self, samples: Samples) -> None: ...


class PipeSink:
    """Writes encoded audio to a pipe while it is generated."""

    def __init__(
        self,
        send: Callable[[bytes], object],
        format: str,
        sample_rate: int,
        mark: FileMark | None = None,
    ) -> None:
        tags = tags_of(mark, are_first=True)  # the size of a WAV is not known at its end
        self._send, self._encoder = send, open_encoder(format, sample_rate, tags=tags)
        self._has_begun = False

    def write(self, samples: Samples) -> None:
        self._has_begun |= len(samples) > 0
        self._send(self._encoder.encode(samples))

    def close(self) -> None:
        rest = self._encoder.finish()
        if self._has_begun:  # after an error without audio, nothing is written
            self._send(rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The output of one text. Leaving the `with` block releases an unused file name."""

    output: str | None  # a path, or - for stdout; None: play only
    loudspeaker: Loudspeaker | None
    format: str = "wav"  # of a pipe
    claim: AtomicFile | None = None  # the reserved file name

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        if self.claim is not None:
            self.claim.discard()

    @contextmanager
    def open(self, sample_rate: int, mark: FileMark | None) -> Iterator[list[AudioSink]]:
        """Open the sinks. After an error, files are finished and playback stops."""
        with ExitStack() as stack:
            sinks: list[AudioSink] = []
            if self.loudspeaker is not None:  # entered first: files finish before playback
                sinks.append(stack.enter_context(self.loudspeaker.player(sample_rate)))
            if self.claim is not None and self.output is not None:
                writer = FileWriter(self.claim, Path(self.output), sample_rate, mark)
                sinks.append(stack.enter_context(writer))
            elif self.output is not None:
                send = write_stdout if self.output == STDOUT else stack.enter_context(_pipe(self))
                pipe = PipeSink(send, self.format, sample_rate, mark)
                sinks.append(stack.enter_context(closing(pipe)))
            yield sinks

    @property
    def is_immediate(self) -> bool:
        """Whether audio is used while it is generated: played, or written to stdout."""
        return self.loudspeaker is not None or self.output == STDOUT

    def renewed(self) -> Target:
        """The same target with the next free file name."""
        if self.output is None or self.is_pipe:
            return self
        claim = claim_free_name(Path(self.output))
        path = Path(self.output).with_name(claim.path.name)
        return replace(self, output=str(path), claim=claim)

    @property
    def is_pipe(self) -> bool:
        return self.output is not None and _is_pipe(self.output)


def has_written_file(sinks: Iterable[AudioSink]) -> bool:
    """Whether one of the closed sinks is a file that has its name."""
    return any(isinstance(sink, FileWriter) and sink.is_written for sink in sinks)


@contextmanager
def _pipe(target: Target) -> Iterator[Callable[[bytes], object]]:
    """Open a named pipe or a device. Opening a pipe waits for its reader."""
    try:
        with open(str(target.output), "wb", buffering=0) as file:
            yield file.write
    except BrokenPipeError:
        raise
    except OSError as error:
        raise AudioError(f"cannot write {target.output}: {error.strerror or error}") from error


def choose_target(arguments: argparse.Namespace) -> Target:
    """The target of -o, --format, --play and --force. By default, play or write a file."""
    target = _choose(arguments)
    if arguments.output is not None or target.output is None:
        subtitle_path(arguments, target.output)  # raises now; a default name is not known yet
    if target.output is None or target.is_pipe:
        return target
    if arguments.output is None:
        return target.renewed()
    path = Path(target.output)
    check_free(path, arguments)
    return replace(target, claim=claim_audio_file(path, force=arguments.force))


def subtitle_path(arguments: argparse.Namespace, output: str | None) -> Path | None:
    """The subtitle file of this output, or None. AudioError if it cannot be written."""
    given: str | None = getattr(arguments, "subtitles", None)
    if given is None:
        return None
    if given in SUBTITLE_FORMATS:
        if output is None or output == STDOUT:
            raise AudioError(
                f"--subtitles {given} needs -o FILE, or a file name: --subtitles a.{given}"
            )
        path = Path(output).with_suffix(f".{given}")
    else:
        path = Path(given)
        subtitle_format(path)
    _check_folder(path)
    check_free(path, arguments)
    return path


def check_free(path: Path, arguments: argparse.Namespace) -> None:
    if os.path.lexists(path) and not arguments.force:
        raise OutputExistsError(path, "--force")


def choose_series(arguments: argparse.Namespace) -> Target:
    """The target for several texts. Call `renewed` for each text."""
    target = _choose(arguments)
    if target.is_pipe:
        raise AudioError(f"-o {target.output} cannot hold several files; use a file name")
    return target


def _choose(arguments: argparse.Namespace) -> Target:
    format = arguments.format
    if format is not None:
        find_format(format)
    loudspeaker = find_output() if arguments.play else None
    output = STDOUT if arguments.output in STDOUT_PATHS else arguments.output
    if output is None and loudspeaker is None and format is None:
        with suppress(AudioError):
            loudspeaker = find_output()
    if output is None and loudspeaker is None:
        output = DEFAULT_NAME + FORMATS[format or "wav"].extensions[0]
    if output is not None:
        format = _check_output(output, format)
        check_signature(arguments, None if _is_pipe(output) else format)
    return Target(output=output, loudspeaker=loudspeaker, format=format or "wav")


def _check_output(output: str, format: str | None) -> str:
    """The format of the output. Raises AudioError if the output cannot be written."""
    if output == STDOUT and sys.stdout.isatty():
        raise AudioError("stdout is a terminal; pipe the audio to a program, or use -o FILE")
    if not _is_pipe(output):
        path = Path(output)
        _check_folder(path)
        if format not in (None, format_of(path)):
            raise AudioError(
                f"--format {format} contradicts the file name {path}; omit one of them"
            )
        format = format_of(path)
        sweep(path.parent)
    format = format or "wav"
    open_encoder(format, SAMPLE_RATE).finish()  # raises now if a package is missing
    return format


def _is_pipe(output: str) -> bool:
    """Whether the output cannot seek: stdout, a named pipe or a device."""
    is_other = os.path.exists(output) and not os.path.isfile(output) and not os.path.isdir(output)
    return output == STDOUT or is_other


def _check_folder(path: Path) -> None:
    if (reason := why_unwritable(path)) is not None:
        raise AudioError(f"cannot write {path}: {reason}")
