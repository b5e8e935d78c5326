"""Decodes untrusted audio in sandboxed child processes, which isolate crashes of the decoders.

Children are started on demand and reused. A child confines itself, reports its confinement, and
then serves requests: encoded bytes on stdin, samples on stdout, each with a JSON header. A failed
child is replaced. When the parent process ends for any reason, its children read the end of stdin
and exit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np

from vivace.audio.confine import Confinement, confine, limit_cpu
from vivace.audio.decode import AudioLimits, Decoded, decode_compressed
from vivace.audio.encode import import_package
from vivace.errors import AudioError

CPU_LIMIT_S = 5.0  # CPU time for one recording
LIMIT_S = 30.0  # wall-clock time for one recording; generous, for loaded machines
START_LIMIT_S = 120.0  # wall-clock time for the imports of a child
MAX_CHILDREN = 4
PACKAGES = ("soundfile", "av")  # imported before the confinement, which forbids imports
MAX_HEAD_BYTES = 4_096
LENGTHS = struct.Struct("<II")  # bytes of the JSON header and of the body
KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMPDIR")
SINGLE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
START = "import sys; sys.path[:] = sys.argv[1:]; from vivace.audio.sandbox import serve; serve()"


# -- parent ------------------------------------------------------------------------------------


def child_command() -> list[str]:
    """Python without environment variables and working folder, with the parent's `sys.path`."""
    return [sys.executable, "-I", "-c", START, *filter(None, sys.path)]


class Sandbox:
    """A thread-safe pool of at most `max_children` decoding processes.

    Idle children end with `close`, with the object, or with the process. A forked process starts
    its own children.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] | None = None,
        limit_s: float = LIMIT_S,
        max_children: int = MAX_CHILDREN,
    ) -> None:
        self._command, self._limit_s, self._max_children = command, limit_s, max_children
        self._reset()

    def decode(self, content: bytes, limits: AudioLimits) -> Decoded:
        """Run `decode_compressed` in a child; a crash of the child is an AudioError."""
        with self._free_child() as child:
            try:
                head, body = child.request(
                    dataclasses.asdict(limits), content, limits, self._limit_s
                )
                decoded = _check_response(head, body, limits)
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
        """The confinement of a child on this system. Starts a child if none is idle."""
        with self._free_child() as child:
            self._give_back(child)
        return child.confinement

    def close(self) -> None:
        """End the idle children. A later `decode` starts new children."""
        _end_children(self._idle, self._pid)

    def child_pids(self) -> set[int]:
        """Process ids of the idle children."""
        return {child.process.pid for child in self._idle}

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._free = threading.BoundedSemaphore(self._max_children)
        self._idle: deque[_Child] = deque()  # `append` and `pop` are atomic
        weakref.finalize(self, _end_children, self._idle, self._pid)  # also runs at exit

    @contextlib.contextmanager
    def _free_child(self) -> Iterator[_Child]:
        """An idle or new child. Waits while `max_children` are busy."""
        if self._pid != os.getpid():  # forked: the semaphore may be held forever
            self._reset()
        with self._free:
            while self._idle:
                with contextlib.suppress(IndexError):  # another thread took it
                    child = self._idle.pop()
                    if child.process.poll() is None:
                        break
                    child.end()
            else:
                child = _Child(self._command or child_command())
            yield child

    def _give_back(self, child: _Child) -> None:
        self._idle.append(child)


def _end_children(children: deque[_Child], pid: int) -> None:
    """End the children, unless this process is a fork of their parent."""
    while children and pid == os.getpid():
        with contextlib.suppress(IndexError):
            children.pop().end()


class _BrokenChildError(Exception):
    """The child crashed or violated the protocol; it is not reused."""


class _Child:
    """A decoding process."""

    def __init__(self, command: Sequence[str]) -> None:
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment | SINGLE_THREAD,
                start_new_session=True,  # Ctrl-C must not interrupt the child
            )
        except OSError as error:
            raise _start_error(error.strerror or str(error)) from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        try:
            with self._deadline(START_LIMIT_S):
                head, _ = _receive(self._stdout, 0)
            self.confinement = Confinement(**head)
        except (_BrokenChildError, TypeError) as error:
            self.end()
            raise _start_error("the process exited before it was ready") from error
        except BaseException:
            self.end()
            raise

    def request(
        self, head: dict[str, Any], body: bytes, limits: AudioLimits, limit_s: float
    ) -> tuple[dict[str, Any], bytes]:
        with self._deadline(limit_s):
            _send(self._stdin, head, body)
            return _receive(self._stdout, limits.max_decoded_bytes)

    @contextlib.contextmanager
    def _deadline(self, limit_s: float) -> Iterator[None]:
        """Kill the child after `limit_s`. Raise _BrokenChildError for any failure."""
        has_expired = threading.Event()

        def stop() -> None:
            has_expired.set()
            self.process.kill()

        timer = threading.Timer(limit_s, stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, EOFError, ValueError) as error:
            if has_expired.is_set():
                raise _BrokenChildError(
                    f"cannot be decoded: decoding takes longer than {limit_s:g} s"
                ) from error
            raise _BrokenChildError(f"cannot be decoded: {self._crash_reason()}") from error
        finally:
            timer.cancel()
            timer.join()  # so that the timer never kills a child that is back in the pool
            if has_expired.is_set():
                self.end()

    def _crash_reason(self) -> str:
        self.end()
        if self.process.returncode == -getattr(signal, "SIGXCPU", 0):
            return f"decoding takes longer than {CPU_LIMIT_S:g} s of CPU time"
        return "the decoder crashed"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):  # unsent bytes
                pipe.close()


def _start_error(reason: str) -> AudioError:
    return AudioError(
        f"the process that decodes audio does not start: {reason}; WAV needs no such process"
    )


def _check_response(head: dict[str, Any], body: bytes, limits: AudioLimits) -> Decoded | AudioError:
    # A compromised child may send anything.
    sample_rate, error = head.get("sample_rate"), head.get("error")
    if isinstance(error, str):
        return AudioError("".join(filter(str.isprintable, error)))
    if not isinstance(sample_rate, int) or len(body) % 4:
        raise _BrokenChildError("cannot be decoded: the decoder sent an invalid response")
    limits.check_format(sample_rate, 1)
    return np.frombuffer(body, "<f4").astype(np.float32), sample_rate


# -- protocol ----------------------------------------------------------------------------------


def _send(pipe: IO[bytes], head: dict[str, Any], body: bytes) -> None:
    text = json.dumps(head).encode()
    pipe.write(LENGTHS.pack(len(text), len(body)) + text)
    pipe.write(body)
    pipe.flush()


def _receive(pipe: IO[bytes], max_body_bytes: int) -> tuple[dict[str, Any], bytes]:
    num_head, num_body = LENGTHS.unpack(_read(pipe, LENGTHS.size))
    if num_head > MAX_HEAD_BYTES or num_body > max_body_bytes:
        raise ValueError("the message is larger than allowed")
    head = json.loads(_read(pipe, num_head))
    if not isinstance(head, dict):
        raise ValueError("the message header is not a JSON object")
    return head, _read(pipe, num_body)


def _read(pipe: IO[bytes], num_bytes: int) -> bytes:
    content = pipe.read(num_bytes)
    if len(content) < num_bytes:
        raise EOFError
    return content


# -- child -------------------------------------------------------------------------------------


def serve() -> None:
    """Main loop of a child: send the confinement, then serve requests from stdin on stdout."""
    for package in PACKAGES:
        with contextlib.suppress(AudioError):  # each request reports the error
            import_package(package)
    requests = sys.stdin.buffer
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not corrupt the response; stderr is /dev/null
    _send(responses, dataclasses.asdict(confine()), b"")
    while True:
        try:
            head, content = _receive(requests, sys.maxsize)
        except EOFError:
            return
        limit_cpu(CPU_LIMIT_S)
        _send(responses, *_respond(content, AudioLimits(**head)))


def _respond(content: bytes, limits: AudioLimits) -> tuple[dict[str, Any], bytes]:
    try:
        samples, sample_rate = decode_compressed(content, limits)
    except AudioError as error:
        return {"error": str(error)[:500]}, b""
    except MemoryError:
        return {"error": "cannot be decoded: decoding needs too much memory"}, b""
    return {"sample_rate": sample_rate}, samples.astype("<f4").tobytes()
