"""Finds the speaker of every line of a dialogue before anything is spoken."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from vivace.audio.formats import RECORDING_EXTENSIONS
from vivace.dialogue.script import DialogueLine, DialogueScript
from vivace.errors import RequestError, UnknownVoiceError
from vivace.voices.find import VoiceSource, find_voice
from vivace.voices.library import SUFFIX, VoiceLibrary
from vivace.voices.voice import Voice

Cast = dict[str, VoiceSource]
"""Voices by the speakers' names, in the order in which they first speak."""


def find_cast(script: DialogueScript, presets: Collection[str]) -> tuple[Cast, list[str]]:
    """The voice of every speaker, and the speaker of every line.

    All unknown voices are reported in one UnknownVoiceError.
    """
    names: dict[object, str] = {}
    firsts: dict[str, DialogueLine] = {}  # by name
    numbers = FreeNames()
    for line in script.lines:
        key = _key(line)
        if key not in names:
            names[key] = _free_name(line, numbers)
            firsts[names[key]] = line
    cast: Cast = {name: script.voice_of(line.speaker) for name, line in firsts.items()}
    _check_known(cast, firsts, presets)
    return cast, [names[_key(line)] for line in script.lines]


def _check_known(cast: Cast, firsts: Mapping[str, DialogueLine], presets: Collection[str]) -> None:
    known_names = frozenset(preset.lower() for preset in presets)
    library = VoiceLibrary()
    unknown: dict[str, DialogueLine] = {}
    for name, source in cast.items():
        if not _is_known(source, firsts[name], known_names, library):
            unknown.setdefault(str(source), firsts[name])
    if unknown:
        first, *others = unknown
        error = UnknownVoiceError(first, sorted(presets) or library.names(), *others)
        error.args = (f"{unknown[first].where}: {error}",)
        raise error


def _key(line: DialogueLine) -> object:
    return line.speaker.casefold() if isinstance(line.speaker, str) else id(line.speaker)


def _free_name(line: DialogueLine, names: FreeNames) -> str:
    """A name for a new speaker. Several voices may have the same name."""
    speaker = line.speaker
    if isinstance(speaker, Voice):
        return names.take(speaker.name)
    if isinstance(speaker, Path):
        return names.take(speaker.stem)
    if isinstance(speaker, str) and speaker.strip():
        return names.take(speaker)
    kind = type(speaker).__name__
    raise RequestError(f"{line.where}: the voice must be a name, a path or a Voice, not {kind}")


def _is_known(
    source: object, line: DialogueLine, presets: Collection[str], library: VoiceLibrary
) -> bool:
    """`presets` are in lower case."""
    if isinstance(source, Voice):
        return True
    if not isinstance(source, (str, Path)):
        kind = type(source).__name__
        raise RequestError(f"{line.where}: the voice must be a name, a path or a Voice, not {kind}")
    if isinstance(source, Path) or Path(source).suffix.lower() in (*RECORDING_EXTENSIONS, SUFFIX):
        return os.path.exists(source)
    if str(source).lower() in presets:
        return True
    return not isinstance(find_voice(source, (), library), str)


class FreeNames:
    """Adds a number to names that are taken: `Ben`, `Ben-2`, `Ben-3`."""

    def __init__(self, fold: Callable[[str], str] = str) -> None:
        """Two names are equal if `fold` returns the same string for both."""
        self._fold = fold
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def take(self, name: str) -> str:
        key = self._fold(name)
        free, number = name, self._next.get(key, 2)
        while self._fold(free) in self._taken:
            free, number = f"{name}-{number}", number + 1
        self._next[key] = number
        self._taken.add(self._fold(free))
        return free
