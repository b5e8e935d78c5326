"""`vivace design`: speaks with a described voice, and saves the voice on request."""

from __future__ import annotations

import argparse

import numpy as np

from vivace.audio.wav import Samples
from vivace.cli.output import choose_target
from vivace.cli.request import load_model, speech_options
from vivace.cli.speak import speak
from vivace.cli.text import read_text
from vivace.cli.voice import check_save, save_voice
from vivace.errors import RequestError, UnsupportedRequestError
from vivace.options import SpeechOptions
from vivace.text.lexicon import Lexicon
from vivace.text.markup import remove_markup
from vivace.text.pauses import parse_pauses
from vivace.text.respell import respell


def design(arguments: argparse.Namespace) -> int:
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
                f"a {tts.model_type} checkpoint cannot design voices; use --model "
                "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign"
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
        voice = base.clone(
            (np.concatenate(made), sample_rate),
            _spoken_words(text, options),
            name=name,
            licence=arguments.licence,
            append_silence=arguments.append_silence,
        )
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
    text = remove_markup(text) if options.clean else text
    parts = parse_pauses(options.remove_emoji(text))
    return " ".join(respell(part.strip(), tries) for part in parts if isinstance(part, str))
