"""Who speaks the lines of a dialogue: every name looked up before anything is spoken."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from vivace.dialogue.script import DialogueScript, Line
from vivace.errors import RequestError, UnknownVoiceError
from vivace.voices.find import VoiceSource, find_voice
from vivace.voices.library import RECORDINGS, SUFFIX, VoiceLibrary
from vivace.voices.voice import Voice

Cast = dict[str, VoiceSource]
"""Voices by the speakers' names, in the order in which they first speak."""


def find_cast(script: DialogueScript, presets: Collection[str]) -> tuple[Cast, list[str]]:
    """The cast, and the name of each line's speaker; all unknown voices are one error."""
    cast: Cast = {}
    names: dict[object, str] = {}
    unknown: dict[str, Line] = {}
    for line in script.lines:
        if _key(line) in names:
            continue
        name = names[_key(line)] = _free_name(line, cast)
        cast[name] = script.voice_of(line.speaker)
        if not _is_known(cast[name], line, presets):
            unknown.setdefault(str(cast[name]), line)
    if unknown:
        first, *others = unknown
        known = sorted(presets) or VoiceLibrary().names()
        error = UnknownVoiceError(first, known, *others)
        error.args = (f"{unknown[first].where}: {error}",)
        raise error
    return cast, [names[_key(line)] for line in script.lines]


def _key(line: Line) -> object:
    return line.speaker.casefold() if isinstance(line.speaker, str) else id(line.speaker)


def _free_name(line: Line, cast: Cast) -> str:
    """What the speaker is called; voices may have the same name."""
    speaker = line.speaker
    if isinstance(speaker, Voice):
        name = speaker.name
    elif isinstance(speaker, Path):
        name = speaker.stem
    elif isinstance(speaker, str) and speaker.strip():
        return speaker
    else:
        kind = type(speaker).__name__
        raise RequestError(f"{line.where}: a voice is a name, a path or a Voice, not {kind}")
    number, free = 2, name
    while free in cast:
        number, free = number + 1, f"{name}-{number}"
    return free


def _is_known(source: object, line: Line, presets: Collection[str]) -> bool:
    if isinstance(source, Voice):
        return True
    if not isinstance(source, (str, Path)):
        kind = type(source).__name__
        raise RequestError(f"{line.where}: a voice is a name, a path or a Voice, not {kind}")
    if isinstance(source, Path) or Path(source).suffix.lower() in (*RECORDINGS, SUFFIX):
        return os.path.exists(source)
    if str(source).lower() in {preset.lower() for preset in presets}:
        return True
    return not isinstance(find_voice(source, presets, VoiceLibrary()), str)
