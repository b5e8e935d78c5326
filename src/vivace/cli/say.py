"""`vivace say`, `clone` and `design`: speak with a known, a cloned or a described voice."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from vivace.audio.files import check_path
from vivace.audio.wav import Samples
from vivace.cli.batch import read_batch
from vivace.cli.dialogue import say_dialogue
from vivace.cli.output import choose_target
from vivace.cli.request import load_model, speech_options
from vivace.cli.speak import pick_voice, speak
from vivace.cli.text import read_text, read_transcript
from vivace.cli.voice import check_save, enrolment_options, save_voice
from vivace.errors import RequestError, UnsupportedRequestError
from vivace.options import SpeechOptions, StreamOptions
from vivace.recogniser import check_recogniser
from vivace.script.checks import SERVED_BY
from vivace.text.lexicon import Lexicon
from vivace.text.markup import remove_markup
from vivace.text.pauses import parse_pauses
from vivace.text.respell import respell
from vivace.text.tex import read_formulas


def say(arguments: argparse.Namespace) -> int:
    """Speak one text, a batch of lines, or a dialogue."""
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


def clone(arguments: argparse.Namespace) -> int:
    """Speak with the voice of a recording, and save the voice on request."""
    options, name = speech_options(arguments), check_save(arguments)
    transcript = read_transcript(arguments)
    is_spoken = arguments.text is not None or arguments.save is None
    text = read_text(arguments, options, live=arguments.stream) if is_spoken else ""
    check_path(arguments.ref_audio)
    context = choose_target(arguments) if is_spoken else nullcontext()
    with context as target, load_model(arguments) as tts:
        recording = arguments.ref_audio
        voice = tts.clone(recording, transcript, name=name, **enrolment_options(arguments))
        if arguments.save is not None:
            save_voice(voice, arguments)
        if target is None:
            return 0
        report = speak(tts, text, replace(options, voice=voice), target, arguments)
    return report.exit_code if report else 0


def design(arguments: argparse.Namespace) -> int:
    """Speak with a described voice, and save the voice on request."""
    _resolve_description(arguments)
    options = speech_options(arguments)
    name = check_save(arguments)
    if arguments.save is not None and arguments.base_model is None:
        arguments.fail("--save needs --base-model, a Base model that clones the designed voice")
    text = read_text(arguments, options, live=arguments.stream and arguments.save is None)
    made: list[Samples] | None = None if arguments.save is None else []
    with choose_target(arguments) as target, load_model(arguments) as tts:
        if tts.model_type != "voice_design":
            raise UnsupportedRequestError(
                f"a {tts.model_type} checkpoint cannot design voices; "
                f"load {SERVED_BY['voice_design']}"
            )
        report = speak(tts, text, options, target, arguments, made)
        sample_rate = tts.sample_rate
    if made is None:
        return report.exit_code if report else 0
    finish_reason = report.finish_reason if report else "silence"
    if finish_reason != "stop":
        raise RequestError(
            f"the voice is not saved: the speech is incomplete ({finish_reason}); "
            "try another --seed"
        )
    assert isinstance(text, str)
    with load_model(arguments, arguments.base_model) as base:
        audio = (np.concatenate(made), sample_rate)
        has_context = base.checkpoint.codec_config.has_encoder
        words = _spoken_words(text, options) if has_context else None
        voice = base.clone(audio, words, name=name, **enrolment_options(arguments))
    save_voice(voice, arguments)
    return 0


def _resolve_description(arguments: argparse.Namespace) -> None:
    """Set --instruct to the description. With --instruct, the only positional is the text."""
    if arguments.instruct is None:
        if arguments.description is None:
            arguments.fail("DESCRIPTION is missing; describe the voice")
        arguments.instruct = arguments.description
    elif arguments.text is not None:
        arguments.fail("DESCRIPTION and --instruct both describe the voice; omit one of them")
    else:
        arguments.text = arguments.description


def _spoken_words(text: str, options: SpeechOptions) -> str:
    """The words that were spoken: respelled, without removed markup, emoji and pauses."""
    tries = Lexicon.of(options.lexicon).tries(options.language) if options.lexicon else ()
    text = remove_markup(read_formulas(text)) if options.clean else text
    parts = parse_pauses(options.remove_emoji(text))
    return " ".join(respell(part.strip(), tries) for part in parts if isinstance(part, str))
