"""`vivace design`: speak with a voice that is described, and keep it if asked to."""

from __future__ import annotations

import argparse

import numpy as np

from vivace.cli.output import Samples, choose_target
from vivace.cli.request import load_model, speech_options
from vivace.cli.speak import speak
from vivace.cli.text import read_text
from vivace.cli.voice import check_save, keep_voice
from vivace.errors import RequestError, UnsupportedRequestError
from vivace.options import SpeechOptions
from vivace.text.lexicon import Lexicon
from vivace.text.markup import parse_pauses, remove_markup
from vivace.text.respell import respell


def design(arguments: argparse.Namespace) -> int:
    _settle_words(arguments)
    options = speech_options(arguments)
    name = check_save(arguments)
    if arguments.save is not None and arguments.base_model is None:
        arguments.fail("--save needs --base-model, a Base model that makes a voice of the speech")
    text = read_text(arguments, options, live=arguments.stream and arguments.save is None)
    made: list[Samples] | None = None if arguments.save is None else []
    with choose_target(arguments) as target, load_model(arguments) as tts:
        if tts.model_type != "voice_design":
            raise UnsupportedRequestError(
                f"a {tts.model_type} checkpoint cannot speak with a voice from its "
                "description; load Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign"
            )
        report = speak(tts, text, options, target, arguments, made)
        sample_rate = tts.sample_rate
    if made is None:
        return report.exit_code if report else 0
    finish_reason = report.finish_reason if report else "silence"
    if finish_reason != "stop":
        raise RequestError(
            f"the voice is not kept: the speech did not come to its own end ({finish_reason}), "
            "so its words are not those of the text; try another --seed"
        )
    assert isinstance(text, str)
    with load_model(arguments, arguments.base_model) as base:
        voice = base.clone(
            (np.concatenate(made), sample_rate),
            _words_of(text, options),
            name=name,
            licence=arguments.licence,
            append_silence=arguments.append_silence,
        )
    keep_voice(voice, arguments)
    return 0


def _settle_words(arguments: argparse.Namespace) -> None:
    """With --instruct, the only text is what to say."""
    if arguments.instruct is None:
        if arguments.description is None:
            arguments.fail("there is no DESCRIPTION of the voice")
        arguments.instruct = arguments.description
    elif arguments.text is not None:
        arguments.fail("the voice is described twice, by DESCRIPTION and by --instruct")
    else:
        arguments.text = arguments.description


def _words_of(text: str, options: SpeechOptions) -> str:
    """The words that were spoken: respelled, without cleaned markdown, emoji and marks."""
    tries = Lexicon.of(options.lexicon).tries(options.language) if options.lexicon else ()
    text = remove_markup(text) if options.clean else text
    parts = parse_pauses(options.remove_emoji(text))
    return " ".join(respell(part.strip(), tries) for part in parts if isinstance(part, str))
