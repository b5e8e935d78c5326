"""The user's voice library: a folder with one file per voice, looked up by name.

Only `<name>.safetensors` in the folder is read; links out of it are not followed.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from vivace.arguments import as_path
from vivace.audio.formats import RECORDING_EXTENSIONS
from vivace.disk import sweep, write_whole
from vivace.errors import RequestError, UnknownVoiceError, VoiceFileError
from vivace.speech import shown
from vivace.voices.folders import make_private, voices_folder
from vivace.voices.voice import NAME_PATTERN, Voice, check_voice_name, load_voice

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"


class VoiceLibrary:
    """Voices by name. `add` creates the folder."""

    def __init__(self, folder: str | Path | None = None) -> None:
        """Open a library without reading it.

        Args:
            folder: Folder of the voice files. None: the user's own (docs/voices.md).
        """
        self._folder = None if folder is None else as_path("folder", folder, VoiceFileError)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self.folder}>"

    @property
    def folder(self) -> Path:
        """Looked up on first use, because every request creates a library."""
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
        """Names of every voice that can be read, sorted."""
        return [voice.name for voice in self.voices()]

    def voices(self) -> list[Voice]:
        """Every voice that can be read, sorted by name; other files are skipped."""
        return list(self)

    def __iter__(self) -> Iterator[Voice]:
        """Like `voices`, but reads one file at a time."""
        for name in self.entries(SUFFIX):
            try:
                yield self._load(name)
            except VoiceFileError as error:
                log.debug("skipped: %s", error)

    def get(self, name: str) -> Voice:
        """Read a voice. Raises UnknownVoiceError, or VoiceFileError for a damaged file.

        Args:
            name: The voice's name.
        """
        self._check_known(name)
        return self._load(name)

    def path(self, name: str) -> Path:
        """The file of a voice.

        Args:
            name: The voice's name.
        """
        self._check_known(name)
        return self._entry_within(name)

    def check_free(self, name: str, *, replace: bool = False) -> None:
        """Raise the error that `add` would raise for this name."""
        check_voice_name(name)
        if name.endswith((SUFFIX, *RECORDING_EXTENSIONS)):
            raise RequestError(f"{name!r} would be read as a file name; remove the ending")
        if not replace and name in self:
            raise _taken(name)

    def add(self, voice: Voice, *, replace: bool = False) -> Path:
        """Save the voice under its own name, atomically. Returns its file.

        Args:
            voice: The voice to save.
            replace: Replace a voice of the same name, which otherwise raises RequestError.
        """
        if not isinstance(voice, Voice):
            raise RequestError(f"voice must be a Voice, not {shown(voice)}")
        self.check_free(voice.name, replace=replace)
        entry = self._entry(voice.name)
        try:
            self.write_file(entry.name, voice.to_bytes(), replace=replace)
        except FileExistsError as error:
            if not os.path.isdir(self.folder):
                raise self._refusal("hold voices", error) from error
            raise _taken(voice.name) from error
        except (OSError, ValueError) as error:
            raise self._refusal(f"take the voice {voice.name!r}", error) from error
        return entry

    def remove(self, name: str) -> None:
        """Delete a voice. Of a symbolic link, only the link is deleted.

        Args:
            name: The voice's name.
        """
        self._check_known(name)
        try:
            self.remove_file(f"{name}{SUFFIX}")
        except FileNotFoundError as error:  # another process removed the file first
            raise UnknownVoiceError(name, self.names()) from error
        except OSError as error:
            raise self._refusal(f"remove the voice {name!r}", error) from error

    # -- files; `shared.py` overrides these ----------------------------------------------------

    def entries(self, suffix: str) -> Iterator[str]:
        """Yield the sorted names of all voice files, each when the file can be read."""
        try:
            found = sorted(entry.name for entry in self.folder.iterdir())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:  # ValueError: a null byte or half a character
            raise self._refusal("be listed", error) from error
        yield from names_in(found, suffix)

    def has_file(self, file_name: str) -> bool:
        """Whether the file exists. If so, it can be read from the folder afterwards."""
        return os.path.lexists(self.folder / file_name)

    def write_file(self, file_name: str, content: bytes, *, replace: bool) -> None:
        """Write atomically. Raises FileExistsError for an existing file, otherwise OSError."""
        make_private(self.folder)
        sweep(self.folder)
        write_whole(self.folder / file_name, content, replace=replace)

    def remove_file(self, file_name: str) -> None:
        (self.folder / file_name).unlink()

    def _check_known(self, name: str) -> None:
        if name not in self:
            raise UnknownVoiceError(str(name)[:80], self.names())

    def _entry(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"

    def _entry_within(self, name: str) -> Path:
        entry = self._entry(name)
        try:
            target, folder = entry.resolve(strict=True), self.folder.resolve(strict=True)
        except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself before 3.13
            raise VoiceFileError(f"{entry} is a broken link; remove it") from error
        if not target.is_relative_to(folder):
            raise VoiceFileError(
                f"{entry}: a link out of the library, which is not followed; add the voice itself"
            )
        return entry

    def _load(self, name: str) -> Voice:
        voice = load_voice(self._entry_within(name))
        return voice if voice.name == name else dataclasses.replace(voice, name=name)

    def _refusal(self, what: str, error: OSError | ValueError) -> VoiceFileError:
        reason = getattr(error, "strerror", None) or error
        return VoiceFileError(f"the voice library {self.folder} cannot {what}: {reason}")


def names_in(file_names: Iterable[str], suffix: str) -> list[str]:
    """Names of the files whose names are valid for voices."""
    names = [each.removesuffix(suffix) for each in file_names if each.endswith(suffix)]
    return [name for name in names if NAME_PATTERN.fullmatch(name)]


def _taken(name: str) -> VoiceFileError:
    return VoiceFileError(f"a voice named {name!r} exists already; use replace=True or --replace")
