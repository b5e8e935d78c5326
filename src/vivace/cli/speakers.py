"""`vivace speakers`: lists the preset voices and languages of a checkpoint."""

from __future__ import annotations

import argparse

from vivace.checkpoint import Checkpoint, find_folder
from vivace.cli.request import model_name
from vivace.cli.streams import print_json, print_table
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
        print_json({"type": kind, "speakers": speakers, "languages": languages}, indent=2)
        return
    source = "clone a recording" if kind == "base" else "describe a voice"
    rows = {
        "type": kind,
        "speakers": ", ".join(speakers) or f"none; {source}",
        "languages": ", ".join(languages),
    }
    print_table(rows.items(), width=14)
