"""Decodes untrusted audio in sandboxed child processes, which contain faults of the decoders.

Children are started on demand and reused. A child confines itself, reports how, and then serves
requests: encoded bytes on its stdin, samples on its stdout, both with lengths and JSON. A child
that fails is replaced. When the parent ends in any way, its children reach the end of stdin and
exit.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np

from vivace.audio.confine import Confinement, confine, limit_cpu
from vivace.audio.decode import AudioLimits, Decoded, decode_compressed
from vivace.audio.encode import import_package
from vivace.errors import AudioError

CPU_LIMIT_S = 5.0  # CPU time for one recording
LIMIT_S = 30.0  # wall-clock time; much longer, so that a loaded machine does not fail recordings
START_LIMIT_S = 120.0  # wall-clock time for a child's imports
MAX_CHILDREN = 4
PACKAGES = ("soundfile", "av")  # those that decode; a confined child can import nothing
MAX_HEAD_BYTES = 4_096
LENGTHS = struct.Struct("<II")  # of the JSON head and of the bytes that follow it
KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMPDIR")
SINGLE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
START = "import sys; sys.path[:] = sys.argv[1:]; from vivace.audio.sandbox import serve; serve()"


# The parent's side


def child_command() -> list[str]:
    """Isolated from the environment and the working folder, with the parent's packages."""
    return [sys.executable, "-I", "-c", START, *filter(None, sys.path)]


class Sandbox:
    """A small pool of decoding processes; thread-safe."""

    def __init__(
        self,
        *,
        command: Sequence[str] | None = None,
        limit_s: float = LIMIT_S,
        max_children: int = MAX_CHILDREN,
    ) -> None:
        self._command, self._limit_s, self._max_children = command, limit_s, max_children
        self._idle: list[_Child] = []
        self._reset()

    def decode(self, content: bytes, limits: AudioLimits) -> Decoded:
        """`decode_compressed` in a child; a crash there is an AudioError here."""
        with self._free:
            child = self._borrow()
            try:
                head, body = child.ask(dataclasses.asdict(limits), content, limits, self._limit_s)
                decoded = _check_answer(head, body, limits)
            except _BrokenChildError as error:
                child.end()
                raise AudioError(str(error)) from error
            except BaseException:
                child.end()
                raise
            self._give_back(child)
        if isinstance(decoded, AudioError):
            raise decoded
        return decoded

    def confinement(self) -> Confinement:
        """How a child is confined on this system; starts one where none is idle."""
        with self._free:
            child = self._borrow()
            self._give_back(child)
        return child.confinement

    def close(self) -> None:
        """End the idle children; a later `decode` starts new ones."""
        with self._lock:
            children, self._idle = self._idle, []
        for child in children:
            child.end()

    def _reset(self) -> None:
        self._free = threading.BoundedSemaphore(self._max_children)
        self._lock = threading.Lock()
        self._idle = []

    def _borrow(self) -> _Child:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.process.poll() is None:
                    return child
                child.end()
        return _Child(self._command or child_command())

    def _give_back(self, child: _Child) -> None:
        with self._lock:
            self._idle.append(child)


class _BrokenChildError(Exception):
    """The child died or broke the protocol; it is not reused."""


class _Child:
    def __init__(self, command: Sequence[str]) -> None:
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=kept | SINGLE_THREAD,
                start_new_session=True,  # Ctrl-C must not reach it
            )
        except OSError as error:
            raise _no_start(error.strerror or str(error)) from error
        try:
            with self._deadline(START_LIMIT_S):
                head, _ = _receive(self._stdout, 0)
            self.confinement = Confinement(**head)
        except (_BrokenChildError, TypeError) as error:
            self.end()
            raise _no_start("it ended before it was ready") from error
        except BaseException:
            self.end()
            raise

    @property
    def _stdout(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def ask(
        self, head: dict[str, Any], body: bytes, limits: AudioLimits, limit_s: float
    ) -> tuple[dict[str, Any], bytes]:
        assert self.process.stdin is not None
        with self._deadline(limit_s):
            _send(self.process.stdin, head, body)
            return _receive(self._stdout, limits.max_decoded_bytes)

    @contextlib.contextmanager
    def _deadline(self, limit_s: float) -> Iterator[None]:
        """Kill the child after `limit_s`; any failure is a _BrokenChildError."""
        is_late = threading.Event()

        def stop() -> None:
            is_late.set()
            self.process.kill()

        watch = threading.Timer(limit_s, stop)
        watch.daemon = True
        watch.start()
        try:
            yield
        except (OSError, EOFError, ValueError) as error:
            if is_late.is_set():
                raise _BrokenChildError(
                    f"cannot be decoded: it takes longer than {limit_s:g} s"
                ) from error
            raise _BrokenChildError(f"cannot be decoded: {self._last_words()}") from error
        finally:
            watch.cancel()
            watch.join()  # so that it never kills a child that has gone back to the pool
            if is_late.is_set():
                self.end()

    def _last_words(self) -> str:
        self.end()
        if self.process.returncode == -getattr(signal, "SIGXCPU", 0):
            return f"it takes longer than {CPU_LIMIT_S:g} s of a processor"
        return "the decoder failed on it"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # bytes that a dead child will not take
                pipe.close()


def _no_start(reason: str) -> AudioError:
    return AudioError(
        f"the process that decodes audio does not start: {reason}; WAV is read without it"
    )


def _check_answer(head: dict[str, Any], body: bytes, limits: AudioLimits) -> Decoded | AudioError:
    # A compromised child may answer anything.
    sample_rate, error = head.get("sample_rate"), head.get("error")
    if isinstance(error, str):
        return AudioError("".join(filter(str.isprintable, error)))
    if not isinstance(sample_rate, int) or len(body) % 4:
        raise _BrokenChildError("cannot be decoded: the decoder gave no sensible answer")
    limits.check_format(sample_rate, 1)
    return np.frombuffer(body, "<f4").astype(np.float32), sample_rate


# Both sides


def _send(pipe: IO[bytes], head: dict[str, Any], body: bytes) -> None:
    text = json.dumps(head).encode()
    pipe.write(LENGTHS.pack(len(text), len(body)) + text)
    pipe.write(body)
    pipe.flush()


def _receive(pipe: IO[bytes], max_body_bytes: int) -> tuple[dict[str, Any], bytes]:
    num_head, num_body = LENGTHS.unpack(_read(pipe, LENGTHS.size))
    if num_head > MAX_HEAD_BYTES or num_body > max_body_bytes:
        raise ValueError("the other side sends more than was agreed")
    head = json.loads(_read(pipe, num_head))
    if not isinstance(head, dict):
        raise ValueError("the head is not an object")
    return head, _read(pipe, num_body)


def _read(pipe: IO[bytes], num_bytes: int) -> bytes:
    content = pipe.read(num_bytes)
    if len(content) < num_bytes:
        raise EOFError
    return content


# The child's side


def serve() -> None:
    """Main loop of a child: report its confinement, then serve requests from stdin on stdout."""
    for package in PACKAGES:
        with contextlib.suppress(AudioError):  # each request will get the error
            import_package(package)
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not corrupt the answer; stderr is /dev/null
    _send(answers, dataclasses.asdict(confine()), b"")
    while True:
        try:
            head, content = _receive(requests, sys.maxsize)
        except EOFError:
            return
        limit_cpu(CPU_LIMIT_S)
        _send(answers, *_answer(content, AudioLimits(**head)))


def _answer(content: bytes, limits: AudioLimits) -> tuple[dict[str, Any], bytes]:
    try:
        samples, sample_rate = decode_compressed(content, limits)
    except AudioError as error:
        return {"error": str(error)[:500]}, b""
    except MemoryError:
        return {"error": "cannot be decoded: it takes too much memory"}, b""
    return {"sample_rate": sample_rate}, samples.astype("<f4").tobytes()


SANDBOX = Sandbox()  # shared by the whole process
atexit.register(SANDBOX.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SANDBOX._reset)  # a fork does not own the pool
