"""`vivace clone`: speaks with the voice of a recording, and saves the voice on request."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import replace

from vivace.audio.files import check_path
from vivace.cli.output import choose_target
from vivace.cli.request import load_model, speech_options
from vivace.cli.speak import speak
from vivace.cli.text import read_text, read_transcript
from vivace.cli.voice import check_save, save_voice


def clone(arguments: argparse.Namespace) -> int:
    options = speech_options(arguments)
    name = check_save(arguments)
    transcript = read_transcript(arguments)
    is_spoken = arguments.text is not None or arguments.save is None
    text = read_text(arguments, options, live=arguments.stream) if is_spoken else ""
    check_path(arguments.ref_audio)
    context = choose_target(arguments) if is_spoken else nullcontext()
    with context as target, load_model(arguments) as tts:
        voice = tts.clone(
            arguments.ref_audio,
            transcript,
            name=name,
            licence=arguments.licence,
            append_silence=arguments.append_silence,
        )
        if arguments.save is not None:
            save_voice(voice, arguments)
        if target is None:
            return 0
        report = speak(tts, text, replace(options, voice=voice), target, arguments)
    return report.exit_code if report else 0
