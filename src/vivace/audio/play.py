"""Plays audio while it is generated, through sounddevice or a player program of the system.

A `Player` plays on its own thread, so that generation and playback do not block each other.
`find_output` returns the first sound output that works.
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

from vivace.audio.encode import open_encoder
from vivace.audio.wav import Samples
from vivace.audio.writer import write_audio
from vivace.errors import AudioError, install_command

BLOCK_S = 0.05  # the maximum delay of `stop`
MAX_QUEUED = 64  # chunks
PROBE_S = 0.1  # silence played to test an output
PROBE_RATE = 24_000
PROBE_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 0.2


class SoundOutput(Protocol):
    """An open sound output. `write` blocks while the buffer is full, `finish` until it is empty."""

    def write(self, samples: Samples) -> None: ...

    def finish(self) -> None: ...

    def stop(self) -> None:
        """Stop playback and release the output; always the last call."""


@dataclass(frozen=True, slots=True)
class Loudspeaker:
    """A sound output that was tested."""

    name: str
    open: Callable[[int], SoundOutput]  # takes the sample rate

    def player(self, sample_rate: int) -> Player:
        return Player(self.open(sample_rate), sample_rate)


@dataclass(frozen=True, slots=True)
class Program:
    """A player program of the system and its command line."""

    name: str
    arguments: tuple[str, ...] = ()
    format: str | None = "pcm"  # of stdin; None: the program plays files only
    has_exit_code: bool = True  # False: failures are reported on stderr only


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
    """Plays samples in the background. Leaving the `with` block waits until all are played.

    The next `write` or `finish` raises a failure of the output as AudioError.
    """

    def __init__(self, output: SoundOutput, sample_rate: int) -> None:
        self._output = output
        self._block = max(1, round(BLOCK_S * sample_rate))
        self._queue: Queue[Samples | None] = Queue(MAX_QUEUED)  # None: the end
        self._is_stopped = Event()
        self._error: Exception | None = None
        self._thread = Thread(target=self._play, name="vivace-play", daemon=True)
        self._thread.start()

    def write(self, samples: Samples) -> None:
        """Queue samples. Blocks while `MAX_QUEUED` chunks are queued."""
        self._raise_error()
        self._queue.put(samples)

    def finish(self) -> None:
        """Wait until all samples are played."""
        self._queue.put(None)
        while self._thread.is_alive():
            self._thread.join(BLOCK_S)  # a join without a timeout ignores Ctrl-C on some systems
        self._output.stop()
        self._raise_error()

    def stop(self) -> None:
        """Stop playback now and drop queued samples."""
        self._is_stopped.set()
        self._thread.join(STOP_TIMEOUT_S)
        self._output.stop()

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
                samples = self._queue.get(timeout=BLOCK_S)
            except Empty:
                continue
            try:
                if self._error is None:
                    self._play_chunk(samples)
            except Exception as error:  # PortAudio raises plain Exceptions
                self._error = error
            if samples is None:
                return

    def _play_chunk(self, samples: Samples | None) -> None:
        if samples is None:
            self._output.finish()
            return
        for start in range(0, len(samples), self._block):
            if self._is_stopped.is_set():
                return
            self._output.write(samples[start : start + self._block])

    def _raise_error(self) -> None:
        if self._error is not None:
            raise AudioError(f"playback failed: {self._error}") from self._error


class SoundDeviceOutput:
    """Plays through PortAudio; needs the extra `play`."""

    def __init__(self, sample_rate: int) -> None:
        with _silenced_stderr():
            self._stream = _import_sounddevice().OutputStream(
                samplerate=sample_rate, channels=1, dtype="float32"
            )
            self._stream.start()

    def write(self, samples: Samples) -> None:
        self._stream.write(np.ascontiguousarray(samples.reshape(-1, 1)))

    def finish(self) -> None:
        self._stream.stop()

    def stop(self) -> None:
        self._stream.close(ignore_errors=True)  # drops buffered samples


class PipedProgramOutput:
    """Plays through a program that reads samples from stdin."""

    def __init__(self, program: Program, sample_rate: int) -> None:
        assert program.format is not None
        self._program = program
        self._encoder = open_encoder(program.format, sample_rate)
        arguments = [argument.format(rate=sample_rate) for argument in program.arguments]
        self._process = _PlayerProcess([program.name, *arguments])

    def write(self, samples: Samples) -> None:
        self._process.send(self._encoder.encode(samples))

    def finish(self) -> None:
        self._process.send(self._encoder.finish())
        self._process.wait(has_exit_code=self._program.has_exit_code)

    def stop(self) -> None:
        self._process.kill()


class FileProgramOutput:
    """Plays through a program that needs a complete file. Playback starts after the last sample."""

    def __init__(self, program: Program, sample_rate: int) -> None:
        self._program, self._sample_rate = program, sample_rate
        self._samples: list[Samples] = []
        self._process: _PlayerProcess | None = None

    def write(self, samples: Samples) -> None:
        self._samples.append(samples)

    def finish(self) -> None:
        samples = np.concatenate([np.zeros(0, np.float32), *self._samples])
        if not len(samples):
            return
        with tempfile.TemporaryDirectory(prefix="vivace-") as folder:
            path = write_audio(Path(folder, "speech.wav"), samples, self._sample_rate)
            self._process = _PlayerProcess([self._program.name, str(path)])
            self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()


class _PlayerProcess:
    """A running player program. It has its own session, so that Ctrl-C does not interrupt it."""

    def __init__(self, command: list[str]) -> None:
        self._is_killed = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `kill`
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._stdin = self._process.stdin

    def send(self, content: bytes) -> None:
        rest = memoryview(content)
        try:
            while len(rest):
                rest = rest[self._stdin.write(rest) :]
        except OSError as error:  # the program exited; `wait` raises its error message
            self.wait()
            raise AudioError("the player program exited too early") from error

    def wait(self, *, has_exit_code: bool = True) -> None:
        """Wait until the program exits. Raise AudioError with its stderr if it failed."""
        self._stdin.close()
        code = self._process.wait()
        if self._is_killed:
            raise AudioError("the player program did not respond and was stopped")
        self._errors.seek(0)
        # The first line names the cause. ALSA adds a line for each function that passed it on.
        message = self._errors.read(300).decode("utf-8", "replace").strip().partition("\n")[0]
        if code or (message and not has_exit_code):
            raise AudioError(message or f"the player program failed with exit code {code}")

    def kill(self) -> None:
        self._is_killed = True
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()
        self._stdin.close()
        self._errors.close()


def find_output() -> Loudspeaker:
    """The first output that plays a short silence without an error. AudioError if none does."""
    failures = []
    for name, open_output in _candidates():
        try:
            _probe(open_output)
        except Exception as error:  # the next output may work
            failures.append(f"{name}: {error}")
        else:
            return Loudspeaker(name, open_output)
    raise AudioError(
        f"no sound output works ({'; '.join(failures)}); run: {install_command('play')}"
    )


def _candidates() -> Iterator[tuple[str, Callable[[int], SoundOutput]]]:
    yield "sounddevice", SoundDeviceOutput
    for program in PROGRAMS:
        kind = FileProgramOutput if program.format is None else PipedProgramOutput
        if shutil.which(program.name) is not None:
            yield program.name, partial(kind, program)


def _probe(open_output: Callable[[int], SoundOutput]) -> None:
    output = open_output(PROBE_RATE)
    timer = Timer(PROBE_TIMEOUT_S, output.stop)
    timer.daemon = True
    timer.start()
    try:
        output.write(np.zeros(round(PROBE_S * PROBE_RATE), np.float32))
        output.finish()
    finally:
        timer.cancel()
        output.stop()


@contextlib.contextmanager
def _silenced_stderr() -> Iterator[None]:
    """Hide messages of ALSA, JACK and PortAudio. Failures are raised as exceptions."""
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
    except OSError as error:  # the PortAudio library is missing
        raise AudioError(str(error)) from error
    return sounddevice
