"""`vivace clone`: speak with the voice of a recording, and keep it if asked to."""

from __future__ import annotations

import argparse

from vivace.audio.speed import check_speed
from vivace.cli.keep import check_save, keep_voice
from vivace.cli.output import choose_target
from vivace.cli.text import read_text, read_transcript


def clone(arguments: argparse.Namespace) -> None:
    check_speed(arguments.speed)
    name = check_save(arguments)
    transcript = read_transcript(arguments)
    is_spoken = arguments.text is not None or arguments.save is None
    target = choose_target(arguments) if is_spoken else None
    text = read_text(arguments, live=arguments.stream) if is_spoken else ""
    from vivace.cli.model import load_tts  # torch takes its time: errors above come first
    from vivace.cli.speak import speak, speech_options

    with load_tts(arguments) as tts:
        voice = tts.clone(
            arguments.ref_audio,
            transcript,
            name=name,
            licence=arguments.licence,
            append_silence=arguments.append_silence,
        )
        if arguments.save is not None:
            keep_voice(voice, arguments)
        if target is not None:
            speak(tts, text, speech_options(arguments) | {"voice": voice}, target, arguments)
