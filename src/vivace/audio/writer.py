"""Writes audio files while audio is generated. A file appears under its name when complete."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryFile
from threading import Thread
from typing import BinaryIO

import numpy as np
from numpy.typing import ArrayLike

from vivace.arguments import as_path
from vivace.audio.encode import open_encoder, tags_of
from vivace.audio.file_mark import FileMark, FileSigner
from vivace.audio.formats import format_of
from vivace.disk import AtomicFile, NameInUseError, numbered, why_unwritable
from vivace.errors import AudioError, OutputExistsError


class WorkerThread:
    """Runs calls one after another on a separate thread, where no KeyboardInterrupt is raised.

    `SimpleQueue` is written in C. With a lock written in Python, a KeyboardInterrupt could leave
    the lock held and deadlock both threads.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
        Thread(target=self._run, name=name, daemon=True).start()

    def do(self, call: Callable[[], None]) -> None:
        """Run the call, wait for it, and raise its error."""
        self._calls.put(call)
        while True:
            done, error = self._outcomes.get()
            if done is not call:  # an earlier call whose wait was interrupted
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
            except BaseException as raised:  # raised again in the waiting thread
                error = raised
            self._outcomes.put((call, error))


class FileWriter:
    """Writes an audio file. Leaving the `with` block finishes the file, also after an error.

    Writes run on a separate thread, so that a KeyboardInterrupt cannot corrupt the file.
    """

    def __init__(
        self, claim: AtomicFile, path: Path, sample_rate: int, mark: FileMark | None = None
    ) -> None:
        self.path = path  # as requested; the path of the claim may be the target of a link
        self.num_samples = 0
        self.is_written = False  # whether the finished file has its name
        self._encoder = open_encoder(format_of(path), sample_rate, tags=tags_of(mark))
        self._signer = None if mark is None else mark.signer
        self._is_closed = self._is_broken = False
        self._claim = claim
        self._thread = WorkerThread("vivace-file")

    @property
    def duration_s(self) -> float:
        return self.num_samples / self._encoder.sample_rate

    def write(self, samples: ArrayLike) -> None:
        """Append samples [n], -1 to 1."""
        if self._is_closed or self._is_broken:
            raise AudioError(f"{self.path} is closed; no more audio can be written")
        self._do(lambda: self._write(samples))

    def close(self) -> None:
        """Finish the file and move it to its name. A file without samples is deleted."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._do(self._close)
        finally:
            self._thread.end()

    def discard(self) -> None:
        """Delete the file."""
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
            self._encoder.patch(file)
            if self._signer is not None:
                sign_file(self._signer, file, self._encoder.format.name, self.path.name)
            self._commit()
        finally:
            self._claim.discard()

    def _commit(self) -> None:
        """Move the file to its name, or to the next free name if the name was taken meanwhile."""
        requested = self.path
        for path in numbered(requested):
            try:
                self._claim.commit(path)
            except FileExistsError:
                continue
            self.path, self.is_written = path, True
            break
        if self.path != requested:
            raise AudioError(
                f"{requested} was created by another program meanwhile; the audio is in {self.path}"
            )


def claim_audio_file(path: Path, *, force: bool = False) -> AtomicFile:
    """Reserve the name of an audio file before audio is generated."""
    try:
        target = path.resolve() if force else path  # writes the target of a link, not the link
        return AtomicFile(target, replace=force)
    except NameInUseError as error:
        raise _unwritable(path, error) from error
    except FileExistsError as error:
        raise OutputExistsError(path) from error
    except (OSError, ValueError, RuntimeError) as error:  # e.g. a null byte or circular links
        raise _unwritable(path, error) from error


def claim_free_name(path: Path) -> AtomicFile:
    """Reserve the first free name of path, path-2, path-3 and so on."""
    for candidate in numbered(path):
        try:
            return AtomicFile(candidate, replace=False)
        except FileExistsError:
            continue
        except (OSError, ValueError) as error:
            raise _unwritable(path, error) from error
    raise AssertionError("unreachable: `numbered` is infinite")


def sign_file(signer: FileSigner, file: BinaryIO, format: str, title: str) -> None:
    """Replace the content of an open file by the same content with a signed manifest."""
    file.flush()
    with os.fdopen(os.dup(file.fileno()), "rb") as source, TemporaryFile() as target:
        source.seek(0)
        signer.sign(source, target, format, title)
        target.seek(0)
        file.seek(0)
        file.truncate()
        shutil.copyfileobj(target, file)


def sign_bytes(signer: FileSigner, source: BinaryIO, format: str) -> bytes:
    """The content of `source` with a signed manifest."""
    target = io.BytesIO()
    source.seek(0)
    signer.sign(source, target, format, f"speech.{format}")
    return target.getvalue()


def open_audio_file(
    path: str | os.PathLike[str],
    sample_rate: int,
    *,
    force: bool = False,
    mark: FileMark | None = None,
) -> FileWriter:
    """Open a file for one channel. The extension selects the format; `force` overwrites."""
    path = as_path("path", path, AudioError)
    format = format_of(path)
    open_encoder(format, sample_rate).finish()  # raises before the name is reserved
    if mark is not None:
        mark.check_format(format)
    return FileWriter(claim_audio_file(path, force=force), path, sample_rate, mark)


def write_audio(
    path: str | os.PathLike[str],
    samples: ArrayLike,
    sample_rate: int,
    *,
    force: bool = True,
    mark: FileMark | None = None,
) -> Path:
    """Write one channel, -1 to 1, completely or not at all. The extension selects the format.

    An existing file is replaced; without `force`, it raises OutputExistsError.
    """
    with open_audio_file(path, sample_rate, force=force, mark=mark) as file:
        file.write(samples)
        if not file.num_samples:
            raise AudioError(f"{file.path}: there are no samples to write")
    return Path(path)


def _unwritable(path: Path, error: Exception) -> AudioError:
    reason = why_unwritable(path) if isinstance(error, FileNotFoundError) else None
    return AudioError(f"cannot write {path}: {reason or getattr(error, 'strerror', None) or error}")
