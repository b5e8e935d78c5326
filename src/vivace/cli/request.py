"""Options of the speaking commands, checked as far as possible without a model."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from typing import Any

from vivace.audio.speed import check_speed
from vivace.cli.light import import_torch
from vivace.errors import RequestError
from vivace.speech import SamplingParams

SAMPLING = tuple(field.name for field in dataclasses.fields(SamplingParams))


def speech_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The command line's options as keywords of `TTS.stream`."""
    check_speed(arguments.speed)
    sampling = _given(arguments, SAMPLING)
    SamplingParams(max_frames=sys.maxsize).replace(**sampling)  # the model has its own maximum
    if arguments.chunk_frames is not None and arguments.chunk_frames < 1:
        raise RequestError(f"chunk_frames must be 1 or more, not {arguments.chunk_frames}")
    return {
        "language": arguments.language,
        "instruct": arguments.instruct,
        "text_layout": arguments.text_layout,
        "clean": arguments.clean,
        "keep_emoji": arguments.keep_emoji,
        "normalize": arguments.normalize,
        **_given(arguments, ("chunk_frames",)),
        **sampling,
    }


def model_name(arguments: argparse.Namespace) -> str | None:
    """The model of --model or VIVACE_MODEL; None is the embedded voice."""
    name: str | None = arguments.model
    return os.environ.get("VIVACE_MODEL") or None if name is None else name


def prepare_torch(arguments: argparse.Namespace) -> None:
    """Import torch late, after all checks that need no model: it takes seconds."""
    if model_name(arguments) is None and arguments.device in ("auto", "cpu"):
        import_torch()


def _given(arguments: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}
