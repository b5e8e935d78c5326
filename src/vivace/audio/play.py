"""Plays audio while it is generated: through sounddevice, or a player program of the system.

A `Player` plays on a thread of its own, so that generation and playback do not block each other.
`find_output` returns the first output that works.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from threading import Event, Thread, Timer
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vivace.audio.encode import open_encoder
from vivace.audio.writer import open_audio_file
from vivace.errors import AudioError

BLOCK_S = 0.05  # the longest that `stop` takes to have an effect
MAX_WAITING = 64  # chunks buffered and not yet played
PROBE_S = 0.1  # seconds of silence played to test an output
PROBE_RATE = 24_000
PROBE_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 0.2
INSTALL = "pip install 'vivace[play]'"

Samples = NDArray[np.float32]


class Device(Protocol):
    """An audio output: `write` blocks while its buffer is full, `finish` until all is played."""

    def write(self, samples: Samples) -> None: ...

    def finish(self) -> None: ...

    def stop(self) -> None:
        """Stop playback and release the device; always the last call."""


@dataclass(frozen=True, slots=True)
class Output:
    """An audio output that was tested."""

    name: str
    open: Callable[[int], Device]  # of a sample rate

    def player(self, sample_rate: int) -> Player:
        return Player(self.open(sample_rate), sample_rate)


@dataclass(frozen=True, slots=True)
class Program:
    """An external player program and its command line."""

    name: str
    arguments: tuple[str, ...] = ()
    format: str | None = "pcm"  # on its stdin; None: it plays files only
    has_exit_code: bool = True  # else it reports a failure on stderr only


PROGRAMS = (
    Program("paplay", ("--raw", "--format=s16le", "--channels=1", "--rate={rate}")),
    Program("aplay", ("-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", "{rate}")),
    Program(
        "ffplay",
        ("-nodisp", "-autoexit", "-loglevel", "error", "-i", "-"),
        format="wav",
        has_exit_code=False,
    ),
    Program("afplay", format=None),
)


class Player:
    """Plays samples in the background; leaving its `with` block waits until all are played.

    A failure of the device is raised as an AudioError by the next `write` or by `finish`.
    """

    def __init__(self, device: Device, sample_rate: int) -> None:
        self._device = device
        self._block = max(1, round(BLOCK_S * sample_rate))
        self._waiting: Queue[Samples | None] = Queue(MAX_WAITING)
        self._is_stopped = Event()
        self._error: Exception | None = None
        self._thread = Thread(target=self._play, name="vivace-play", daemon=True)
        self._thread.start()

    def write(self, samples: Samples) -> None:
        """Queue samples; blocks only while `MAX_WAITING` chunks are queued."""
        self._raise_error()
        self._waiting.put(samples)

    def finish(self) -> None:
        """Wait until everything has been played."""
        self._waiting.put(None)
        while self._thread.is_alive():
            self._thread.join(BLOCK_S)  # with a time, so that Ctrl-C is heard on every system
        self._device.stop()
        self._raise_error()

    def stop(self) -> None:
        """Stop at once and drop what is queued."""
        self._is_stopped.set()
        self._thread.join(STOP_TIMEOUT_S)
        self._device.stop()

    def __enter__(self) -> Player:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.stop()

    def _play(self) -> None:
        while not self._is_stopped.is_set():
            try:
                samples = self._waiting.get(timeout=BLOCK_S)
            except Empty:
                continue
            try:
                if self._error is None:
                    self._play_chunk(samples)
            except Exception as error:  # PortAudio's errors are plain Exceptions
                self._error = error
            if samples is None:
                return

    def _play_chunk(self, samples: Samples | None) -> None:
        if samples is None:
            self._device.finish()
            return
        for start in range(0, len(samples), self._block):
            if self._is_stopped.is_set():
                return
            self._device.write(samples[start : start + self._block])

    def _raise_error(self) -> None:
        if self._error is not None:
            raise AudioError(f"playing broke off: {self._error}") from self._error


class SoundDevice:
    """PortAudio, by way of the extra `play`."""

    def __init__(self, sample_rate: int) -> None:
        with _muted_libraries():
            self._stream = _import_sounddevice().OutputStream(
                samplerate=sample_rate, channels=1, dtype="float32"
            )
            self._stream.start()

    def write(self, samples: Samples) -> None:
        self._stream.write(np.ascontiguousarray(samples.reshape(-1, 1)))

    def finish(self) -> None:
        self._stream.stop()

    def stop(self) -> None:
        self._stream.close(ignore_errors=True)  # what it still holds is dropped


class PipedProgram:
    """A player program that reads samples from its stdin."""

    def __init__(self, program: Program, sample_rate: int) -> None:
        assert program.format is not None
        self._program = program
        self._encoder = open_encoder(program.format, sample_rate)
        arguments = [argument.format(rate=sample_rate) for argument in program.arguments]
        self._run = _Run([program.name, *arguments])

    def write(self, samples: Samples) -> None:
        self._run.send(self._encoder.encode(samples))

    def finish(self) -> None:
        self._run.send(self._encoder.finish())
        self._run.wait(is_silent_if_well=not self._program.has_exit_code)

    def stop(self) -> None:
        self._run.kill()


class FileProgram:
    """A player program that needs a complete file: playback begins after the last sample."""

    def __init__(self, program: Program, sample_rate: int) -> None:
        self._program = program
        self._folder = tempfile.TemporaryDirectory(prefix="vivace-")
        self._path = Path(self._folder.name, "speech.wav")
        self._file = open_audio_file(self._path, sample_rate)
        self._run: _Run | None = None

    def write(self, samples: Samples) -> None:
        self._file.write(samples)

    def finish(self) -> None:
        self._file.close()
        if self._path.exists():  # a file without a sample is not kept
            self._run = _Run([self._program.name, str(self._path)])
            self._run.wait()

    def stop(self) -> None:
        if self._run is not None:
            self._run.kill()
        self._file.close()
        self._folder.cleanup()


class _Run:
    """A running program, in a session of its own so that Ctrl-C does not reach it."""

    def __init__(self, command: list[str]) -> None:
        self._is_killed = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `kill` closes it
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            bufsize=0,
            start_new_session=True,
        )

    def send(self, content: bytes) -> None:
        assert self._process.stdin is not None
        rest = memoryview(content)
        try:
            while len(rest):
                rest = rest[self._process.stdin.write(rest) :]
        except OSError as error:  # it has ended; `wait` raises its own message
            self.wait()
            raise AudioError("it ended too soon") from error

    def wait(self, *, is_silent_if_well: bool = False) -> None:
        """Wait for it to end; a failure is an AudioError with its own message."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait()
        if self._is_killed:
            raise AudioError("it did not answer and was stopped")
        self._errors.seek(0)
        words = " ".join(self._errors.read(300).decode("utf-8", "replace").split())
        if code or (words and is_silent_if_well):
            raise AudioError(words or f"it ended with exit code {code}")

    def kill(self) -> None:
        self._is_killed = True
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._errors.close()


def find_output() -> Output:
    """The first output that plays a short silence without an error, or an AudioError."""
    refusals = []
    for name, open_device in _candidates():
        try:
            _probe(open_device)
        except Exception as error:  # the next output may work
            refusals.append(f"{name}: {error}")
        else:
            return Output(name, open_device)
    raise AudioError(f"nothing here can play sound ({'; '.join(refusals)}); {INSTALL}")


def _candidates() -> Iterator[tuple[str, Callable[[int], Device]]]:
    yield "sounddevice", SoundDevice
    for program in PROGRAMS:
        kind = FileProgram if program.format is None else PipedProgram
        if shutil.which(program.name) is not None:
            yield program.name, partial(kind, program)


def _probe(open_device: Callable[[int], Device]) -> None:
    device = open_device(PROBE_RATE)
    deadline = Timer(PROBE_TIMEOUT_S, device.stop)
    deadline.daemon = True
    deadline.start()
    try:
        device.write(np.zeros(round(PROBE_S * PROBE_RATE), np.float32))
        device.finish()
    finally:
        deadline.cancel()
        device.stop()


@contextlib.contextmanager
def _muted_libraries() -> Iterator[None]:
    """Hide what ALSA, JACK and PortAudio print on stderr; exceptions say enough."""
    try:
        saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # stderr is closed
        yield
        return
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def _import_sounddevice() -> Any:
    try:
        import sounddevice  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise AudioError("not installed") from error
    except OSError as error:  # the package without the PortAudio library
        raise AudioError(str(error)) from error
    return sounddevice
