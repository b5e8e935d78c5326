"""Options of the speaking commands, checked before a model is loaded, and the loading itself."""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from vivace.audio.speed import check_speed
from vivace.cli.light import import_torch
from vivace.cli.messages import LiveLine
from vivace.errors import RequestError
from vivace.speech import BOUNDS, SamplingParams
from vivace.text.lexicon import Lexicon

if TYPE_CHECKING:
    from vivace.tts import TTS

SAMPLING = tuple(field.name for field in dataclasses.fields(SamplingParams))


def speech_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The command line's options as keywords of `TTS.stream`."""
    check_speed(arguments.speed)
    sampling = _given(arguments, SAMPLING)
    most = int(BOUNDS["max_frames"].high)  # the model has its own maximum
    SamplingParams(max_frames=most).replace(**sampling)
    if arguments.chunk_frames is not None and arguments.chunk_frames < 1:
        raise RequestError(f"chunk_frames must be 1 or more, not {arguments.chunk_frames}")
    return {
        "language": arguments.language,
        "instruct": arguments.instruct,
        "text_layout": arguments.text_layout,
        "live": arguments.live,
        "clean": arguments.clean,
        "keep_emoji": arguments.keep_emoji,
        "normalize": arguments.normalize,
        "on_unsupported": arguments.on_unsupported,
        "timings": getattr(arguments, "subtitles", None) is not None,
        "lexicon": None if arguments.lexicon is None else Lexicon.load(arguments.lexicon),
        **_given(arguments, ("chunk_frames",)),
        **sampling,
    }


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


def _given(arguments: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}
