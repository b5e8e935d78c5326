"""Paths of the voice library and of the enrolment cache: VIVACE_HOME or the system's default."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from vivace.errors import VoiceFileError


def voices_folder() -> Path:
    """The user's library of voices."""
    return _home("data") / "voices"


def enrolments_folder() -> Path:
    """The cache of enrolled recordings; it may be deleted."""
    return _home("cache") / "enrolments"


def make_private(folder: Path) -> None:
    """Create a folder that only the user can read. An existing folder keeps its mode."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _home(kind: str) -> Path:
    if chosen := os.environ.get("VIVACE_HOME"):
        return Path(chosen).expanduser().absolute()
    variable, below_home = {
        ("darwin", "data"): ("", "Library/Application Support"),
        ("darwin", "cache"): ("", "Library/Caches"),
        ("win32", "data"): ("APPDATA", "AppData/Roaming"),
        ("win32", "cache"): ("LOCALAPPDATA", "AppData/Local"),
        ("xdg", "data"): ("XDG_DATA_HOME", ".local/share"),
        ("xdg", "cache"): ("XDG_CACHE_HOME", ".cache"),
    }[sys.platform if sys.platform in ("darwin", "win32") else "xdg", kind]
    folder = Path(os.environ.get(variable, ""))
    if not folder.is_absolute():  # XDG: a relative path is ignored
        try:
            folder = Path.home() / below_home
        except RuntimeError as error:
            raise VoiceFileError(
                "the home folder is unknown; set VIVACE_HOME to the folder for voices"
            ) from error
    return folder / "vivace"
