"""Builds the speech options of a command before a model is loaded, and loads the model."""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING

from vivace.audio.speed import check_speed
from vivace.cli.light import light_imports
from vivace.cli.progress import ProgressLine
from vivace.errors import RequestError
from vivace.options import StreamOptions
from vivace.speech import BOUNDS, SamplingParams
from vivace.text.lexicon import Lexicon

if TYPE_CHECKING:
    from vivace.tts import TTS

OTHER_MEANING = {"voice", "lexicon", "timings"}  # flags whose value is not the option itself


def speech_options(arguments: argparse.Namespace) -> StreamOptions:
    """The speech options of the command line, except the voice. RequestError if one is invalid."""
    names = StreamOptions.__dataclass_fields__.keys() - OTHER_MEANING
    given = {name: getattr(arguments, name, None) for name in names}
    options = StreamOptions(
        **{name: value for name, value in given.items() if value is not None},
        timings=getattr(arguments, "subtitles", None) is not None,
        lexicon=None if arguments.lexicon is None else Lexicon.load(arguments.lexicon),
    )
    check_speed(options.speed)
    if arguments.chunk_frames is not None and arguments.chunk_frames < 1:
        raise RequestError(f"chunk_frames must be 1 or more, not {arguments.chunk_frames}")
    most = int(BOUNDS["max_frames"].high)  # the limit of the model is not known yet
    SamplingParams(max_frames=most).replace(**options.sampling)
    return options


def model_name(arguments: argparse.Namespace) -> str | None:
    """The model of --model or VIVACE_MODEL. None is the embedded voice."""
    name: str | None = arguments.model
    return os.environ.get("VIVACE_MODEL") or None if name is None else name


def load_model(
    arguments: argparse.Namespace, model: str | None = None, *, max_streams: int | None = 1
) -> TTS:
    """Load `model`, by default the model of the command line.

    Torch takes seconds to import. If the model needs it, it is imported here, after all checks that
    need no model.
    """
    name = model or model_name(arguments)
    is_light = name is None and arguments.device in ("auto", "cpu")
    progress = ProgressLine(is_quiet=getattr(arguments, "quiet", False))
    with light_imports() if is_light else nullcontext(), progress as line:
        line.show(f"loading {name or 'the embedded voice'}")
        from vivace.tts import TTS

        return TTS.load(
            name,
            device=arguments.device,
            dtype=arguments.dtype,
            weights=arguments.weights,
            backend=arguments.backend,
            threads=arguments.threads,
            max_streams=max_streams,
            revision=None if model else arguments.revision,
            offline=arguments.offline,
            adapter=None if model else getattr(arguments, "adapter", None),
        )
