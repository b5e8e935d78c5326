"""`vivace say`: one text, spoken with a voice of the model or of the user."""

from __future__ import annotations

import argparse

from vivace.audio.speed import check_speed
from vivace.cli.output import choose_target
from vivace.cli.text import read_text


def say(arguments: argparse.Namespace) -> None:
    check_speed(arguments.speed)
    target = choose_target(arguments)
    text = read_text(arguments, live=arguments.stream)
    from vivace.cli.model import load_tts  # torch takes its time: errors above come first
    from vivace.cli.speak import find_voice, speak, speech_options

    with load_tts(arguments) as tts:
        options = speech_options(arguments) | {"voice": find_voice(tts, arguments)}
        speak(tts, text, options, target, arguments)
