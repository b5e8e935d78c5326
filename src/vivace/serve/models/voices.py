"""The voices of a served model: presets, clones of the library, descriptions and aliases.

A requested name is looked up in dictionaries and among file names of a strict pattern, and is never
used as a path. Names of OpenAI, of the nine released speakers and of Kokoro are aliases if the
model has no voice of that name.
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

from vivace.errors import UnknownVoiceError, VoiceFileError
from vivace.serve.errors import RefusedError
from vivace.serve.models.card import Card
from vivace.voices.library import SUFFIX, VoiceLibrary
from vivace.voices.voice import NAME_PATTERN, Voice

# The speaker behind each of OpenAI's names, if the model has that speaker.
OPENAI_NAMES = {
    "alloy": "serena", "ash": "ryan", "ballad": "eric", "coral": "vivian", "echo": "aiden",
    "fable": "dylan", "onyx": "uncle_fu", "nova": "vivian", "sage": "sohee",
    "shimmer": "ono_anna", "verse": "ryan", "marin": "serena", "cedar": "aiden",
}  # fmt: skip
FEMALE = ("vivian", "serena", "ono_anna", "sohee")
EMBEDDED_VOICES = {"female": "heart", "male": "michael"}
SPEAKERS = (*FEMALE, "uncle_fu", "dylan", "eric", "ryan", "aiden")
PRESET_DESCRIPTIONS = {  # shown beside the presets
    "heart": "Warm American woman",
    "michael": "Calm American man",
    "vivian": "Young woman, Chinese",
    "serena": "Gentle young woman, Chinese",
    "uncle_fu": "Older man, Chinese",
    "dylan": "Young man, Beijing Chinese",
    "eric": "Young man, Sichuan Chinese",
    "ryan": "Man, English",
    "aiden": "Man, American English",
    "ono_anna": "Young woman, Japanese",
    "sohee": "Woman, Korean",
}
DEFAULT = "default"  # the name of every model's default voice
DESCRIPTION_SUFFIX = ".description.json"
MAX_DESCRIPTION_CHARS = 2_000
MAX_VOICE_NAME = 200  # characters of a requested name in an error message
PART = re.compile(r"([^()]+)(?:\(\s*([0-9]{1,4}(?:\.[0-9]{1,6})?)\s*\))?")  # of a mix: name(2)
MAX_PARTS = 8
KOKORO_NAME = re.compile(r"[a-z]([fm])_([a-z0-9_]+)")  # language, gender, name: af_heart


@dataclass(frozen=True, slots=True)
class ChosenVoice:
    """The voice that a name selects."""

    voice: str | Voice | None = None  # the option of `TTS.speak`
    description: str | None = None  # of a voice of a voice_design model

    @property
    def width(self) -> int | None:
        """Of the speaker vector of a clone."""
        return self.voice.width if isinstance(self.voice, Voice) else None

    def options(self, instruct: str | None = None) -> dict[str, Any]:
        """The options `voice` and `instruct` of a speech."""
        parts = [part for part in (self.description, instruct) if part]
        return {"voice": self.voice, "instruct": " ".join(parts) or None}


@dataclass(frozen=True, slots=True)
class ListedVoice:
    """An entry of `GET /v1/audio/voices`."""

    id: str
    kind: str  # preset, audio_sample (cloned), prompt (described) or alias
    model: str
    language: str | None = None
    created: int = 0  # seconds since 1970
    prompt: str | None = None  # the description of a designed voice
    licence: str | None = None  # of the recordings
    consent: str | None = None  # who agreed to the use of the recordings

    @property
    def description(self) -> str | None:
        """How the voice sounds, in a few words."""
        if self.kind == "audio_sample":
            return "Cloned from a recording"
        return self.prompt or PRESET_DESCRIPTIONS.get(self.id.lower())

    def as_json(self) -> dict[str, Any]:
        """OpenAI's voice object, with `id` and `name` for Open WebUI."""
        return {
            "id": self.id,
            "object": "audio.voice",
            "name": self.id,
            "type": self.kind,
            "model": self.model,
            "language": self.language,
            "created_at": self.created,
            "prompt": self.prompt,
            "description": self.description,
            "licence": self.licence,
            "consent": self.consent,
        }


class Voices:
    """The voices of one model."""

    def __init__(self, card: Card, library: VoiceLibrary) -> None:
        self.card, self.library = card, library

    def choose(self, name: str | None = None) -> ChosenVoice:
        """The voice of that name; None: the default.

        `a+b` and `a(2)+b` are mixes. Raises an UnknownVoiceError that lists the voices. If
        `reads_files`, call it in a thread.
        """
        key = voice_key(name)
        if key in (None, DEFAULT):
            return self._default()
        assert key is not None
        if found := self.find(key):
            return found
        if "+" in key:
            return self._mix(key)
        if key in OPENAI_NAMES or key in SPEAKERS:
            return self._alias(key)
        if kokoro := KOKORO_NAME.fullmatch(key):
            return self.find(kokoro[2]) or self._alias(FEMALE[0] if kokoro[1] == "f" else "ryan")
        raise UnknownVoiceError(str(key)[:MAX_VOICE_NAME], self.names())

    def find(self, key: str) -> ChosenVoice | None:
        """The voice of that name. Aliases are not considered."""
        if speaker := self._preset(key):
            return ChosenVoice(speaker)
        if self.card.adapter is not None and key == self.card.adapter.lower():
            return self._default()
        if self.card.can_clone and key in self.library:
            return ChosenVoice(self.library.get(key))
        if self.card.can_design and (described := read_description(self.library, key)):
            return ChosenVoice(None, described.prompt)
        return None

    def _preset(self, key: str) -> str | None:
        return next((one for one in self.card.speakers if one.lower() == key), None)

    @property
    def _is_on_disk(self) -> bool:
        """Whether some voices are files."""
        return self.card.can_clone or self.card.can_design

    def reads_files(self, name: str | None) -> bool:
        """Whether `choose` may read files for this name, which would block an event loop."""
        key = voice_key(name)
        is_default = key in (None, DEFAULT) and bool(self.card.speakers)
        return self._is_on_disk and not is_default and not self._preset(key or "")

    @property
    def can_speak(self) -> bool:
        """Whether a default voice exists."""
        needs_clone = self.card.can_clone and not self.card.speakers
        return not needs_clone or self._first_clone() is not None

    def names(self) -> list[str]:
        return [listed.id for listed in self.listed()]

    def listed(self, *, with_aliases: bool = False) -> list[ListedVoice]:
        """All voices of the model. Reads the library: call it in a thread."""
        name, card = self.card.name, self.card
        described = descriptions(self.library) if self._is_on_disk else {}
        found = [self._listed_preset(speaker) for speaker in card.speakers]
        if card.can_clone:
            found += [
                self._listed_clone(voice, described.get(voice.name)) for voice in self._clones()
            ]
        if card.can_design:
            found += [
                ListedVoice(key, "prompt", name, one.language, _created(one.path), one.prompt)
                for key, one in described.items()
            ]
        if with_aliases and (found or card.can_design):
            taken = {listed.id.lower() for listed in found}
            names = (*OPENAI_NAMES, *SPEAKERS)
            found += [ListedVoice(each, "alias", name) for each in names if each not in taken]
        return found

    def delete(self, name: str) -> None:
        """Delete a clone or a description. Raises UnknownVoiceError."""
        key = voice_key(name) or ""
        if key in {speaker.lower() for speaker in self.card.speakers}:
            raise RefusedError(
                f"voice {key!r} is a preset and cannot be deleted", code="preset", param="voice"
            )
        was_described = delete_description(self.library, key)
        if not was_described or key in self.library:
            self.library.remove(key)

    def _clones(self) -> Iterator[Voice]:
        return (voice for voice in self.library if voice.width == self.card.width)

    def _listed_preset(self, speaker: str) -> ListedVoice:
        notes = self.card.notes.get(speaker, {})
        licence, consent = notes.get("licence"), notes.get("consent")
        return ListedVoice(speaker, "preset", self.card.name, licence=licence, consent=consent)

    def _listed_clone(self, voice: Voice, description: Description | None) -> ListedVoice:
        """A clone of a recording, or of a designed voice if a description is stored beside it."""
        kind, prompt = ("prompt", description.prompt) if description else ("audio_sample", None)
        created = _created(self.library.folder / f"{voice.name}{SUFFIX}")
        notes = {"licence": voice.licence, "consent": voice.consent}
        return ListedVoice(
            voice.name, kind, self.card.name, voice.language, created, prompt, **notes
        )

    def _first_clone(self) -> Voice | None:
        return next(self._clones(), None)

    def _mix(self, key: str) -> ChosenVoice:
        """The weighted mean of the speaker vectors of cloned voices."""
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
                f"voice {key[:MAX_VOICE_NAME]!r}: only cloned voices can be mixed, "
                "with weights above 0",
                param="voice",
                code="unsupported_mix",
            )
        vector = np.average([voice.speaker for voice in voices], axis=0, weights=weights)
        return ChosenVoice(Voice(name="mix", speaker=vector.astype(np.float32)))

    def _default(self) -> ChosenVoice:
        if self.card.speakers:
            return ChosenVoice(self.card.speakers[0])
        if self.card.can_clone:
            first = self._first_clone()
            if first is None:
                raise RefusedError(
                    f"the model {self.card.name!r} needs a cloned voice and none exists yet; send "
                    "ref_audio or create a voice with POST /v1/audio/voices",
                    code="voice_not_found",
                    param="voice",
                )
            return ChosenVoice(first)
        return ChosenVoice()

    def _alias(self, key: str) -> ChosenVoice:
        speaker = OPENAI_NAMES.get(key, key)
        kind = "female" if speaker in FEMALE else "male"
        if self.card.can_design:
            return ChosenVoice(None, f"A clear, natural adult {kind} voice.")
        return self.find(speaker) or self.find(EMBEDDED_VOICES[kind]) or self._default()


def _name(voice: str | Voice | None) -> str | None:
    return voice.name if isinstance(voice, Voice) else voice


def voice_key(name: str | None) -> str | None:
    """The key of a requested name. None: the default voice."""
    return (name or "").strip().lower() or None


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
    return {key: found for key in keys if (found := read_description(library, key))}


def write_description(
    library: VoiceLibrary, name: str, prompt: str, language: str | None = None
) -> None:
    content = json.dumps({"name": name, "prompt": prompt, "language": language}).encode()
    try:
        library.write_file(f"{name}{DESCRIPTION_SUFFIX}", content, replace=False)
    except FileExistsError as error:
        raise VoiceFileError(f"a voice {name!r} exists already; delete it first") from error
    except OSError as error:
        raise VoiceFileError(
            f"the voice {name!r} cannot be stored: {error.strerror or error}"
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
    """The time of the last change; now, if another process has deleted the file."""
    try:
        return int(path.stat().st_mtime)
    except OSError:
        return int(time.time())
