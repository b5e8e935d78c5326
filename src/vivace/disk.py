"""Writes files atomically. Two processes never write the same file.

Bytes go to a hidden file beside the target. The file is locked while its process runs. Without
`replace`, its name is derived from the target's name, which reserves the target. The next writer
removes unlocked hidden files of killed processes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl

HIDDEN = re.compile(r"\.vivace-[0-9a-f]{16}\.tmp")
FRESH_S = 60.0  # on systems without locks, a newer hidden file is in use
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
LOCK_POLL_S = 0.1  # between attempts to take a lock
OPEN_HIDDEN = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class NameInUseError(FileExistsError):
    """Another process is writing a file with this name."""


def user_cache() -> Path:
    """Vivace's folder for files that can be made again."""
    # XDG requires that a relative path is ignored.
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "vivace"


class AtomicFile:
    """A file that `commit` moves to `path`; an existing file stays until then. Raises OSError.

    Without `replace`, an existing file raises FileExistsError, and a file that another process is
    writing raises NameInUseError. A link at `path` is replaced, never followed; a link to a device
    or a pipe, such as /dev/stdout, raises OSError.
    """

    def __init__(self, path: Path, *, replace: bool) -> None:
        self.path, self._replace = path.absolute(), replace
        old = _stat(path)  # raises OSError for an invalid name
        is_link = old is not None and stat.S_ISLNK(old)
        kind = _kind_of_target(path) if is_link else old
        if replace and kind is not None and not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "it exists and is not a file")
        self._hidden, descriptor = _claim(self.path, replace=replace)
        self.file = os.fdopen(descriptor, "wb")
        if not replace and _stat(path) is not None:
            self.discard()
            raise FileExistsError(errno.EEXIST, "it exists")
        if old is not None and stat.S_ISREG(old) and hasattr(os, "fchmod"):
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(descriptor, stat.S_IMODE(old))

    def commit(self, path: Path | None = None) -> None:
        """Move the file to its path, or to `path`. Raises FileExistsError for an existing file."""
        self.file.flush()
        os.fsync(self.file.fileno())
        if sys.platform == "win32":  # Windows cannot rename an open file
            self.file.close()
        if self._replace:
            os.replace(self._hidden, self.path)
        else:
            _move_to_free_name(self._hidden, path or self.path)
        self.file.close()

    def discard(self) -> None:
        """Remove the hidden file; does nothing after `commit`."""
        with contextlib.suppress(OSError):
            if not self.file.closed:
                self._hidden.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # flushing fails if the disk is full
            self.file.close()
        if sys.platform == "win32":
            with contextlib.suppress(OSError):
                self._hidden.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes, *, replace: bool) -> None:
    """Write this content to `path`, or raise OSError and change nothing."""
    file = AtomicFile(path, replace=replace)
    try:
        file.file.write(content)
        file.commit()
    finally:
        file.discard()


class FileLock:
    """A lock between processes. A killed process releases it.

    The file at `path` is removed when the lock is released. Where there are no locks, as on Windows
    or with a file of another user, `take` succeeds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> bool:
        """Take the lock, or return False if another process holds it. Raises OSError."""
        try:
            descriptor = os.open(self._path, OPEN_HIDDEN | os.O_CREAT, 0o600)
        except PermissionError:
            return True
        if _lock(descriptor) and _is_at(descriptor, self._path):
            self._descriptor = descriptor
            return True
        os.close(descriptor)
        return False

    def release(self) -> None:
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1

    def wait(self, timeout_s: float) -> bool:
        """Take the lock as soon as it is free; False after the timeout."""
        deadline = time.monotonic() + timeout_s
        while not self.take():
            if time.monotonic() > deadline:
                return False
            time.sleep(LOCK_POLL_S)
        return True


def numbered(path: Path) -> Iterator[Path]:
    """Yield the path, then path-2, path-3 and so on."""
    yield path
    for number in itertools.count(2):
        yield path.with_stem(f"{path.stem}-{number}")


def sweep(folder: Path) -> None:
    """Remove the hidden files that killed processes left in the folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if HIDDEN.fullmatch(entry.name):
                _remove_if_abandoned(Path(entry.path))


def why_unwritable(path: Path) -> str | None:
    """Why no file can be written at a path, or None. Folders are not created."""
    folder = path.parent
    if os.path.isdir(path):  # Path.is_dir raises OSError for a name that is too long
        return "it is a folder"
    if not os.path.isdir(folder):
        return f"the folder {str(folder)!r} does not exist"
    return None if os.access(folder, os.W_OK) else f"the folder {str(folder)!r} is read-only"


def why_not_regular(path: Path) -> str | None:
    """Why a path is not a regular file (missing, a folder, a pipe, a device), or None."""
    if not os.path.exists(path):
        return "there is no such file"
    kind = stat.S_IFMT(os.stat(path).st_mode)
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return None if kind == stat.S_IFREG else f"it is {kinds.get(kind, 'a device')}, not a file"


def _stat(path: Path) -> int | None:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None


def _kind_of_target(link: Path) -> int | None:
    """The mode of the device, pipe or socket that a link points to; None for other targets."""
    try:
        mode = os.stat(link).st_mode
    except OSError:  # it points to nothing
        return None
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else mode


def _claim(path: Path, *, replace: bool) -> tuple[Path, int]:
    """Create and lock the hidden file of a target; return its path and descriptor."""
    token = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]
    while True:
        hidden = path.with_name(f".vivace-{token}.tmp")
        try:
            descriptor = os.open(hidden, CREATE, 0o666)
        except FileExistsError:
            if _remove_if_abandoned(hidden):
                continue
            if not replace:
                message = f"another process is writing it, by way of {hidden.name}"
                raise NameInUseError(errno.EEXIST, message) from None
            token = secrets.token_hex(8)
            continue
        if _lock(descriptor) and _is_at(descriptor, hidden):
            return hidden, descriptor
        os.close(descriptor)  # another process removed it before it was locked


def _remove_if_abandoned(hidden: Path) -> bool:
    """Remove a hidden file of an ended process. Returns whether the name is free."""
    try:
        descriptor = os.open(hidden, OPEN_HIDDEN)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        if not _is_ours(os.fstat(descriptor)) or not _lock(descriptor, is_sure=True):
            return False
        if sys.platform == "win32":
            os.close(descriptor)
            descriptor = -1
        elif not _is_at(descriptor, hidden):
            return True
        hidden.unlink()
    except OSError:
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return True


def _is_ours(info: os.stat_result) -> bool:
    if sys.platform == "win32":
        return time.time() - info.st_mtime > FRESH_S
    return stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid()


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _lock(descriptor: int, *, is_sure: bool = False) -> bool:
    """Lock a file. False if another process holds the lock; True on systems without locks."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return not is_sure
    return True


def _move_to_free_name(hidden: Path, path: Path) -> None:
    try:
        os.link(hidden, path)  # unlike a rename, it fails if the path exists
    except FileExistsError:
        raise
    except OSError:  # no hard links; the reserved name keeps other writers away
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "it exists") from None
        os.rename(hidden, path)
    else:
        hidden.unlink()
