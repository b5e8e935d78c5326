"""`vivace voice`: keep, list, show and remove voices; `vivace speakers`: what a checkpoint has."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from typing import Any

from vivace.voices.library import VoiceLibrary
from vivace.voices.voice import Voice

COLUMNS = ("name", "reference", "width", "language", "created", "licence")


def add_voice(arguments: argparse.Namespace) -> None:
    library = VoiceLibrary()
    library.check_free(arguments.name, replace=arguments.replace)  # before the model is loaded
    from vivace.tts import TTS

    with TTS.load(
        arguments.model,
        device=arguments.device,
        revision=arguments.revision,
        offline=arguments.offline,
    ) as tts:
        voice = tts.clone(
            arguments.recording,
            arguments.transcript,
            name=arguments.name,
            language=arguments.language,
            licence=arguments.licence,
            append_silence=arguments.append_silence,
        )
    path = library.add(voice, replace=arguments.replace)
    print(f"{path}: the voice {voice.name!r}, {_reference(voice)}", file=sys.stderr)


def list_voices(arguments: argparse.Namespace) -> None:
    library = VoiceLibrary()
    voices = library.voices()
    if arguments.json:
        print(json.dumps([_facts(voice) for voice in voices], indent=2))
    elif voices:
        _print_table([COLUMNS, *(_row(voice) for voice in voices)])
    else:
        hint = "vivace voice add NAME RECORDING --model MODEL"
        print(f"no voices in {library.folder} yet; add one: {hint}", file=sys.stderr)


def show_voice(arguments: argparse.Namespace) -> None:
    library = VoiceLibrary()
    facts = _facts(library.get(arguments.name)) | {"file": str(library.path(arguments.name))}
    for name, value in facts.items():
        if value is not None:
            print(f"{name:<14} {_plain(value)}")


def remove_voice(arguments: argparse.Namespace) -> None:
    VoiceLibrary().remove(arguments.name)
    print(f"removed the voice {arguments.name!r}", file=sys.stderr)


def list_speakers(arguments: argparse.Namespace) -> None:
    from vivace.checkpoint import Checkpoint, find_folder
    from vivace.prompt import AUTO

    folder = find_folder(
        arguments.model, revision=arguments.revision, offline=arguments.offline, cache_dir=None
    )
    config = Checkpoint.open(folder).config
    speakers = sorted(config.talker_config.spk_id)
    languages = [AUTO, *sorted(config.talker_config.codec_language_id)]
    kind = config.tts_model_type
    if arguments.json:
        print(json.dumps({"type": kind, "speakers": speakers, "languages": languages}, indent=2))
        return
    others = "cloned" if kind == "base" else "described"
    print(f"{'type':<14} {kind}")
    names = ", ".join(speakers) or f"none; its voices are {others}"
    print(f"{'speakers':<14} {_plain(names)}")
    print(f"{'languages':<14} {_plain(', '.join(languages))}")


def _facts(voice: Voice) -> dict[str, Any]:
    return {
        "name": voice.name,
        "family": voice.family,
        "width": voice.width,
        "reference_s": round(voice.reference_s, 2),
        "transcript": voice.ref_text,
        "language": voice.language,
        "licence": voice.licence,
        "created": voice.created,
        "source_sha256": voice.source_sha256,
    }


def _row(voice: Voice) -> tuple[str, ...]:
    row = (voice.name, _reference(voice), voice.width, voice.language, voice.created, voice.licence)
    return tuple("-" if value is None else _plain(value) for value in row)


def _reference(voice: Voice) -> str:
    return f"{voice.reference_s:.1f} s in context" if voice.is_in_context else "vector alone"


def _print_table(rows: Iterable[tuple[str, ...]]) -> None:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _plain(value: object) -> str:
    """Fit for a terminal: a voice file can come from anyone, escape codes and all."""
    text = "".join(letter if letter.isprintable() else "?" for letter in str(value))
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
