"""`vivace say`: one text, spoken into a file or to stdout."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vivace.audio.encode import FORMATS, format_of, open_encoder
from vivace.audio.speed import SpeedChanger, check_speed
from vivace.audio.writer import open_audio_file
from vivace.errors import AudioError, RequestError
from vivace.speech import FinishReason, SamplingParams, Usage
from vivace.tts import TTS

STDOUT = "-"
DEFAULT_NAME = "speech"


class Sink(Protocol):
    def write(self, samples: NDArray[np.float32]) -> None: ...


class StdoutSink:
    """Encoded audio on stdout, as it comes."""

    def __init__(self, format: str, sample_rate: int) -> None:
        self._encoder = open_encoder(format, sample_rate)

    def write(self, samples: NDArray[np.float32]) -> None:
        self._send(self._encoder.encode(samples))

    def close(self) -> None:
        self._send(self._encoder.finish())

    def _send(self, content: bytes) -> None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def say(arguments: argparse.Namespace) -> None:
    output = _choose_output(arguments)
    check_speed(arguments.speed)
    text = _read_text(arguments.text)
    with TTS.load(
        arguments.model,
        device=arguments.device,
        dtype=arguments.dtype,
        backend=arguments.backend,
        revision=arguments.revision,
        offline=arguments.offline,
    ) as tts:
        options = _options(arguments)
        if arguments.voice is not None:
            options["voice"] = tts.voice(_voice_source(arguments.voice), arguments.transcript)
        elif arguments.transcript is not None:
            raise RequestError("--transcript belongs to a reference recording: --voice me.wav")
        with _open_sink(arguments, output, tts.sample_rate) as sink:
            usage, reason = _speak(tts, text, options, sink, arguments)
    _report(arguments, output, usage, reason)


def _speak(
    tts: TTS, text: str, options: dict[str, Any], sink: Sink, arguments: argparse.Namespace
) -> tuple[Usage, FinishReason]:
    changer = SpeedChanger(arguments.speed, tts.sample_rate)
    if arguments.stream or arguments.output == STDOUT:
        stream = tts.stream(text, **options)
        with stream:
            for chunk in stream:
                sink.write(changer.process(chunk.samples))
        sink.write(changer.finish())
        assert stream.finish_reason is not None
        return stream.usage, stream.finish_reason
    audio = tts.speak(text, **options)
    sink.write(changer.process(audio.samples))
    sink.write(changer.finish())
    return audio.usage, audio.finish_reason


def _report(arguments: argparse.Namespace, output: str, usage: Usage, reason: FinishReason) -> None:
    if arguments.json:
        facts = {"output": output, "finish_reason": reason, **dataclasses.asdict(usage)}
        facts["real_time_factor"] = usage.real_time_factor
        print(json.dumps(facts), file=sys.stderr if output == STDOUT else sys.stdout)
    elif not arguments.quiet:
        print(
            f"{'stdout' if output == STDOUT else output}: first audio in "
            f"{usage.first_audio_ms or 0:.0f} ms, {usage.audio_s:.2f} s of audio in "
            f"{usage.wall_s:.2f} s ({usage.real_time_factor:.2f} times real time), "
            f"seed {usage.seed}, {reason}",
            file=sys.stderr,
        )


def _choose_output(arguments: argparse.Namespace) -> str:
    """Checked before the model loads: minutes of speech should not be lost to a typing error."""
    if arguments.output == STDOUT:
        if arguments.format not in (None, *FORMATS):
            raise AudioError(
                f"no audio format named {arguments.format!r}; try one of: {', '.join(FORMATS)}"
            )
        return STDOUT
    if arguments.output is None:
        return str(next(path for path in _free_names(arguments.format) if not path.exists()))
    path = Path(arguments.output)
    format_of(path)
    if os.path.isdir(path):  # unlike Path's, it takes a name that is too long
        raise AudioError(f"cannot write {path}: it is a folder")
    if not os.path.isdir(path.parent):
        raise AudioError(f"cannot write {path}: there is no folder {str(path.parent)!r}")
    if not os.access(path.parent, os.W_OK):
        raise AudioError(f"cannot write {path}: the folder {str(path.parent)!r} is read-only")
    if os.path.lexists(path) and not arguments.force:
        raise AudioError(f"{path} exists; choose another name, or overwrite it with --force")
    return str(path)


def _free_names(format: str | None) -> Iterator[Path]:
    suffix = FORMATS[format].extensions[0] if format in FORMATS else f".{format or 'wav'}"
    format_of(f"{DEFAULT_NAME}{suffix}")
    yield Path(f"{DEFAULT_NAME}{suffix}")
    yield from (Path(f"{DEFAULT_NAME}-{number}{suffix}") for number in range(2, 10_000))


def _open_sink(
    arguments: argparse.Namespace, output: str, sample_rate: int
) -> AbstractContextManager[Sink]:
    if output == STDOUT:
        return closing(StdoutSink(arguments.format or "wav", sample_rate))
    return open_audio_file(output, sample_rate, force=arguments.force)


def _read_text(argument: str) -> str:
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise RequestError(f"stdin is not UTF-8: {error}") from error


def _voice_source(voice: str) -> str | Path:
    """On a command line, what has a slash is a path, whatever its ending."""
    return Path(voice) if "/" in voice and "://" not in voice else voice


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    given = {name: getattr(arguments, name, None) for name in names}
    return {
        "language": arguments.language,
        "instruct": arguments.instruct,
        "text_layout": arguments.text_layout,
        "clean": arguments.clean,
        **{name: value for name, value in given.items() if value is not None},
    }
