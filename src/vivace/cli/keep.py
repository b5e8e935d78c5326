"""`--save`: stores a voice by name in the library, or in a file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from vivace.cli.streams import plain, tell
from vivace.errors import VoiceFileError
from vivace.voices.library import SUFFIX, VoiceLibrary
from vivace.voices.voice import NAME_PATTERN, Voice

UNNAMED = "cloned"


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
