"""`vivace say`: speaks one text, a batch of lines, or a dialogue."""

from __future__ import annotations

import argparse
from dataclasses import replace

from vivace.cli.batch import read_batch
from vivace.cli.dialogue import say_dialogue
from vivace.cli.output import choose_target
from vivace.cli.request import load_model, speech_options
from vivace.cli.speak import pick_voice, speak
from vivace.cli.text import read_text
from vivace.options import StreamOptions
from vivace.verify import check_recogniser


def say(arguments: argparse.Namespace) -> int:
    options = speech_options(arguments)
    if arguments.verify and (arguments.dialogue is not None or arguments.batch is not None):
        arguments.fail("--verify cannot be used with --batch or --dialogue")
    if arguments.dialogue is not None:
        return say_dialogue(arguments, options)
    if (arguments.gap, arguments.overlap, arguments.tracks) != (None, None, False):
        arguments.fail("--gap, --overlap and --tracks need --dialogue FILE")
    if arguments.batch is not None:
        return _say_batch(arguments, options)
    if arguments.verify:
        check_recogniser()
        if arguments.stream:
            arguments.fail("--verify cannot be used with --stream")
    text = read_text(arguments, options, live=arguments.stream)
    with choose_target(arguments) as target, load_model(arguments) as tts:
        options = replace(options, voice=pick_voice(tts, arguments))
        report = speak(tts, text, options, target, arguments)
    return report.exit_code if report else 0


def _say_batch(arguments: argparse.Namespace, options: StreamOptions) -> int:
    batch = read_batch(arguments)
    lines = list(batch.missing(arguments))
    if not lines:
        return 0
    with load_model(arguments, max_streams=None) as tts:
        options = replace(options, voice=pick_voice(tts, arguments))
        return batch.speak(tts, lines, options, arguments)
