"""`vivace say --dialogue FILE`: speaks a script with several speakers, optionally as tracks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vivace.audio.subtitles import write_subtitles
from vivace.cli.messages import Report, print_kept, print_report
from vivace.cli.output import (
    AudioSink,
    Target,
    check_free,
    choose_target,
    has_written_file,
    subtitle_path,
)
from vivace.cli.request import load_model
from vivace.cli.streams import STDIN
from vivace.cli.text import read_stdin
from vivace.dialogue.script import DialogueScript
from vivace.dialogue.talk import LineSpacing, track_paths
from vivace.errors import AudioError, TTSError
from vivace.options import DialogueOptions, DialogueStreamOptions, StreamOptions
from vivace.speech import FinishReason, Usage, Word

if TYPE_CHECKING:
    from vivace.tts import TTS

SpokenDialogue = tuple[Usage, FinishReason, Sequence[Word] | None]


def say_dialogue(arguments: argparse.Namespace, options: StreamOptions) -> int:
    if arguments.text is not None or arguments.batch or arguments.voice:
        arguments.fail("--dialogue FILE cannot be used with TEXT, --batch or --voice")
    if arguments.stream and arguments.tracks:
        arguments.fail("--tracks cannot be used with --stream")
    own: dict[str, Any] = {"gap_s": arguments.gap, "overlap_s": arguments.overlap or 0.0}
    LineSpacing(**own)  # raises before the model loads
    script = _read(arguments.dialogue)
    with choose_target(arguments) as target:
        _check_tracks(script, target, arguments)
        subtitles = subtitle_path(arguments, target.output)
        is_streamed = (arguments.stream or target.is_immediate) and not arguments.tracks
        with load_model(arguments, max_streams=None) as tts:
            if is_streamed:
                streamed = options.to(DialogueStreamOptions, trim=True, **own)
                usage, reason, words = _stream(tts, script, streamed, target, arguments)
            else:
                whole = options.to(DialogueOptions, trim=True, **own)
                usage, reason, words = _speak_whole(tts, script, whole, target, arguments)
    if subtitles is not None:
        write_subtitles(subtitles, words, force=arguments.force)
    return _report(usage, reason, target, arguments).exit_code


def _report(
    usage: Usage,
    reason: FinishReason,
    target: Target,
    arguments: argparse.Namespace,
    show: Callable[..., None] = print_report,
) -> Report:
    report = Report(
        output=target.output,
        is_played=target.loudspeaker is not None,
        usage=usage,
        finish_reason=reason,
        max_frames=arguments.max_frames,
    )
    show(report, is_json=arguments.json, is_quiet=arguments.quiet)
    return report


def _speak_whole(
    tts: TTS,
    script: DialogueScript,
    options: DialogueOptions,
    target: Target,
    arguments: argparse.Namespace,
) -> SpokenDialogue:
    from vivace.engine.dialogues import speak_dialogue  # imports torch

    made = speak_dialogue(tts.synthesizer, script, options)
    with target.open(made.sample_rate, made.mark) as sinks:
        for sink in sinks:
            sink.write(made.samples)
    if arguments.tracks:
        made.save_tracks(str(target.output), overwrite=arguments.force)
    return made.usage, made.finish_reason, made.words


def _stream(
    tts: TTS,
    script: DialogueScript,
    options: DialogueStreamOptions,
    target: Target,
    arguments: argparse.Namespace,
) -> SpokenDialogue:
    """Write and play the dialogue while it is generated."""
    from vivace.engine.dialogues import stream_dialogue  # imports torch

    words: list[Word] | None = []
    stream = stream_dialogue(tts.synthesizer, script, options)
    sinks: list[AudioSink] = []
    try:
        with stream, target.open(tts.sample_rate, stream.mark) as sinks:
            for chunk in stream:
                words = None if words is None or chunk.words is None else [*words, *chunk.words]
                for sink in sinks:
                    sink.write(chunk.samples)
    except (KeyboardInterrupt, TTSError):
        if has_written_file(sinks):
            _report(stream.usage, "cancelled", target, arguments, print_kept)
        raise
    return stream.usage, stream.finish_reason or "cancelled", words


def _read(name: str) -> DialogueScript:
    if name == STDIN:
        return DialogueScript.parse(read_stdin().encode(), "stdin")
    return DialogueScript.load(name)


def _check_tracks(script: DialogueScript, target: Target, arguments: argparse.Namespace) -> None:
    """Raise AudioError if the tracks cannot be written."""
    if not arguments.tracks:
        return
    if target.output is None or target.is_pipe:
        raise AudioError("--tracks needs -o FILE")
    names = {str(line.speaker).casefold(): str(line.speaker) for line in reversed(script.lines)}
    for path in track_paths(target.output, names.values()):
        check_free(path, arguments)
