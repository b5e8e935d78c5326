"""A voice library in an object store or on another machine, through fsspec: `s3://bucket/voices`.

The store has one file per voice, like a local folder. A file is copied to this machine when it is
needed and when its content has changed. All servers see voices that are added or removed.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

from vivace.disk import write_whole
from vivace.errors import IntegrationError, VoiceStoreError
from vivace.voices.library import VoiceLibrary, names_in
from vivace.voices.voice import MAX_FILE_BYTES

log = logging.getLogger(__name__)

DIGESTS = ("ETag", "etag", "md5Hash", "content_md5", "generation")  # of a file's content
DATES = ("mtime", "LastModified", "last_modified", "created")


def open_library(where: Path | str | None) -> VoiceLibrary:
    """Open the library in a folder (None: the user's own) or at a URL that fsspec supports."""
    if "://" in str(where):
        return SharedLibrary(str(where))
    return VoiceLibrary(None if where is None else Path(where))


class SharedLibrary(VoiceLibrary):
    """Voices by name in a store that several servers share.

    While the store is unreachable, copied voices remain usable; others raise VoiceStoreError.
    """

    def __init__(self, url: str) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="vivace-voices-")))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._url, self._lock = url, Lock()
        # Versions of each copied file; a store may report a version in two forms.
        self._versions: dict[str, set[str]] = {}
        try:
            from fsspec.core import url_to_fs

            # No cache of listings, because other servers change the store.
            self._store, self._root = url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise IntegrationError(f"the voices at {url} cannot be reached: {error}") from error

    def entries(self, suffix: str) -> Iterator[str]:
        try:
            self._store.invalidate_cache()
            listed = self._store.ls(self._root, detail=True)
        except FileNotFoundError:
            listed = []
        except Exception as error:
            log.warning("%s cannot be listed: %s", self._url, error)
            yield from super().entries(suffix)
            return
        found = {str(info["name"]).rpartition("/")[2]: info for info in listed}
        for name in names_in(sorted(found), suffix):
            if self._copy(f"{name}{suffix}", found[f"{name}{suffix}"]):
                yield name

    def has_file(self, file_name: str) -> bool:
        try:
            self._store.invalidate_cache()
            info = self._store.info(self._at(file_name))
        except FileNotFoundError:
            self._remove_copy(file_name)
            return False
        except Exception as error:
            if self._versions.get(file_name):
                log.warning("%s is unreachable; using an earlier copy: %s", self._url, error)
                return True
            raise self._failure("be read", error) from error
        return self._copy(file_name, info)

    def write_file(self, file_name: str, content: bytes, *, replace: bool) -> None:
        mode = "overwrite" if replace else "create"
        try:
            self._store.makedirs(self._root, exist_ok=True)
            self._store.pipe_file(self._at(file_name), content, mode=mode)
        except FileExistsError:
            raise
        except Exception as error:
            raise self._failure("be written", error) from error

    def remove_file(self, file_name: str) -> None:
        try:
            self._store.rm_file(self._at(file_name))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._failure("be changed", error) from error
        finally:
            self._remove_copy(file_name)

    def _at(self, file_name: str) -> str:
        return f"{self._root}/{file_name}"

    def _copy(self, file_name: str, info: dict[str, Any]) -> bool:
        """Copy a file unless the copy is current. Returns False if it is missing or too large."""
        if info.get("type") != "file" or (info.get("size") or 0) > MAX_FILE_BYTES:
            return False
        version = _version(info)
        with self._lock:  # of two concurrent copies, the later content stays
            known = self._versions.setdefault(file_name, set())
            if version in known:
                return True
            try:
                content = self._store.cat_file(self._at(file_name))
            except FileNotFoundError:  # another server removed the file
                return False
            except Exception as error:
                raise self._failure("be read", error) from error
            path = self.folder / file_name
            if not known or path.read_bytes() != content:
                write_whole(path, content, replace=True)
                known.clear()
            known.add(version)
        return True

    def _remove_copy(self, file_name: str) -> None:
        with self._lock:
            self._versions.pop(file_name, None)
            (self.folder / file_name).unlink(missing_ok=True)

    def _failure(self, what: str, error: Exception) -> VoiceStoreError:
        log.error("%s cannot %s: %s", self._url, what, error)
        return VoiceStoreError(f"the voice store cannot {what} just now; try again")


def _version(info: dict[str, Any]) -> str:
    """A value that changes with the content: the store's digest if there is one."""
    digest = next((info[key] for key in DIGESTS if info.get(key)), None)
    dates = [str(info[key]) for key in DATES if info.get(key)]
    return str(digest or (info.get("size"), dates))
