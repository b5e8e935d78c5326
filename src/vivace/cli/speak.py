"""Speaks one text to its target and reports the result; shared by all speaking commands."""

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
from vivace.audio.wav import Samples
from vivace.cli import since_start
from vivace.cli.messages import Report, describe_progress, print_kept, print_report
from vivace.cli.output import AudioSink, Target, has_written_file, subtitle_path
from vivace.cli.progress import ProgressLine
from vivace.cli.text import read_transcript
from vivace.errors import RequestError, TTSError
from vivace.options import RAMP, StreamOptions
from vivace.recogniser import Verifier
from vivace.speech import FinishReason, Usage, Word, join_words, move_words

if TYPE_CHECKING:
    from vivace.audio.clip import AudioChunk
    from vivace.engine.streams.stream import Stream
    from vivace.tts import TTS
    from vivace.voices.voice import Voice


class Speech:
    """Speaks one text. Its statistics are valid even after an interrupt.

    The speed is changed and the watermark added here, after the model, so that samples without both
    can be collected.
    """

    def __init__(self, tts: TTS, text: str | Iterator[str], options: StreamOptions) -> None:
        self._tts, self._text, self._speed = tts, text, options.speed
        self._marking = tts.synthesizer.find_marking(options.mark)
        mark = self._marking.without_watermark()
        self._options = dataclasses.replace(options, speed=1.0, mark=mark)
        self.on_chunk: Callable[[Usage], None] = lambda usage: None
        self.usage: Usage | None = None  # after the last chunk
        self.finish_reason: FinishReason = "cancelled"
        self.first_audio_s: float | None = None  # from the start of the process
        self.audio_s = 0.0  # written so far, after the change of speed
        self._words: list[tuple[Word, ...] | None] = []  # of each chunk
        self._stream_of_words: Stream | None = None

    def write_to(
        self, sinks: Sequence[AudioSink], *, is_streamed: bool, made: list[Samples] | None = None
    ) -> None:
        """Speak into every sink. `made` collects the unmarked samples at normal speed."""
        from vivace.engine.streams.assemble import Effects  # imports torch

        rate = self._tts.sample_rate
        effects = Effects(SpeedChanger(self._speed, rate), self._marking.open_stream(rate))
        for samples in self._stream() if is_streamed else self._whole():
            self._send(effects.process(samples), sinks)
            if made is not None:
                made.append(samples)
        self._send(effects.finish(), sinks)

    @property
    def words(self) -> tuple[Word, ...] | None:
        """The timed words of the written audio; None without timings."""
        return move_words(join_words(self._words), 0.0, self.audio_s, self._speed)

    def report(self, **facts: Any) -> Report | None:
        """The report, or None without audio."""
        if self.usage is None or not self.audio_s:
            return None
        return Report(
            usage=dataclasses.replace(self.usage, audio_s=self.audio_s),
            finish_reason=self.finish_reason,
            max_frames=self._options.sampling.get("max_frames"),
            **facts,
        )

    def _send(self, samples: Samples, sinks: Sequence[AudioSink]) -> None:
        self.audio_s += len(samples) / self._tts.sample_rate
        for sink in sinks:
            sink.write(samples)

    def _stream(self) -> Iterator[Samples]:
        """Chunks as soon as they are generated."""
        with self._tts.synthesizer.stream(self._text, self._options) as stream:
            for chunk in stream:
                self._record(stream, chunk)
                yield chunk.samples

    def _whole(self) -> Iterator[Samples]:
        """The speech of `TTS.speak`, utterance by utterance."""
        from vivace.engine.streams.batch import speak_parts  # imports torch
        from vivace.engine.streams.chunks import WHOLE

        options = dataclasses.replace(self._options, trim=True)
        if options.chunk_frames is RAMP:
            options = dataclasses.replace(options, chunk_frames=WHOLE)
        open_stream = partial(self._tts.synthesizer.stream, self._text, options)
        return speak_parts(open_stream, options.sampling, self._record)

    def _record(self, stream: Stream, chunk: AudioChunk) -> None:
        if stream is not self._stream_of_words:  # a retry replaces the words of the first attempt
            self._stream_of_words, self._words = stream, []
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
    """Speak the text and print the report. `made` collects the samples at normal speed.

    An interrupt or an error is raised again after files are finished and the report is printed.
    """
    speech = Speech(tts, text, options)
    subtitles = subtitle_path(arguments, target.output)
    is_verified = getattr(arguments, "verify", False)
    made = [] if is_verified and made is None else made
    sinks: list[AudioSink] = []
    with ProgressLine(is_quiet=arguments.quiet or arguments.json) as line:
        speech.on_chunk = lambda usage: line.show(describe_progress(usage))
        try:
            mark = tts.synthesizer.file_mark(options)
            with target.open(tts.sample_rate, mark) as sinks:
                is_streamed = arguments.stream or target.is_immediate
                speech.write_to(sinks, is_streamed=is_streamed, made=made)
        except (KeyboardInterrupt, TTSError) as error:
            speech.finish_reason = "cancelled"
            line.clear()
            if isinstance(error, KeyboardInterrupt):
                _report(speech, target, arguments)
            elif has_written_file(sinks):
                _report(speech, target, arguments, show=print_kept)
            raise
    facts = {}
    if is_verified and made and isinstance(text, str):
        facts = Verifier().verify(text, np.concatenate(made), tts.sample_rate)._asdict()
    report = _report(speech, target, arguments, **facts)
    if subtitles is not None:
        write_subtitles(subtitles, speech.words, force=arguments.force)
    return report


def _report(
    speech: Speech,
    target: Target,
    arguments: argparse.Namespace,
    show: Callable[..., None] = print_report,
    **facts: Any,
) -> Report | None:
    is_single = arguments.command != "repl"  # in a repl, the process started long before
    report = speech.report(
        output=target.output,
        is_played=target.loudspeaker is not None,
        first_audio_s=speech.first_audio_s if is_single else None,
        **facts,
    )
    if report is not None:
        show(report, is_json=arguments.json, is_quiet=arguments.quiet)
    return report


def pick_voice(tts: TTS, arguments: argparse.Namespace) -> str | Voice | None:
    """The voice of --voice: looked up, or cloned from a recording."""
    transcript = read_transcript(arguments)
    if arguments.voice is not None:
        is_path = "/" in arguments.voice and "://" not in arguments.voice
        return tts.voice(Path(arguments.voice) if is_path else arguments.voice, transcript)
    if transcript is not None:
        raise RequestError("--ref-text needs a recording: --voice me.wav")
    if tts.model_type == "base":
        raise RequestError(
            "a Base model needs a voice: add --voice me.wav with a recording, or --voice NAME with "
            "a saved voice (see `vivace voice list`)"
        )
    return None
