"""`vivace say`: one text, one file."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from vivace.errors import RequestError
from vivace.speech import SamplingParams
from vivace.tts import TTS
from vivace.voices.voice import Voice, load_voice


def say(arguments: argparse.Namespace) -> None:
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


def _read_text(argument: str) -> str:
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise RequestError(f"stdin is not UTF-8: {error}") from error


def _find_voice(tts: TTS, voice: str | None, transcript: str | None) -> str | Voice | None:
    """A voice file, a recording to clone, or the name of a preset."""
    path = Path(voice) if voice else None
    if path is not None and path.suffix == ".safetensors":
        return load_voice(path)
    if (
        path is not None
        and path.suffix
        and path.suffix.lower() in (".wav", ".flac", ".mp3", ".ogg")
    ):
        return tts.clone(path, transcript)
    if transcript is not None:
        raise RequestError("--transcript belongs to a reference recording: --voice me.wav")
    return voice


def _sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    given = {name: getattr(arguments, name, None) for name in names}
    return {name: value for name, value in given.items() if value is not None}
