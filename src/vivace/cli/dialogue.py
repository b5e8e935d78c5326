"""`vivace say --dialogue FILE`: a script of several speakers, to one target or a track each."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from vivace.audio.subtitles import write_subtitles
from vivace.cli.messages import Report, print_report
from vivace.cli.output import Target, choose_target, subtitle_path
from vivace.cli.request import load_model
from vivace.cli.text import STDIN, read_stdin
from vivace.dialogue.script import DialogueScript
from vivace.dialogue.talk import Timing, track_paths
from vivace.errors import AudioError

if TYPE_CHECKING:
    from vivace.dialogue.talk import Dialogue


def say_dialogue(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    if arguments.text is not None or arguments.batch or arguments.voice or arguments.stream:
        arguments.fail("--dialogue FILE takes no TEXT, --batch, --voice and --stream")
    options.pop("chunk_frames", None)
    timing = Timing(gap_s=arguments.gap, overlap_s=arguments.overlap or 0.0)
    script = _read(arguments.dialogue)
    with choose_target(arguments) as target:
        _check_tracks(script, target, arguments)
        subtitles = subtitle_path(arguments, target.output)
        with load_model(arguments, max_streams=None) as tts:
            made = tts.dialogue(
                script,
                gap_s=timing.gap_s,
                overlap_s=timing.overlap_s,
                speed=arguments.speed,
                **options,
            )
        with target.open(made.sample_rate) as sinks:
            for sink in sinks:
                sink.write(made.samples)
    if subtitles is not None:
        write_subtitles(subtitles, made.words, force=arguments.force)
    if arguments.tracks:
        made.save_tracks(str(target.output), force=arguments.force)
    return _report(made, target, arguments)


def _read(name: str) -> DialogueScript:
    if name == STDIN:
        return DialogueScript.parse(read_stdin().encode(), "stdin")
    return DialogueScript.load(name)


def _check_tracks(script: DialogueScript, target: Target, arguments: argparse.Namespace) -> None:
    """Refuse what could not be written, before anything is spoken."""
    if not arguments.tracks:
        return
    if target.output is None or target.is_pipe:
        raise AudioError("--tracks writes files beside that of -o; name one")
    names = {str(line.speaker).casefold(): str(line.speaker) for line in reversed(script.lines)}
    for path in track_paths(target.output, names.values()):
        if os.path.lexists(path) and not arguments.force:
            raise AudioError(f"{path} exists; choose another name, or overwrite it with --force")


def _report(made: Dialogue, target: Target, arguments: argparse.Namespace) -> int:
    report = Report(
        output=target.output,
        is_played=target.loudspeaker is not None,
        usage=made.usage,
        finish_reason=made.finish_reason,
        max_frames=arguments.max_frames,
    )
    print_report(report, is_json=arguments.json, is_quiet=arguments.quiet)
    return report.exit_code
