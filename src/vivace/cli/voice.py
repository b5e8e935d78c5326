"""`vivace voice`: add, list, show and remove voices; and --save of `clone` and `design`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vivace.audio.files import check_path
from vivace.cli.request import load_model
from vivace.cli.streams import plain, put, tell
from vivace.cli.text import read_transcript
from vivace.errors import VoiceFileError
from vivace.voices.library import SUFFIX, VoiceLibrary
from vivace.voices.voice import NAME_PATTERN, Voice

UNNAMED = "cloned"
COLUMNS = ("name", "reference", "width", "language", "created", "licence")


def add_voice(arguments: argparse.Namespace) -> None:
    library = VoiceLibrary()
    library.check_free(arguments.name, replace=arguments.replace)  # before the model is loaded
    transcript = read_transcript(arguments)
    check_path(arguments.recording)
    with load_model(arguments) as tts:
        voice = tts.clone(
            arguments.recording,
            transcript,
            name=arguments.name,
            language=arguments.language,
            licence=arguments.licence,
            append_silence=arguments.append_silence,
        )
    report_voice(voice, library.add(voice, replace=arguments.replace))


def list_voices(arguments: argparse.Namespace) -> None:
    library = VoiceLibrary()
    voices = library.voices()
    if arguments.json:
        put(json.dumps([_facts(voice) for voice in voices], indent=2))
    elif voices:
        _print_table([COLUMNS, *(_row(voice) for voice in voices)])
    else:
        hint = "vivace voice add NAME RECORDING --model MODEL"
        tell(plain(f"no voices in {library.folder} yet; add one: {hint}"))


def show_voice(arguments: argparse.Namespace) -> None:
    library = VoiceLibrary()
    facts = _facts(library.get(arguments.name)) | {"file": str(library.path(arguments.name))}
    for name, value in facts.items():
        if value is not None:
            put(f"{name:<14} {plain(value)}")


def remove_voice(arguments: argparse.Namespace) -> None:
    VoiceLibrary().remove(arguments.name)
    tell(f"removed the voice {arguments.name!r}")


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
    row = (
        voice.name,
        describe_reference(voice),
        voice.width,
        voice.language,
        voice.created,
        voice.licence,
    )
    return tuple("-" if value is None else plain(value) for value in row)


def _print_table(rows: Iterable[tuple[str, ...]]) -> None:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        put("  ".join(cells).rstrip())


# --save of `clone` and `design`


def check_save(arguments: argparse.Namespace) -> str:
    """The name of the saved voice; an invalid --save is refused before any work."""
    if arguments.save is None:
        return UNNAMED
    if not _is_file(arguments.save):
        VoiceLibrary().check_free(arguments.save, replace=arguments.replace)
        return str(arguments.save)
    path = Path(arguments.save)
    if os.path.lexists(path) and not arguments.replace:
        raise VoiceFileError(f"{path} exists; choose another name, or overwrite it with --replace")
    if not os.path.isdir(path.parent):
        raise VoiceFileError(f"cannot write {path}: there is no folder {str(path.parent)!r}")
    return path.stem if NAME_PATTERN.fullmatch(path.stem) else UNNAMED


def keep_voice(voice: Voice, arguments: argparse.Namespace) -> None:
    """Save the voice where --save says, and report it."""
    if _is_file(arguments.save):
        path = voice.save(arguments.save)
    else:
        path = VoiceLibrary().add(voice, replace=arguments.replace)
    if not arguments.quiet:
        report_voice(voice, path)


def report_voice(voice: Voice, path: Path) -> None:
    tell(plain(f"{path}: the voice {voice.name!r}, {describe_reference(voice)}"))


def describe_reference(voice: Voice) -> str:
    return f"{voice.reference_s:.1f} s in context" if voice.is_in_context else "vector alone"


def _is_file(save: str) -> bool:
    return save.endswith(SUFFIX)
