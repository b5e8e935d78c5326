"""Options of the speaking commands, checked before a model is loaded, and the loading itself."""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import TYPE_CHECKING

from vivace.audio.speed import check_speed
from vivace.cli.light import import_torch
from vivace.cli.messages import LiveLine
from vivace.errors import RequestError
from vivace.options import StreamOptions
from vivace.speech import BOUNDS, SamplingParams
from vivace.text.lexicon import Lexicon

if TYPE_CHECKING:
    from vivace.tts import TTS

ELSEWHERE = {"voice", "speed", "lexicon", "timings"}  # not copied from a flag of the same name
FLAGS = {field.name for field in dataclasses.fields(StreamOptions)} - ELSEWHERE


def speech_options(arguments: argparse.Namespace) -> StreamOptions:
    """Every option of `TTS.stream` that is a flag of the command, but for voice and speed."""
    check_speed(arguments.speed)
    if arguments.chunk_frames is not None and arguments.chunk_frames < 1:
        raise RequestError(f"chunk_frames must be 1 or more, not {arguments.chunk_frames}")
    given = {name: getattr(arguments, name, None) for name in FLAGS}
    options = StreamOptions(
        **{name: value for name, value in given.items() if value is not None},
        timings=getattr(arguments, "subtitles", None) is not None,
        lexicon=None if arguments.lexicon is None else Lexicon.load(arguments.lexicon),
    )
    most = int(BOUNDS["max_frames"].high)  # the model has its own maximum
    SamplingParams(max_frames=most).replace(**options.sampling)
    return options


def model_name(arguments: argparse.Namespace) -> str | None:
    """The model of --model or VIVACE_MODEL; None is the embedded voice."""
    name: str | None = arguments.model
    return os.environ.get("VIVACE_MODEL") or None if name is None else name


def load_model(
    arguments: argparse.Namespace, model: str | None = None, *, max_streams: int | None = 1
) -> TTS:
    """Load `model`, or else the command's own; most commands need one stream only.

    Torch takes seconds to import and is imported here, after all checks that need no model.
    """
    name = model or model_name(arguments)
    if name is None and arguments.device in ("auto", "cpu"):
        import_torch()
    from vivace.tts import TTS

    line = LiveLine(is_quiet=getattr(arguments, "quiet", False))
    line.show(f"loading {name or 'the embedded voice'}")
    try:
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
        )
    finally:
        line.clear()
