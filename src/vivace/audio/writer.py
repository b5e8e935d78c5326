"""Writes audio files while audio is generated; they appear under their name when complete."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import numpy as np
from numpy.typing import ArrayLike

from vivace.audio.encode import format_of, open_encoder
from vivace.disk import AtomicFile, NameInUseError, numbered
from vivace.errors import AudioError, OutputExistsError


class OwnThread:
    """Runs calls one after another on a thread of its own, where no KeyboardInterrupt is raised.

    It uses `SimpleQueue`, written in C: a KeyboardInterrupt inside a lock written in Python could
    leave it locked and deadlock both threads.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
        Thread(target=self._run, name=name, daemon=True).start()

    def do(self, call: Callable[[], None]) -> None:
        """Run the call and wait for it; its error is raised here."""
        self._calls.put(call)
        while True:
            done, error = self._outcomes.get()
            if done is not call:  # an earlier call, whose wait was interrupted
                continue
            if error is not None:
                raise error
            return

    def end(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            error = None
            try:
                call()
            except BaseException as raised:  # re-raised in the waiting thread
                error = raised
            self._outcomes.put((call, error))


class FileWriter:
    """An audio file being written; leaving its `with` block finishes it, also after an error.

    Writes run on a thread of their own, so that a KeyboardInterrupt cannot corrupt the file.
    """

    def __init__(self, claim: AtomicFile, path: Path, sample_rate: int) -> None:
        self.path = path  # as it was asked for; the claim's may be what a link leads to
        self.num_samples = 0
        self._encoder = open_encoder(format_of(path), sample_rate)
        self._is_closed = self._is_broken = False
        self._claim = claim
        self._thread = OwnThread("vivace-file")

    @property
    def duration_s(self) -> float:
        return self.num_samples / self._encoder.sample_rate

    def write(self, samples: ArrayLike) -> None:
        """Append samples [n], -1 to 1."""
        if self._is_closed or self._is_broken:
            raise AudioError(f"{self.path} is closed and cannot take more audio")
        self._do(lambda: self._write(samples))

    def close(self) -> None:
        """Finish the file and move it to its name; a file without samples is deleted."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._do(self._close)
        finally:
            self._thread.end()

    def discard(self) -> None:
        """Delete it."""
        self._is_broken = True
        self.close()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, action: Callable[[], None]) -> None:
        try:
            self._thread.do(action)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _write(self, samples: ArrayLike) -> None:
        content = self._encoder.encode(samples)
        try:
            self._claim.file.write(content)
        except OSError:
            self._is_broken = True
            raise
        self.num_samples += np.size(samples)

    def _close(self) -> None:
        try:
            content = self._encoder.finish()
            if self._is_broken or not self.num_samples:
                return
            file = self._claim.file
            file.write(content)
            for position, patch in self._encoder.patches:
                file.seek(position)
                file.write(patch)
            self._commit()
        finally:
            self._claim.discard()

    def _commit(self) -> None:
        """Move it to its name; if that was taken meanwhile, to the next free one."""
        asked = self.path
        for path in numbered(asked):
            try:
                self._claim.commit(path)
            except FileExistsError:
                continue
            self.path = path
            break
        if self.path != asked:
            raise AudioError(f"{asked} was made by another program meanwhile; see {self.path}")


def claim_audio_file(path: Path, *, force: bool = False) -> AtomicFile:
    """Reserve the name of an audio file before there is audio."""
    try:
        target = path.resolve() if force else path  # through a link, so that the link stays
        return AtomicFile(target, replace=force)
    except NameInUseError as error:
        raise _unwritable(path, error) from error
    except FileExistsError as error:
        raise OutputExistsError(path) from error
    except (OSError, ValueError, RuntimeError) as error:  # a null byte; links in a circle
        raise _unwritable(path, error) from error


def claim_free_name(path: Path) -> AtomicFile:
    """Reserve the first of path, path-2, path-3 and so on that is neither taken nor reserved."""
    for candidate in numbered(path):
        try:
            return AtomicFile(candidate, replace=False)
        except FileExistsError:
            continue
        except (OSError, ValueError) as error:
            raise _unwritable(path, error) from error
    raise AssertionError("numbers do not end")


def open_audio_file(
    path: str | os.PathLike[str], sample_rate: int, *, force: bool = False
) -> FileWriter:
    """A file to write one channel into; the extension picks the format, `force` overwrites."""
    path = Path(path)
    open_encoder(format_of(path), sample_rate).finish()  # what cannot be encoded claims no name
    return FileWriter(claim_audio_file(path, force=force), path, sample_rate)


def write_audio(
    path: str | os.PathLike[str], samples: ArrayLike, sample_rate: int, *, force: bool = True
) -> Path:
    """Write one channel, -1 to 1; the extension picks the format. All of it or nothing.

    A file that exists is replaced, or refused without `force`.
    """
    with open_audio_file(path, sample_rate, force=force) as file:
        file.write(samples)
        if not file.num_samples:
            raise AudioError(f"there are no samples to write to {file.path}")
    return Path(path)


def _unwritable(path: Path, error: Exception) -> AudioError:
    return AudioError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}")
