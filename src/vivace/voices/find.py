"""Resolves the `voice` argument: a Voice, a file, a name in the library, or a preset."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from vivace.audio.formats import RECORDING_EXTENSIONS
from vivace.errors import RequestError
from vivace.voices.library import SUFFIX, VoiceLibrary
from vivace.voices.voice import Voice, load_voice

VoiceSource = str | Path | Voice


@dataclass(frozen=True, slots=True)
class UnenrolledRecording:
    """A recording that must be enrolled first."""

    audio: str | Path


def find_voice(
    source: VoiceSource, presets: Collection[str], library: VoiceLibrary
) -> Voice | UnenrolledRecording | str:
    """Return a voice, a recording to enrol, or the name itself, which may be a preset's.

    Names have precedence over files, so a file in the working folder cannot replace a voice. A
    name that ends in .wav, .safetensors or another known suffix is a path.
    """
    if isinstance(source, Voice):
        return source
    if not isinstance(source, (str, Path)):
        kind = type(source).__name__
        raise RequestError(f"voice must be a preset's name, a path or a Voice, not {kind}")
    name = str(source).lower()
    suffix = Path(source).suffix.lower() if "." in name else ""
    if suffix == SUFFIX:
        return load_voice(Path(source))
    if isinstance(source, Path) or suffix in RECORDING_EXTENSIONS:
        return UnenrolledRecording(source)
    if name in {preset.lower() for preset in presets}:
        return source
    if name in library:
        return library.get(name)
    return UnenrolledRecording(source) if os.path.exists(source) else source
