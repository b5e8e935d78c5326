"""`vivace say`: one text, one file."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from vivace.audio.files import WRITABLE
from vivace.errors import AudioError, RequestError
from vivace.speech import SamplingParams
from vivace.tts import TTS
from vivace.voices.voice import Voice, load_voice

RECORDINGS = (".wav", ".flac", ".mp3", ".ogg", ".opus")


def say(arguments: argparse.Namespace) -> None:
    _check_output(Path(arguments.output))
    text = _read_text(arguments.text)
    with TTS.load(
        arguments.model,
        device=arguments.device,
        dtype=arguments.dtype,
        backend=arguments.backend,
        revision=arguments.revision,
        offline=arguments.offline,
    ) as tts:
        audio = tts.speak(
            text,
            voice=_find_voice(tts, arguments.voice, arguments.transcript),
            language=arguments.language,
            instruct=arguments.instruct,
            text_layout=arguments.text_layout,
            **_sampling(arguments),
        )
    path = audio.save(arguments.output)
    usage = audio.usage
    print(
        f"{path}: {usage.audio_s:.2f} s of audio in {usage.wall_s:.2f} s "
        f"({usage.real_time_factor:.2f} times real time), seed {usage.seed}, {audio.finish_reason}",
        file=sys.stderr,
    )


def _check_output(path: Path) -> None:
    """Minutes of speech should not be lost to a typing error."""
    if path.suffix.lower() not in WRITABLE:
        raise AudioError(f"cannot write {path.name!r}; name it with one of: {', '.join(WRITABLE)}")
    if os.path.isdir(path):  # unlike Path's, it takes a name that is too long
        raise AudioError(f"cannot write {path}: it is a folder")
    if not os.path.isdir(path.parent):
        raise AudioError(f"cannot write {path}: there is no folder {str(path.parent)!r}")
    if not os.access(path.parent, os.W_OK):
        raise AudioError(f"cannot write {path}: the folder {str(path.parent)!r} is read-only")


def _read_text(argument: str) -> str:
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise RequestError(f"stdin is not UTF-8: {error}") from error


def _find_voice(tts: TTS, voice: str | None, transcript: str | None) -> str | Voice | None:
    """A voice file, a recording to clone, or the name of a preset."""
    suffix = Path(voice or "").suffix.lower()
    is_voice_file = suffix == ".safetensors"
    if voice is not None and not is_voice_file and ("/" in voice or suffix in RECORDINGS):
        return tts.clone(voice, transcript)
    if transcript is not None:
        raise RequestError("--transcript belongs to a reference recording: --voice me.wav")
    return load_voice(voice) if voice is not None and is_voice_file else voice


def _sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    given = {name: getattr(arguments, name, None) for name in names}
    return {name: value for name, value in given.items() if value is not None}
