"""`vivace speakers`: what a checkpoint can speak with, and in which languages."""

from __future__ import annotations

import argparse
import json

from vivace.checkpoint import Checkpoint, find_folder
from vivace.cli.request import model_name
from vivace.cli.streams import plain, put
from vivace.speech import AUTO_LANGUAGE


def list_speakers(arguments: argparse.Namespace) -> None:
    folder = find_folder(
        model_name(arguments),
        revision=arguments.revision,
        offline=arguments.offline,
        cache_dir=None,
    )
    config = Checkpoint.open(folder).config
    speakers = sorted(config.talker_config.spk_id)
    languages = [AUTO_LANGUAGE, *sorted(config.talker_config.codec_language_id)]
    kind = config.tts_model_type
    if arguments.json:
        put(json.dumps({"type": kind, "speakers": speakers, "languages": languages}, indent=2))
        return
    others = "cloned" if kind == "base" else "described"
    put(f"{'type':<14} {kind}")
    names = ", ".join(speakers) or f"none; its voices are {others}"
    put(f"{'speakers':<14} {plain(names)}")
    put(f"{'languages':<14} {plain(', '.join(languages))}")
