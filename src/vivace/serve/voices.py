"""The voices of a served model: presets, the library's, described ones, and aliases.

A name of a request is looked up in dictionaries and in a folder whose file names have a strict
pattern; it never becomes a path. Clients that know only OpenAI's names, the nine released
speakers, or Kokoro's names, are served by an alias wherever the model lacks the name itself.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vivace.errors import RequestError, UnknownVoiceError, VoiceFileError
from vivace.serve.card import Card
from vivace.serve.errors import RefusedError
from vivace.voices.library import SUFFIX, VoiceLibrary
from vivace.voices.voice import NAME_PATTERN, Voice

# What each of OpenAI's names is spoken by, where the model has that speaker.
OPENAI_NAMES = {
    "alloy": "serena", "ash": "ryan", "ballad": "eric", "coral": "vivian", "echo": "aiden",
    "fable": "dylan", "onyx": "uncle_fu", "nova": "vivian", "sage": "sohee",
    "shimmer": "ono_anna", "verse": "ryan", "marin": "serena", "cedar": "aiden",
}  # fmt: skip
FEMALE = ("vivian", "serena", "ono_anna", "sohee")
OF_THE_EMBEDDED = {"female": "heart", "male": "michael"}
SPEAKERS = (*FEMALE, "uncle_fu", "dylan", "eric", "ryan", "aiden")
DESCRIPTION_SUFFIX = ".description.json"
MAX_DESCRIPTION_CHARS = 2_000
MAX_VOICE_NAME = 200  # characters of a request's name that an error repeats
PART = re.compile(r"([^()]+?)\s*(?:\(\s*([0-9]{1,4}(?:\.[0-9]{1,6})?)\s*\))?")  # of a mix: name(2)
MAX_PARTS = 8
KOKORO_NAME = re.compile(r"[a-z]([fm])_([a-z0-9_]+)")  # language, gender, name: af_heart


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
    created: int = 0  # seconds since 1970
    prompt: str | None = None  # the description that it was made of

    def as_json(self) -> dict[str, Any]:
        """OpenAI's voice object, and what Open WebUI reads: `id` and `name`."""
        return {
            "id": self.id,
            "object": "audio.voice",
            "name": self.id,
            "type": self.kind,
            "model": self.model,
            "language": self.language,
            "created_at": self.created,
            "prompt": self.prompt,
        }


class Voices:
    """The voices of one model."""

    def __init__(self, card: Card, library: VoiceLibrary) -> None:
        self.card, self.library = card, library

    def choose(self, name: object = None) -> Chosen:
        """What a request's `voice` stands for: a string, `{"id": …}`, or None for the default.

        `a+b` and `a(2)+b` are mixes. An UnknownVoiceError names the voices there are. It may read
        the library: call it in a thread where `is_on_disk`.
        """
        key = voice_key(name)
        if key is None or key == "default":
            return self._default()
        if found := self.find(key):
            return found
        if "+" in key:
            return self._mix(key)
        if key in OPENAI_NAMES or key in SPEAKERS:
            return self._alias(key)
        if kokoro := KOKORO_NAME.fullmatch(key):
            return self.find(kokoro[2]) or self._alias(FEMALE[0] if kokoro[1] == "f" else "ryan")
        raise UnknownVoiceError(str(key)[:MAX_VOICE_NAME], self.names())

    def find(self, key: str) -> Chosen | None:
        """The model's own voice of that name, aliases apart."""
        for speaker in self.card.speakers:
            if speaker.lower() == key:
                return Chosen(speaker)
        if self.card.can_clone and key in self.library:
            return Chosen(self.library.get(key))
        if self.card.can_design and (described := read_description(self.library, key)):
            return Chosen(None, described.prompt)
        return None

    @property
    def is_on_disk(self) -> bool:
        """Whether a choice may read the library, which is not for an event loop."""
        return self.card.can_clone or self.card.can_design

    @property
    def can_speak(self) -> bool:
        """Whether there is a voice for a request that names none of its own."""
        return not self.card.can_clone or self._first_clone() is not None

    def names(self) -> list[str]:
        return [listed.id for listed in self.listed()]

    def listed(self, *, with_aliases: bool = False) -> list[Listed]:
        """Every voice that the model can speak with; reads the library, so call it in a thread."""
        name, card = self.card.name, self.card
        described = descriptions(self.library) if self.is_on_disk else {}
        found = [Listed(speaker, "preset", name) for speaker in card.speakers]
        if card.can_clone:
            found += [
                self._listed_clone(voice, described.get(voice.name)) for voice in self._clones()
            ]
        if card.can_design:
            found += [
                Listed(each, "prompt", name, told.language, _created(told.path), told.prompt)
                for each, told in described.items()
            ]
        if with_aliases and (found or card.can_design):
            taken = {listed.id.lower() for listed in found}
            names = (*OPENAI_NAMES, *SPEAKERS)
            found += [Listed(each, "alias", name) for each in names if each not in taken]
        return found

    def delete(self, name: str) -> None:
        """Delete a clone or a description; an UnknownVoiceError where there is none."""
        key = voice_key(name) or ""
        if key in {speaker.lower() for speaker in self.card.speakers}:
            raise RequestError(f"{key!r} is a voice of the model itself and cannot be deleted")
        was_described = delete_description(self.library, key)
        if not was_described or key in self.library:
            self.library.remove(key)

    def _clones(self) -> Iterator[Voice]:
        return (voice for voice in self.library if voice.width == self.card.width)

    def _listed_clone(self, voice: Voice, told: Description | None) -> Listed:
        """A clone of a recording; or of a description, which is then kept beside it."""
        kind, prompt = ("prompt", told.prompt) if told else ("audio_sample", None)
        created = _created(self.library.folder / f"{voice.name}{SUFFIX}")
        return Listed(voice.name, kind, self.card.name, voice.language, created, prompt)

    def _first_clone(self) -> Voice | None:
        return next(self._clones(), None)

    def _mix(self, key: str) -> Chosen:
        """The weighted mean of cloned voices, as speaker vectors alone."""
        parts = [PART.fullmatch(part.strip()) for part in key.split("+")]
        if None in parts or len(parts) > MAX_PARTS:
            raise UnknownVoiceError(key[:MAX_VOICE_NAME], self.names())
        chosen = [self.choose(part[1]) for part in parts if part]
        weights = [float(part[2] or 1) for part in parts if part]
        if len({(_name(each.voice), each.description) for each in chosen}) == 1:
            return chosen[0]
        voices = [each.voice for each in chosen if isinstance(each.voice, Voice)]
        if len(voices) < len(chosen) or not sum(weights):
            raise RefusedError(
                f"{key[:MAX_VOICE_NAME]!r}: only cloned voices can be mixed, on a Base model, with "
                "weights above 0",
                param="voice",
                code="unsupported_mix",
            )
        vector = np.average([voice.speaker for voice in voices], axis=0, weights=weights)
        return Chosen(Voice(name="mix", speaker=vector.astype(np.float32)))

    def _default(self) -> Chosen:
        if self.card.speakers:
            return Chosen(self.card.speakers[0])
        if self.card.can_clone:
            first = self._first_clone()
            if first is None:
                raise RefusedError(
                    f"the model {self.card.name!r} speaks with cloned voices and there is none "
                    "yet: send ref_audio, or create one at POST /v1/audio/voices",
                    code="voice_not_found",
                    param="voice",
                )
            return Chosen(first)
        return Chosen()

    def _alias(self, key: str) -> Chosen:
        speaker = OPENAI_NAMES.get(key, key)
        kind = "female" if speaker in FEMALE else "male"
        if self.card.can_design:
            return Chosen(None, f"A clear, natural adult {kind} voice.")
        return self.find(speaker) or self.find(OF_THE_EMBEDDED[kind]) or self._default()


def _name(voice: str | Voice | None) -> str | None:
    return voice.name if isinstance(voice, Voice) else voice


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


@dataclass(frozen=True, slots=True)
class Description:
    path: Path
    prompt: str
    language: str | None


def read_description(library: VoiceLibrary, name: str) -> Description | None:
    file_name = f"{name}{DESCRIPTION_SUFFIX}"
    if not NAME_PATTERN.fullmatch(name) or not library.has_file(file_name):
        return None
    path = library.folder / file_name
    try:
        stored = json.loads(path.read_text("utf-8"))
        prompt, language = str(stored["prompt"])[:MAX_DESCRIPTION_CHARS], stored.get("language")
        return Description(path, prompt, language if isinstance(language, str) else None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def descriptions(library: VoiceLibrary) -> dict[str, Description]:
    try:
        keys = list(library.entries(DESCRIPTION_SUFFIX))
    except VoiceFileError:
        return {}
    return {key: told for key in keys if (told := read_description(library, key))}


def write_description(
    library: VoiceLibrary, name: str, prompt: str, language: str | None = None
) -> None:
    content = json.dumps({"name": name, "prompt": prompt, "language": language}).encode()
    try:
        library.write_file(f"{name}{DESCRIPTION_SUFFIX}", content, replace=False)
    except FileExistsError as error:
        raise VoiceFileError(f"there is a voice named {name!r} already; delete it first") from error
    except OSError as error:
        raise VoiceFileError(
            f"the voice {name!r} cannot be kept: {error.strerror or error}"
        ) from error


def delete_description(library: VoiceLibrary, name: str) -> bool:
    file_name = f"{name}{DESCRIPTION_SUFFIX}"
    try:
        if not NAME_PATTERN.fullmatch(name) or not library.has_file(file_name):
            return False
        library.remove_file(file_name)
    except OSError:
        return False
    return True


def _created(path: Path) -> int:
    """When the file was written; now, if another process deletes it meanwhile."""
    try:
        return int(path.stat().st_mtime)
    except OSError:
        return int(time.time())
