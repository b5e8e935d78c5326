"""One text, spoken to where it should go and reported: what every speaking command shares."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vivace.audio.speed import SpeedChanger
from vivace.cli.output import STDOUT, Samples, Sink, Target
from vivace.cli.text import read_transcript
from vivace.cli.words import LiveLine, Report, describe_progress, print_report
from vivace.engine.attempts import attempts
from vivace.engine.session import WHOLE
from vivace.engine.stream import Stream
from vivace.errors import RequestError
from vivace.speech import FinishReason, SamplingParams, Usage
from vivace.tts import TTS
from vivace.voices.voice import Voice


class Mouth:
    """Samples on their way out: changed in speed, counted, handed to every sink."""

    def __init__(self, speed: float, sample_rate: int) -> None:
        self.sinks: Sequence[Sink] = ()
        self._changer = SpeedChanger(speed, sample_rate)
        self._sample_rate = sample_rate
        self._num_samples = 0

    @property
    def audio_s(self) -> float:
        return self._num_samples / self._sample_rate

    def write(self, samples: Samples) -> None:
        self._send(self._changer.process(samples))

    def finish(self) -> None:
        self._send(self._changer.finish())

    def _send(self, samples: Samples) -> None:
        self._num_samples += len(samples)
        for sink in self.sinks:
            sink.write(samples)


class Take:
    """One text being spoken; what is known of it is known even if it breaks off."""

    def __init__(
        self, tts: TTS, text: str | Iterator[str], options: dict[str, Any], line: LiveLine
    ) -> None:
        self._tts, self._text, self._options, self._line = tts, text, options, line
        self.usage: Usage | None = None  # as of the last chunk
        self.finish_reason: FinishReason = "cancelled"

    def stream(self) -> Iterator[Samples]:
        """Speech as soon as it is made."""
        with self._tts.stream(self._text, **self._options) as stream:
            yield from self._listen(stream)

    def whole(self) -> Iterator[Samples]:
        """Speech as `TTS.speak` gives it, trimmed, and made anew if it does not end by itself.

        Unlike there, an interrupt gives what there is.
        """
        options = {"trim": True, "chunk_frames": WHOLE, **self._options}
        for stream in attempts(partial(self._tts.stream, self._text, **options), self._options):
            heard = [np.zeros(0, np.float32)]
            with stream:
                try:
                    for samples in self._listen(stream):
                        heard.append(samples)
                except KeyboardInterrupt:
                    yield np.concatenate(heard)
                    raise
        whole = np.concatenate(heard)
        yield whole[: len(whole) - stream.num_stalled_samples]

    def _listen(self, stream: Stream) -> Iterator[Samples]:
        for chunk in stream:
            self.usage = stream.usage
            self._line.show(describe_progress(self.usage))
            yield chunk.samples
        assert stream.finish_reason is not None
        self.finish_reason = stream.finish_reason


def speak(
    tts: TTS,
    text: str | Iterator[str],
    options: dict[str, Any],
    target: Target,
    arguments: argparse.Namespace,
    kept: list[Samples] | None = None,
) -> FinishReason:
    """Say the text and report it; `kept` takes the samples as the model gave them.

    An interrupt is reported too and goes on to the caller; files are finished by then.
    """
    line = LiveLine(is_quiet=arguments.quiet or arguments.json)
    take, mouth = Take(tts, text, options, line), Mouth(arguments.speed, tts.sample_rate)
    is_heard_at_once = target.loudspeaker is not None or target.output == STDOUT
    spoken = take.stream() if arguments.stream or is_heard_at_once else take.whole()
    try:
        with target.open(tts.sample_rate) as mouth.sinks:
            for samples in spoken:
                mouth.write(samples)
                if kept is not None:
                    kept.append(samples)
            mouth.finish()
    except KeyboardInterrupt:
        take.finish_reason = "cancelled"
        line.clear()
        _report(take, mouth, target, arguments)
        raise
    finally:
        line.clear()
    _report(take, mouth, target, arguments)
    return take.finish_reason


def _report(take: Take, mouth: Mouth, target: Target, arguments: argparse.Namespace) -> None:
    if take.usage is None or not mouth.audio_s:
        return
    report = Report(
        output=target.output,
        is_played=target.loudspeaker is not None,
        usage=dataclasses.replace(take.usage, audio_s=mouth.audio_s),
        finish_reason=take.finish_reason,
    )
    print_report(report, is_json=arguments.json, is_quiet=arguments.quiet)


def speech_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the command line says of the speech itself, as `TTS.stream` takes it."""
    names = ["chunk_frames", *(field.name for field in dataclasses.fields(SamplingParams))]
    given = {name: getattr(arguments, name) for name in names}
    return {
        "language": arguments.language,
        "instruct": arguments.instruct,
        "text_layout": arguments.text_layout,
        "clean": arguments.clean,
        "keep_emoji": arguments.keep_emoji,
        "normalize": arguments.normalize,
        **{name: value for name, value in given.items() if value is not None},
    }


def find_voice(tts: TTS, arguments: argparse.Namespace) -> str | Voice | None:
    """The voice of --voice, looked up or enrolled."""
    transcript = read_transcript(arguments)
    if arguments.voice is not None:
        return tts.voice(_voice_source(arguments.voice), transcript)
    if transcript is not None:
        raise RequestError("--ref-text belongs to a reference recording: --voice me.wav")
    return None


def _voice_source(voice: str) -> str | Path:
    """On a command line, what has a slash is a path, whatever its ending."""
    return Path(voice) if "/" in voice and "://" not in voice else voice
