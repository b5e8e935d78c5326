"""The voices of a served model: presets, the library's, described ones, and aliases.

A name of a request is looked up in dictionaries and in a folder whose file names have a strict
pattern; it never becomes a path. Clients that know only OpenAI's names, or only the nine released
speakers, are served by an alias wherever the model lacks the name itself.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from vivace.disk import write_whole
from vivace.errors import RequestError, UnknownVoiceError, VoiceFileError
from vivace.serve.card import Card
from vivace.serve.errors import RefusedError
from vivace.voices.folders import make_private
from vivace.voices.library import VoiceLibrary
from vivace.voices.voice import NAME_PATTERN, Voice

# What each of OpenAI's names is spoken by, where the model has that speaker.
OPENAI_NAMES = {
    "alloy": "serena", "ash": "ryan", "ballad": "eric", "coral": "vivian", "echo": "aiden",
    "fable": "dylan", "onyx": "uncle_fu", "nova": "vivian", "sage": "sohee",
    "shimmer": "ono_anna", "verse": "ryan", "marin": "serena", "cedar": "aiden",
}  # fmt: skip
FEMALE = ("vivian", "serena", "ono_anna", "sohee")
SPEAKERS = (*FEMALE, "uncle_fu", "dylan", "eric", "ryan", "aiden")
DESCRIPTION_SUFFIX = ".description.json"
MAX_DESCRIPTION_CHARS = 2_000
MAX_VOICE_NAME = 200  # characters of a request's name that an error repeats


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a voice's name stands for."""

    voice: str | Voice | None = None  # as `TTS.speak` takes it
    description: str | None = None  # of a voice_design model's voice

    def options(self, instruct: str | None = None) -> dict[str, Any]:
        """`voice` and `instruct` for `TTS.astream`; `instruct` is the request's own."""
        words = [part for part in (self.description, instruct) if part]
        return {"voice": self.voice, "instruct": " ".join(words) or None}


@dataclass(frozen=True, slots=True)
class Listed:
    """A voice as `GET /v1/audio/voices` shows it."""

    id: str
    kind: str  # preset, audio_sample (cloned), prompt (described) or alias
    model: str
    language: str | None = None
    created: str | None = None

    def as_json(self) -> dict[str, Any]:
        """OpenAI's voice object, and what Open WebUI reads: `id` and `name`."""
        return {
            "id": self.id,
            "object": "audio.voice",
            "name": self.id,
            "type": self.kind,
            "model": self.model,
            "language": self.language,
            "created_at": _seconds(self.created),
        }


class Voices:
    """The voices of one model."""

    def __init__(self, card: Card, folder: Path | None) -> None:
        self.card = card
        self.library = VoiceLibrary(folder)

    def choose(self, name: object = None) -> Chosen:
        """What a request's `voice` stands for: a string, `{"id": …}`, or None for the default.

        An UnknownVoiceError names the voices there are.
        """
        key = voice_key(name)
        if key is None or key == "default":
            return self._default()
        if found := self.find(key):
            return found
        if key in OPENAI_NAMES or key in SPEAKERS:
            return self._alias(key)
        raise UnknownVoiceError(str(key)[:MAX_VOICE_NAME], self.names())

    def find(self, key: str) -> Chosen | None:
        """The model's own voice of that name, aliases apart."""
        for speaker in self.card.speakers:
            if speaker.lower() == key:
                return Chosen(speaker)
        if self.card.can_clone and key in self.library:
            return Chosen(self.library.get(key))
        if self.card.can_design and (description := read_description(self.library.folder, key)):
            return Chosen(None, description)
        return None

    def names(self) -> list[str]:
        return [listed.id for listed in self.listed()]

    def listed(self, *, with_aliases: bool = False) -> list[Listed]:
        """Every voice that the model can speak with; reads the library, so call it in a thread."""
        name, card = self.card.name, self.card
        found = [Listed(speaker, "preset", name) for speaker in card.speakers]
        if card.can_clone:
            found += [
                Listed(voice.name, "audio_sample", name, voice.language, voice.created)
                for voice in self.library.voices()
                if voice.width == card.width
            ]
        if card.can_design:
            found += [Listed(each, "prompt", name) for each in descriptions(self.library.folder)]
        if with_aliases and self._can_alias(found):
            taken = {listed.id.lower() for listed in found}
            names = (*OPENAI_NAMES, *SPEAKERS)
            found += [Listed(each, "alias", name) for each in names if each not in taken]
        return found

    def delete(self, name: str) -> None:
        """Delete a clone or a description; an UnknownVoiceError where there is none."""
        key = voice_key(name) or ""
        if key in {speaker.lower() for speaker in self.card.speakers}:
            raise RequestError(f"{key!r} is a voice of the model itself and cannot be deleted")
        if delete_description(self.library.folder, key):
            return
        self.library.remove(key)

    def _can_alias(self, found: list[Listed]) -> bool:
        return bool(found) or self.card.can_design

    def _default(self) -> Chosen:
        if self.card.speakers:
            return Chosen(self.card.speakers[0])
        if self.card.can_clone:
            usable = [voice for voice in self.library.voices() if voice.width == self.card.width]
            if not usable:
                raise RefusedError(
                    f"the model {self.card.name!r} speaks with cloned voices and there is none "
                    "yet: send ref_audio, or create one at POST /v1/audio/voices",
                    code="voice_not_found",
                    param="voice",
                )
            return Chosen(usable[0])
        return Chosen()

    def _alias(self, key: str) -> Chosen:
        speaker = OPENAI_NAMES.get(key, key)
        if self.card.can_design:
            kind = "female" if speaker in FEMALE else "male"
            return Chosen(None, f"A clear, natural adult {kind} voice.")
        return self.find(speaker) or self._default()


def voice_key(name: object) -> str | None:
    """The name of a request's `voice`, lower-case; None where it names none."""
    if isinstance(name, dict):
        name = name.get("id", name.get("name"))
    if name is None:
        return None
    if not isinstance(name, str):
        raise RefusedError(
            f'voice is a name or {{"id": name}}, not {type(name).__name__}', param="voice"
        )
    return name.strip().lower() or None


# -- described voices ------------------------------------------------------------------------


def read_description(folder: Path, name: str) -> str | None:
    if not NAME_PATTERN.fullmatch(name):
        return None
    try:
        stored = json.loads((folder / f"{name}{DESCRIPTION_SUFFIX}").read_text("utf-8"))
        return str(stored["prompt"])[:MAX_DESCRIPTION_CHARS]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def descriptions(folder: Path) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    keys = [name.removesuffix(DESCRIPTION_SUFFIX) for name in names if DESCRIPTION_SUFFIX in name]
    return [key for key in keys if NAME_PATTERN.fullmatch(key) and read_description(folder, key)]


def write_description(folder: Path, name: str, prompt: str) -> None:
    content = json.dumps({"name": name, "prompt": prompt}).encode()
    try:
        make_private(folder)
        write_whole(folder / f"{name}{DESCRIPTION_SUFFIX}", content, replace=False)
    except FileExistsError as error:
        raise VoiceFileError(f"there is a voice named {name!r} already; delete it first") from error
    except OSError as error:
        raise VoiceFileError(
            f"the voice {name!r} cannot be kept: {error.strerror or error}"
        ) from error


def delete_description(folder: Path, name: str) -> bool:
    if not NAME_PATTERN.fullmatch(name):
        return False
    try:
        (folder / f"{name}{DESCRIPTION_SUFFIX}").unlink()
    except OSError:
        return False
    return True


def _seconds(created: str | None) -> int:
    if created is None:
        return 0
    return int(datetime.fromisoformat(created).replace(tzinfo=timezone.utc).timestamp())
