"""Where speech goes: a file, stdout, the loudspeaker, or two of them.

It is settled before a model is loaded: minutes of speech should not be lost to a typing error.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vivace.audio.encode import FORMATS, format_of, open_encoder
from vivace.audio.play import Output, find_output
from vivace.audio.writer import open_audio_file
from vivace.errors import AudioError
from vivace.speech import SAMPLE_RATE

STDOUT = "-"
DEFAULT_NAME = "speech"

Samples = NDArray[np.float32]


class Sink(Protocol):
    def write(self, samples: Samples) -> None: ...


class StdoutSink:
    """Encoded audio on stdout, as it comes."""

    def __init__(self, format: str, sample_rate: int) -> None:
        self._encoder = open_encoder(format, sample_rate)

    def write(self, samples: Samples) -> None:
        self._send(self._encoder.encode(samples))

    def close(self) -> None:
        self._send(self._encoder.finish())

    def _send(self, content: bytes) -> None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where one command's speech goes."""

    output: str | None  # a path, or - for stdout; None plays only
    loudspeaker: Output | None
    stdout_format: str = "wav"
    force: bool = False

    @contextmanager
    def open(self, sample_rate: int) -> Iterator[list[Sink]]:
        """Files are finished however the block ends; the loudspeaker stops on an error."""
        with ExitStack() as stack:
            sinks: list[Sink] = []
            if self.loudspeaker is not None:  # first, so that files need not wait for it
                sinks.append(stack.enter_context(self.loudspeaker.player(sample_rate)))
            if self.output == STDOUT:
                sinks.append(
                    stack.enter_context(closing(StdoutSink(self.stdout_format, sample_rate)))
                )
            elif self.output is not None:
                file = open_audio_file(self.output, sample_rate, force=self.force)
                sinks.append(stack.enter_context(file))
            yield sinks

    def renewed(self) -> Target:
        """The same with the next free name, if it names a file."""
        if self.output in (None, STDOUT):
            return self
        return replace(self, output=str(_next_free(Path(self.output))))


def choose_target(arguments: argparse.Namespace) -> Target:
    """What -o, --format, --play and --force ask for; without them, what this machine can do."""
    target = _choose(arguments, force=arguments.force)
    return target.renewed() if arguments.output is None else target


def choose_series(arguments: argparse.Namespace) -> Target:
    """The same for a row of texts, each of which is spoken to `renewed`."""
    if arguments.output == STDOUT:
        raise AudioError("stdout cannot take a row of files; name the first with -o, or --play")
    return replace(_choose(arguments, force=True), force=False)


def _choose(arguments: argparse.Namespace, *, force: bool) -> Target:
    format = _check_format(arguments.format)
    loudspeaker = find_output() if arguments.play else None
    output = arguments.output
    if output is not None:
        _check_output(output, format, force=force)
    elif loudspeaker is None and (format or (loudspeaker := _find_output_or_none()) is None):
        output = DEFAULT_NAME + FORMATS[format or "wav"].extensions[0]
        _check_output(output, format, force=True)  # the next free name will do
    return Target(
        output=output, loudspeaker=loudspeaker, stdout_format=format or "wav", force=force
    )


def _find_output_or_none() -> Output | None:
    try:
        return find_output()
    except AudioError:
        return None


def _check_format(format: str | None) -> str | None:
    if format is not None and format not in FORMATS:
        raise AudioError(f"no audio format named {format!r}; try one of: {', '.join(FORMATS)}")
    return format


def _check_output(output: str, format: str | None, *, force: bool) -> None:
    if output == STDOUT:
        if sys.stdout.isatty():
            raise AudioError("stdout is a terminal; pipe the audio on, or name a file with -o")
        _check_encoder(format or "wav")
        return
    path = Path(output)
    if format not in (None, format_of(path)):
        raise AudioError(f"{path} and --format {format} disagree; leave one of them out")
    _check_path(path, force=force)
    _check_encoder(format_of(path))


def _check_encoder(format: str) -> None:
    """A package that is missing is said now."""
    open_encoder(format, SAMPLE_RATE).finish()


def _check_path(path: Path, *, force: bool) -> None:
    if os.path.isdir(path):  # unlike Path's, it takes a name that is too long
        raise AudioError(f"cannot write {path}: it is a folder")
    if not os.path.isdir(path.parent):
        raise AudioError(f"cannot write {path}: there is no folder {str(path.parent)!r}")
    if not os.access(path.parent, os.W_OK):
        raise AudioError(f"cannot write {path}: the folder {str(path.parent)!r} is read-only")
    if os.path.lexists(path) and not force:
        raise AudioError(f"{path} exists; choose another name, or overwrite it with --force")


def _next_free(path: Path) -> Path:
    """The path itself, or the first of path-2, path-3 … that is not there."""
    base = path.stem
    others = (path.with_stem(f"{base}-{number}") for number in itertools.count(2))
    return next(name for name in itertools.chain([path], others) if not os.path.lexists(name))
