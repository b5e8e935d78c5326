"""Where voices are kept on this machine, and how a file gets there whole.

`VIVACE_HOME` holds everything where it is set; otherwise each system's own custom decides.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from vivace.errors import VoiceFileError


def voices_folder() -> Path:
    """The user's library of voices."""
    return _home("data") / "voices"


def enrolments_folder() -> Path:
    """Voices of recordings that were heard before; nothing is lost if it is deleted."""
    return _home("cache") / "enrolments"


def write_whole(path: Path, content: bytes, *, replace: bool) -> None:
    """Make `path` this content at one stroke; FileExistsError where it may not be replaced.

    A link at `path` is replaced, never followed.
    """
    temporary = path.with_name(f".vivace-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
        else:
            _move_to_free_name(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _move_to_free_name(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # unlike a rename, it fails where there is a file
    except FileExistsError:
        raise
    except OSError:  # no hard links here: claim the name, then fill it
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            os.replace(temporary, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


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
    if not folder.is_absolute():  # the XDG rules: a relative path counts as none
        try:
            folder = Path.home() / below_home
        except RuntimeError as error:
            raise VoiceFileError(
                "the home folder is not known; set VIVACE_HOME to the folder for voices"
            ) from error
    return folder / "vivace"
