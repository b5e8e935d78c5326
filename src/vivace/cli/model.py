"""The model of a command: the one it names, that of VIVACE_MODEL, or the embedded voice."""

from __future__ import annotations

import argparse

from vivace.cli.request import model_name
from vivace.cli.words import LiveLine
from vivace.tts import TTS


def load_model(
    arguments: argparse.Namespace, model: str | None = None, *, max_streams: int | None = 1
) -> TTS:
    """Load `model`, or else the command's own; most commands need one stream only."""
    name = model or model_name(arguments)
    line = LiveLine(is_quiet=getattr(arguments, "quiet", False))
    line.show(f"loading {name or 'the embedded voice'}")
    try:
        return TTS.load(
            name,
            device=arguments.device,
            dtype=arguments.dtype,
            backend=arguments.backend,
            threads=arguments.threads,
            max_streams=max_streams,
            revision=None if model else arguments.revision,
            offline=arguments.offline,
        )
    finally:
        line.clear()
