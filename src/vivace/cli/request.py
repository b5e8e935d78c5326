"""Builds the speech options of a command before a model is loaded, and loads the model."""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from vivace.audio.speed import check_speed
from vivace.cli.light import light_imports
from vivace.cli.progress import ProgressLine
from vivace.errors import AudioError, RequestError
from vivace.mark.levels import DEFAULT_MARK, MarkLevels
from vivace.mark.marking import Marking
from vivace.options import StreamOptions
from vivace.speech import BOUNDS, SamplingParams
from vivace.text.lexicon import Lexicon

if TYPE_CHECKING:
    from pathlib import Path

    from vivace.checkpoint import Checkpoint
    from vivace.tts import TTS

# Flags whose value is not the option itself.
OTHER_MEANING = {"voice", "lexicon", "timings", "mark"}
SIGNING_FLAGS = ("c2pa_cert", "c2pa_key", "c2pa_timestamp_url")


def speech_options(arguments: argparse.Namespace) -> StreamOptions:
    """The speech options of the command line, except the voice. RequestError if one is invalid."""
    names = StreamOptions.__dataclass_fields__.keys() - OTHER_MEANING
    given = {name: getattr(arguments, name, None) for name in names}
    options = StreamOptions(
        **{name: value for name, value in given.items() if value is not None},
        timings=getattr(arguments, "subtitles", None) is not None,
        lexicon=None if arguments.lexicon is None else Lexicon.load(arguments.lexicon),
    )
    mark_levels(arguments)
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


def find_checkpoint(name: str | None, arguments: argparse.Namespace) -> Checkpoint:
    """The checkpoint with this name, with the options --revision and --offline."""
    from vivace.checkpoint import Checkpoint

    return Checkpoint.open(find_model_folder(name, arguments))


def find_model_folder(name: str | None, arguments: argparse.Namespace) -> Path:
    """The folder of this checkpoint, with the options --revision and --offline."""
    from vivace.hub import find_folder

    revision, offline = arguments.revision, arguments.offline
    return find_folder(name, revision=revision, cache_dir=None, offline=offline)


def mark_levels(arguments: argparse.Namespace) -> MarkLevels:
    """The levels of --mark or VIVACE_MARK."""
    given = getattr(arguments, "mark", None)
    return MarkLevels.parse(given or os.environ.get("VIVACE_MARK") or DEFAULT_MARK)


def load_marking(arguments: argparse.Namespace, levels: MarkLevels) -> Marking:
    """Load the watermark and the C2PA certificate that --mark needs. Raises RequestError."""
    given = [flag for flag in SIGNING_FLAGS if getattr(arguments, flag, None)]
    if given and not levels.c2pa:
        flag = f"--{given[0].replace('_', '-')}"
        raise RequestError(f"{flag} has no effect with --mark {levels}; use --mark c2pa")
    return Marking.load(
        levels,
        certificate=getattr(arguments, "c2pa_cert", None),
        key=getattr(arguments, "c2pa_key", None),
        timestamp_url=getattr(arguments, "c2pa_timestamp_url", None),
    )


def check_signature(arguments: argparse.Namespace, format: str | None) -> None:
    """Raise an error before the model loads if the speech is to be signed and cannot be.

    `format` is None for a pipe, whose file is not complete when it is written.
    """
    levels = mark_levels(arguments)
    if not levels.c2pa:
        load_marking(arguments, replace(levels, watermark=False))
        return
    if format is None:
        raise AudioError("mark: c2pa signs complete files, not a stream; use -o FILE")
    mark = load_marking(arguments, replace(levels, watermark=False)).file_mark("")
    assert mark is not None
    mark.check_format(format)


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
            mark=load_marking(arguments, mark_levels(arguments)),
        )
