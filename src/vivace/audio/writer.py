"""Audio files that grow as audio arrives and appear only when they are whole.

Bytes go into a hidden file beside the target, which takes its place at the end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import TracebackType

import numpy as np
from numpy.typing import ArrayLike

from vivace.audio.encode import format_of, open_encoder
from vivace.errors import AudioError


class Replacement:
    """A file that will stand where `path` is; until `commit`, what was there stays (OSError)."""

    def __init__(self, path: Path) -> None:
        self._target = path.resolve()  # through a link, so that the link stays
        if self._target.exists() and not self._target.is_file():
            raise OSError("it exists and is not a file")
        self._temporary = self._target.with_name(f".vivace-{secrets.token_hex(8)}.tmp")
        self.file = self._temporary.open("xb")

    def commit(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self._temporary, self._target)

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # what it still buffers may find the disk full
            self.file.close()
        self._temporary.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Make `path` a file of exactly this content; a failure leaves what was there (OSError)."""
    replacement = Replacement(path)
    try:
        replacement.file.write(content)
        replacement.commit()
    except BaseException:
        replacement.discard()
        raise


class OwnThread:
    """Runs one call after another on a thread of its own, where no Ctrl-C reaches them.

    It speaks through queues written in C: a Ctrl-C that falls into a lock of Python's own leaves it
    locked, and both sides would wait for ever.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
        Thread(target=self._run, name=name, daemon=True).start()

    def do(self, call: Callable[[], None]) -> None:
        """Come back when it is done; its error is raised here."""
        self._calls.put(call)
        while True:
            done, error = self._outcomes.get()
            if done is not call:  # of a call that was not waited for, because of a Ctrl-C
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
            except BaseException as raised:  # it belongs to whoever waits
                error = raised
            self._outcomes.put((call, error))


class FileWriter:
    """An audio file being written: as a context manager it is finished however the block ends.

    Work is done on a thread of its own, where no Ctrl-C can fall between two bytes.
    """

    def __init__(self, path: Path, sample_rate: int, *, force: bool = False) -> None:
        self.path = path
        self.num_samples = 0
        self._encoder = open_encoder(format_of(path), sample_rate)
        self._is_closed = self._is_broken = False
        if not force and os.path.lexists(path):
            raise AudioError(f"{path} exists; choose another name, or ask to overwrite it")
        try:
            self._replacement = Replacement(path)
        except (OSError, ValueError, RuntimeError) as error:  # a null byte; links in a circle
            raise self._unwritable(error) from error
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
        """Finish the file and put it in place; one without a sample is not kept."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._do(self._close)
        finally:
            self._thread.end()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _do(self, action: Callable[[], None]) -> None:
        try:
            self._thread.do(action)
        except OSError as error:
            raise self._unwritable(error) from error

    def _write(self, samples: ArrayLike) -> None:
        content = self._encoder.encode(samples)
        try:
            self._replacement.file.write(content)
        except OSError:
            self._is_broken = True
            raise
        self.num_samples += np.size(samples)

    def _close(self) -> None:
        try:
            content = self._encoder.finish()
            if self._is_broken or not self.num_samples:
                self._replacement.discard()
                return
            file = self._replacement.file
            file.write(content)
            for position, patch in self._encoder.patches:
                file.seek(position)
                file.write(patch)
            self._replacement.commit()
        except BaseException:
            self._replacement.discard()
            raise

    def _unwritable(self, error: Exception) -> AudioError:
        return AudioError(f"cannot write {self.path}: {getattr(error, 'strerror', None) or error}")


def open_audio_file(
    path: str | os.PathLike[str], sample_rate: int, *, force: bool = False
) -> FileWriter:
    """A file to write one channel into; the extension picks the format, `force` overwrites."""
    return FileWriter(Path(path), sample_rate, force=force)


def write_audio(path: str | os.PathLike[str], samples: ArrayLike, sample_rate: int) -> Path:
    """Write one channel, -1 to 1; the extension picks the format. All of it or nothing."""
    with open_audio_file(path, sample_rate, force=True) as file:
        file.write(samples)
        if not file.num_samples:
            raise AudioError(f"there are no samples to write to {file.path}")
    return file.path
