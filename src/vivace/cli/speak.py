"""Speaks one text to its target and reports it: shared by all speaking commands."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vivace.audio.speed import SpeedChanger
from vivace.audio.subtitles import write_subtitles
from vivace.cli.clock import since_start
from vivace.cli.messages import LiveLine, Report, describe_progress, print_report
from vivace.cli.output import Samples, Sink, Target, subtitle_path
from vivace.cli.streams import STDOUT
from vivace.cli.text import read_transcript
from vivace.errors import RequestError
from vivace.options import RAMP, StreamOptions
from vivace.speech import FinishReason, Usage, Word
from vivace.verify import Verifier

if TYPE_CHECKING:
    from vivace.audio.clip import AudioChunk
    from vivace.engine.stream import Stream
    from vivace.tts import TTS
    from vivace.voices.voice import Voice


class Speech:
    """One text being spoken; its statistics are valid even if it is interrupted."""

    def __init__(self, tts: TTS, text: str | Iterator[str], options: StreamOptions) -> None:
        self._tts, self._text, self._options = tts, text, options
        self.on_chunk: Callable[[Usage], None] = lambda usage: None
        self.usage: Usage | None = None  # as of the last chunk
        self.finish_reason: FinishReason = "cancelled"
        self.first_audio_s: float | None = None  # from the start of the process
        self.audio_s = 0.0  # written so far, after the change of speed
        self._words: list[tuple[Word, ...] | None] = []  # of each chunk
        self._noted: Stream | None = None  # whose words these are
        self._speed = 1.0

    def write_to(
        self,
        sinks: Sequence[Sink],
        *,
        speed: float,
        is_streamed: bool,
        made: list[Samples] | None = None,
    ) -> None:
        """Speak into every sink; `made` collects the samples before speed and trim."""
        self._speed = speed
        changer = SpeedChanger(speed, self._tts.sample_rate)
        for samples in self._stream() if is_streamed else self._whole():
            self._send(changer.process(samples), sinks)
            if made is not None:
                made.append(samples)
        self._send(changer.finish(), sinks)

    @property
    def words(self) -> tuple[Word, ...] | None:
        """Those of what was written; None without timings."""
        from vivace.engine.timings import join_words  # imports torch

        return join_words(self._words, self._speed, self.audio_s)

    def report(self, **facts: Any) -> Report | None:
        """The report, or None if there was no audio."""
        if self.usage is None or not self.audio_s:
            return None
        return Report(
            usage=dataclasses.replace(self.usage, audio_s=self.audio_s),
            finish_reason=self.finish_reason,
            max_frames=self._options.sampling.get("max_frames"),
            **facts,
        )

    def _send(self, samples: Samples, sinks: Sequence[Sink]) -> None:
        self.audio_s += len(samples) / self._tts.sample_rate
        for sink in sinks:
            sink.write(samples)

    def _stream(self) -> Iterator[Samples]:
        """Chunks as soon as they are generated."""
        with self._tts.stream_with(self._text, self._options) as stream:
            for chunk in stream:
                self._note(stream, chunk)
                yield chunk.samples

    def _whole(self) -> Iterator[Samples]:
        """Speech as `TTS.speak` gives it, but written utterance by utterance."""
        from vivace.engine.batch import speak_parts  # imports torch
        from vivace.engine.chunks import WHOLE

        options = dataclasses.replace(self._options, trim=True)
        if options.chunk_frames is RAMP:
            options = dataclasses.replace(options, chunk_frames=WHOLE)
        open_stream = partial(self._tts.stream_with, self._text, options)
        return speak_parts(open_stream, options.sampling, self._note)

    def _note(self, stream: Stream, chunk: AudioChunk) -> None:
        if stream is not self._noted:
            self._noted, self._words = stream, []  # of a second attempt, not of the first
        self._words.append(chunk.words)
        self.usage = stream.usage
        if self.first_audio_s is None and len(chunk.samples):
            self.first_audio_s = since_start()
        self.finish_reason = stream.finish_reason or "cancelled"
        self.on_chunk(self.usage)


def speak(
    tts: TTS,
    text: str | Iterator[str],
    options: StreamOptions,
    target: Target,
    arguments: argparse.Namespace,
    made: list[Samples] | None = None,
) -> Report | None:
    """Speak the text and report it; `made` collects the samples before speed and trim.

    An interrupt is reported and re-raised, after files are finished.
    """
    line = LiveLine(is_quiet=arguments.quiet or arguments.json)
    speech = Speech(tts, text, options)
    speech.on_chunk = lambda usage: line.show(describe_progress(usage))
    is_heard_at_once = target.loudspeaker is not None or target.output == STDOUT
    subtitles = subtitle_path(arguments, target.output)
    is_verified = getattr(arguments, "verify", False)
    made = [] if is_verified and made is None else made
    try:
        with target.open(tts.sample_rate) as sinks:
            speech.write_to(
                sinks,
                speed=arguments.speed,
                is_streamed=arguments.stream or is_heard_at_once,
                made=made,
            )
    except KeyboardInterrupt:
        speech.finish_reason = "cancelled"
        line.clear()
        _report(speech, target, arguments)
        raise
    finally:
        line.clear()
    facts = _verify(text, made or [], tts.sample_rate) if is_verified else {}
    report = _report(speech, target, arguments, **facts)
    if subtitles is not None:
        write_subtitles(subtitles, speech.words, force=arguments.force)
    return report


def _verify(text: str | Iterator[str], made: Sequence[Samples], rate: int) -> dict[str, Any]:
    """Facts for the report: what a recogniser makes of the speech."""
    if not isinstance(text, str) or not made:
        return {}
    return Verifier().verify(text, np.concatenate(made), rate)._asdict()


def _report(
    speech: Speech, target: Target, arguments: argparse.Namespace, **facts: Any
) -> Report | None:
    is_first = arguments.command != "repl"  # there, the process began long before the line
    report = speech.report(
        output=target.output,
        is_played=target.loudspeaker is not None,
        first_audio_s=speech.first_audio_s if is_first else None,
        **facts,
    )
    if report is not None:
        print_report(report, is_json=arguments.json, is_quiet=arguments.quiet)
    return report


def pick_voice(tts: TTS, arguments: argparse.Namespace) -> str | Voice | None:
    """The voice of --voice, looked up or enrolled."""
    transcript = read_transcript(arguments)
    if arguments.voice is not None:
        return tts.voice(_voice_source(arguments.voice), transcript)
    if transcript is not None:
        raise RequestError("--ref-text belongs to a reference recording: --voice me.wav")
    if tts.model_type == "base":
        raise RequestError(
            "a Base model speaks with a cloned voice: give a recording with --voice me.wav, or the "
            "name of a voice you keep (vivace voice list)"
        )
    return None


def _voice_source(voice: str) -> str | Path:
    """On a command line, anything with a slash is a path."""
    return Path(voice) if "/" in voice and "://" not in voice else voice
