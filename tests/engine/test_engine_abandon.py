"""`Engine.abandon` with a backend that hangs: readers get an error, and the process exits."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event

import pytest

from tests.support.scripted_backend import ScriptedBackend, open_blocks, wait_until
from vivace.backends.base import Frames, Slot
from vivace.engine.engine import Engine
from vivace.engine.limits import EngineLimits
from vivace.engine.utterances.frame_block import FrameBlock
from vivace.errors import EngineError

SOON_S = 60.0


@dataclass
class HangingBackend(ScriptedBackend):
    """Hangs after a number of steps."""

    num_before: int = 0
    is_hanging: Event = field(default_factory=Event)
    may_return: Event = field(default_factory=Event)

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        if len(self.steps) >= self.num_before:
            self.is_hanging.set()
            assert self.may_return.wait(SOON_S)
        return super().step(slots, num_frames)


class Reader(threading.Thread):
    def __init__(self, engine: Engine, seed: int) -> None:
        super().__init__(daemon=True)
        self.blocks: list[FrameBlock] = []
        self.error: Exception | None = None
        self._open = lambda: open_blocks(engine, 100, seed)
        self.start()

    def run(self) -> None:
        try:
            self.blocks.extend(self._open())
        except Exception as error:
            self.error = error

    def end(self) -> None:
        self.join(SOON_S)
        assert not self.is_alive()


def test_abandoned_engine_fails_waiting_readers() -> None:
    """A running utterance, a queued one, and one that is submitted later."""
    backend = HangingBackend(num_before=3)
    engine = Engine(backend, EngineLimits(max_streams=1))
    running = Reader(engine, 1)
    assert backend.is_hanging.wait(SOON_S)
    waiting = Reader(engine, 2)
    wait_until(lambda: engine.num_waiting == 1)
    assert running.is_alive()  # control: the reader still waits
    engine.abandon("it hangs")
    for reader in (running, waiting):
        reader.end()
        assert isinstance(reader.error, EngineError)
        assert "it hangs" in str(reader.error)
    assert engine.num_running == engine.num_waiting == 0
    later = Reader(engine, 3)
    later.end()
    assert "it hangs" in str(later.error)
    backend.may_return.set()


def test_abandoned_thread_that_returns_late_ends_without_frames() -> None:
    backend = HangingBackend()
    engine = Engine(backend)
    reader = Reader(engine, 1)
    assert backend.is_hanging.wait(SOON_S)
    thread = engine._thread
    assert thread is not None
    engine.abandon("it hangs")
    reader.end()
    backend.may_return.set()
    engine.close()
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert reader.blocks == []
    assert len(backend.steps) == 1


def test_busy_since_is_set_during_a_turn() -> None:
    backend = HangingBackend()
    engine = Engine(backend)
    assert engine.busy_since is None
    reader = Reader(engine, 1)
    assert backend.is_hanging.wait(SOON_S)
    since = engine.busy_since
    assert since is not None
    assert engine.busy_since == since
    backend.may_return.set()
    reader.end()
    assert reader.error is None
    wait_until(lambda: engine.busy_since is None)
    engine.call(lambda: None)
    wait_until(lambda: engine._thread is None)  # after LINGER_S
    assert engine.busy_since is None


EXIT = """
import sys, threading
sys.path += sys.argv[1:]
from tests.engine.test_engine_abandon import Engine, HangingBackend, Reader

backend = HangingBackend()
engine = Engine(backend)
reader = Reader(engine, 1)
backend.is_hanging.wait()
engine.abandon("it hangs")
reader.end()
print("over")
"""


@pytest.mark.slow  # starting a process takes seconds
def test_process_with_abandoned_engine_exits() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT, *(part for part in sys.path if part)],
        capture_output=True,
        text=True,
        timeout=SOON_S,
    )
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr


@pytest.mark.slow  # waits for a timeout
def test_process_with_hanging_engine_does_not_exit() -> None:
    """Control: without `abandon`, the exit waits for the thread."""
    script = EXIT.replace('engine.abandon("it hangs")\nreader.end()\n', "")
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-c", script, *(part for part in sys.path if part)], timeout=20
        )
