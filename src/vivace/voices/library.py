"""The user's voice library: a folder with one file per voice, looked up by name.

Only `<name>.safetensors` in the folder is read; links out of it are not followed.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from vivace.audio.formats import RECORDING_EXTENSIONS
from vivace.disk import sweep, write_whole
from vivace.errors import RequestError, UnknownVoiceError, VoiceFileError
from vivace.voices.folders import make_private, voices_folder
from vivace.voices.voice import NAME_PATTERN, Voice, check_voice_name, load_voice

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"
# `voice=` takes a name with one of these endings for a path.


class VoiceLibrary:
    """Voices by name. The folder is made when the first voice is added."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = None if folder is None else Path(folder)

    @property
    def folder(self) -> Path:
        """Not looked up before it is needed: every request makes a library."""
        if self._folder is None:
            self._folder = voices_folder()
        return self._folder

    def __contains__(self, name: object) -> bool:
        """Whether the name is taken; the file may still be damaged."""
        return (
            isinstance(name, str)
            and NAME_PATTERN.fullmatch(name) is not None
            and self.has_file(f"{name}{SUFFIX}")
        )

    def names(self) -> list[str]:
        return [voice.name for voice in self.voices()]

    def voices(self) -> list[Voice]:
        """Every voice that can be read, sorted by name; other files are skipped."""
        return list(self)

    def __iter__(self) -> Iterator[Voice]:
        """As `voices`, one file after another."""
        found = (self._load_if_sound(name) for name in self.entries(SUFFIX))
        yield from (voice for voice in found if voice is not None)

    def get(self, name: str) -> Voice:
        """The voice of that name, or UnknownVoiceError; a damaged file is a VoiceFileError."""
        if name not in self:
            raise UnknownVoiceError(str(name)[:80], self.names())
        return self._load(name)

    def path(self, name: str) -> Path:
        """Where the voice of that name is kept."""
        if name not in self:
            raise UnknownVoiceError(str(name)[:80], self.names())
        return self._entry_within(name)

    def check_free(self, name: str, *, replace: bool = False) -> None:
        """Raise the error that `add` would raise for this name."""
        check_voice_name(name)
        if name.endswith((SUFFIX, *RECORDING_EXTENSIONS)):
            raise RequestError(f"{name!r} would be taken for a file; leave the ending out")
        if not replace and name in self:
            raise _taken(name)

    def add(self, voice: Voice, *, replace: bool = False) -> Path:
        """Save the voice under its own name, atomically."""
        self.check_free(voice.name, replace=replace)
        entry = self._entry(voice.name)
        try:
            self.write_file(entry.name, voice.to_bytes(), replace=replace)
        except FileExistsError as error:
            if not os.path.isdir(self.folder):
                raise self._refusal("hold voices", error) from error
            raise _taken(voice.name) from error
        except OSError as error:
            raise self._refusal(f"take the voice {voice.name!r}", error) from error
        return entry

    def remove(self, name: str) -> None:
        """Delete the voice; of a symbolic link, only the link."""
        if name not in self:
            raise UnknownVoiceError(str(name)[:80], self.names())
        try:
            self.remove_file(f"{name}{SUFFIX}")
        except FileNotFoundError as error:  # another process was quicker
            raise UnknownVoiceError(name, self.names()) from error
        except OSError as error:
            raise self._refusal(f"remove the voice {name!r}", error) from error

    # -- the files, which `shared.py` keeps elsewhere too ------------------------------------

    def entries(self, suffix: str) -> Iterator[str]:
        """The names of all files with this ending, sorted, each readable when it is given out."""
        try:
            found = sorted(entry.name for entry in self.folder.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._refusal("be listed", error) from error
        yield from names_in(found, suffix)

    def has_file(self, file_name: str) -> bool:
        """Whether it is there; from then on it is readable in the folder."""
        return os.path.lexists(self.folder / file_name)

    def write_file(self, file_name: str, content: bytes, *, replace: bool) -> None:
        """Atomically; a name that is taken is a FileExistsError, other trouble an OSError."""
        make_private(self.folder)
        sweep(self.folder)
        write_whole(self.folder / file_name, content, replace=replace)

    def remove_file(self, file_name: str) -> None:
        (self.folder / file_name).unlink()

    def _entry(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"

    def _entry_within(self, name: str) -> Path:
        entry = self._entry(name)
        try:
            target, folder = entry.resolve(strict=True), self.folder.resolve(strict=True)
        except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself, before 3.13
            raise VoiceFileError(f"{entry}: a link that leads nowhere; remove it") from error
        if not target.is_relative_to(folder):
            raise VoiceFileError(
                f"{entry}: a link out of the library, which is not followed; add the voice itself"
            )
        return entry

    def _load(self, name: str) -> Voice:
        voice = load_voice(self._entry_within(name))
        return voice if voice.name == name else dataclasses.replace(voice, name=name)

    def _load_if_sound(self, name: str) -> Voice | None:
        try:
            return self._load(name)
        except VoiceFileError as error:
            log.debug("skipped: %s", error)
            return None

    def _refusal(self, what: str, error: OSError) -> VoiceFileError:
        reason = error.strerror or error
        return VoiceFileError(f"the voice library {self.folder} cannot {what}: {reason}")


def names_in(file_names: Iterable[str], suffix: str) -> list[str]:
    """Of the files that can be a voice's."""
    names = [each.removesuffix(suffix) for each in file_names if each.endswith(suffix)]
    return [name for name in names if NAME_PATTERN.fullmatch(name)]


def _taken(name: str) -> VoiceFileError:
    return VoiceFileError(
        f"there is a voice named {name!r} already; replace=True or --replace replaces it"
    )
