"""`vivace voice` and `vivace speakers`: add, list, show and remove voices, list preset voices.

Also --save of `clone` and `design`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from vivace.audio.files import check_path
from vivace.cli.request import find_checkpoint, load_model, model_name
from vivace.cli.streams import print_columns, print_json, print_stderr, print_table, printable
from vivace.cli.text import read_transcript
from vivace.disk import why_unwritable
from vivace.errors import VoiceFileError
from vivace.speech import AUTO_LANGUAGE
from vivace.voices.library import SUFFIX, VoiceLibrary
from vivace.voices.voice import NAME_PATTERN, Voice

UNNAMED = "cloned"
COLUMNS = ("name", "reference", "width", "language", "created", "licence", "consent")


def add_voice(arguments: argparse.Namespace) -> None:
    library = VoiceLibrary()
    library.check_free(arguments.name, replace=arguments.replace)  # raises before the model loads
    transcript = read_transcript(arguments)
    check_path(arguments.recording)
    with load_model(arguments) as tts:
        voice = tts.clone(
            arguments.recording,
            transcript,
            name=arguments.name,
            language=arguments.language,
            **enrolment_options(arguments),
        )
    report_voice(voice, library.add(voice, replace=arguments.replace))


def enrolment_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Options of `TTS.clone` from the command line."""
    return {
        "licence": arguments.licence,
        "consent": arguments.consent,
        "append_silence": arguments.append_silence,
    }


def list_voices(arguments: argparse.Namespace) -> None:
    library = VoiceLibrary()
    voices = library.voices()
    if arguments.json:
        print_json([_facts(voice) for voice in voices], indent=2)
    elif voices:
        print_columns([COLUMNS, *(_row(voice) for voice in voices)])
    else:
        hint = "vivace voice add NAME RECORDING [--model MODEL]"
        print_stderr(printable(f"{library.folder} has no voices; add one with `{hint}`"))


def show_voice(arguments: argparse.Namespace) -> None:
    library = VoiceLibrary()
    facts = _facts(library.get(arguments.name)) | {"file": str(library.path(arguments.name))}
    print_table(((name, value) for name, value in facts.items() if value is not None), width=14)


def remove_voice(arguments: argparse.Namespace) -> None:
    VoiceLibrary().remove(arguments.name)
    print_stderr(f"removed the voice {arguments.name!r}")


def _facts(voice: Voice) -> dict[str, Any]:
    return {
        "name": voice.name,
        "family": voice.family,
        "width": voice.width,
        "reference_s": round(voice.reference_s, 2),
        "transcript": voice.ref_text,
        "language": voice.language,
        "licence": voice.licence,
        "consent": voice.consent,
        "created": voice.created,
        "source_sha256": voice.source_sha256,
    }


def _row(voice: Voice) -> tuple[str, ...]:
    facts = _facts(voice) | {"reference": describe_reference(voice)}
    return tuple("-" if facts[name] is None else printable(facts[name]) for name in COLUMNS)


def list_speakers(arguments: argparse.Namespace) -> None:
    checkpoint = find_checkpoint(model_name(arguments), arguments)
    if arguments.adapter is not None:
        from vivace.adapter import Adapter  # imports torch
        from vivace.engine.checkpoints.adapted import with_adapter

        checkpoint = with_adapter(checkpoint, Adapter.load(arguments.adapter))
    config = checkpoint.config
    notes = {name: stated for name, stated in checkpoint.speaker_notes.items() if stated}
    speakers = sorted(config.talker_config.spk_id)
    languages = [AUTO_LANGUAGE, *sorted(config.talker_config.codec_language_id)]
    kind = config.tts_model_type
    if arguments.json:
        values = {"type": kind, "speakers": speakers, "languages": languages}
        print_json({**values, "notes": notes} if notes else values, indent=2)
        return
    source = "clone a recording" if config.can_clone else "describe a voice"
    listed = ", ".join(speakers) or "none"
    rows = {
        "type": kind,
        "speakers": f"{listed}; {source}" if config.can_clone or not speakers else listed,
        "languages": ", ".join(languages),
    }
    for speaker, stated in notes.items():
        rows |= {f"{name} of {speaker}": printable(text) for name, text in stated.items()}
    print_table(rows.items(), width=14)


# -- --save of `clone` and `design` ------------------------------------------------------------


def check_save(arguments: argparse.Namespace) -> str:
    """The name of the saved voice. Raises an error for an invalid --save before the model loads."""
    if arguments.save is None:
        return UNNAMED
    if not _is_file(arguments.save):
        VoiceLibrary().check_free(arguments.save, replace=arguments.replace)
        return str(arguments.save)
    path = Path(arguments.save)
    if os.path.lexists(path) and not arguments.replace:
        raise VoiceFileError(f"{path} exists; use another name, or --replace to overwrite it")
    if (reason := why_unwritable(path)) is not None:
        raise VoiceFileError(f"cannot write {path}: {reason}")
    return path.stem if NAME_PATTERN.fullmatch(path.stem) else UNNAMED


def save_voice(voice: Voice, arguments: argparse.Namespace) -> None:
    """Save the voice as --save requests, and print its path."""
    if _is_file(arguments.save):
        path = voice.save(arguments.save)
    else:
        path = VoiceLibrary().add(voice, replace=arguments.replace)
    if not arguments.quiet:
        report_voice(voice, path)


def report_voice(voice: Voice, path: Path) -> None:
    print_stderr(printable(f"{path}: voice {voice.name!r}, {describe_reference(voice)}"))


def describe_reference(voice: Voice) -> str:
    return f"{voice.reference_s:.1f} s in context" if voice.is_in_context else "speaker vector only"


def _is_file(save: str) -> bool:
    return save.endswith(SUFFIX)
