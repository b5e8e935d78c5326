"""Closing a stream ends it at once: from threads, tasks, its own text and signal handlers."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fork_server
from tests.support.slots import plain_backend
from vivace import TTS
from vivace.audio.clip import AudioChunk
from vivace.engine.streams.stream import Stream

SOON_S = 30  # half of max_wait_s; enough on a busy machine
TEXT = "A stream of words."
OPTIONS: dict[str, Any] = {"seed": 1, "min_frames": 40, "max_frames": 40, "chunk_frames": 4}


@pytest.fixture(scope="module")
def tts(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu", max_streams=1) as loaded:
        yield loaded


def start(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def assert_ends(thread: threading.Thread) -> None:
    thread.join(SOON_S)
    assert not thread.is_alive()


def wait_until(is_so: Callable[[], object]) -> None:
    while not is_so():
        time.sleep(0.001)


def assert_speaks(tts: TTS) -> None:
    """The engine's only slot is free."""
    assert len(tts.speak(TEXT, seed=2, max_frames=3, min_frames=3).codes) == 3
    assert tts.engine.num_running == tts.engine.num_waiting == 0


def test_stream_waiting_for_a_slot_closes_at_once(tts: TTS) -> None:
    holder, queued = tts.stream(TEXT, **OPTIONS), tts.stream(TEXT, **OPTIONS)
    next(holder)
    chunks: list[AudioChunk] = []
    reader = start(lambda: chunks.extend(queued))
    wait_until(lambda: tts.engine.num_waiting == 1)
    assert_ends(start(queued.close))
    assert_ends(reader)
    assert queued.finish_reason == "cancelled"
    assert chunks == []
    assert tts.engine.num_waiting == 0
    assert sum(len(chunk.codes) for chunk in holder) == 36
    assert_speaks(tts)


def test_astream_waiting_for_a_slot_is_cancelled_at_once(tts: TTS) -> None:
    async def read() -> None:
        async for _ in tts.astream(TEXT, **OPTIONS):
            raise AssertionError("no slot is free")

    async def run() -> None:
        task = asyncio.create_task(read())
        while not tts.engine.num_waiting:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait({task}, timeout=SOON_S)
        assert task.cancelled()

    with tts.stream(TEXT, **OPTIONS) as holder:
        next(holder)
        asyncio.run(run())
        assert tts.engine.num_waiting == 0
    assert_speaks(tts)


@pytest.mark.parametrize("num_before", [0, 1, 5])
def test_close_does_not_wait_for_the_text_iterator(tts: TTS, num_before: int) -> None:
    is_waiting, go_on = threading.Event(), threading.Event()
    num_asked = 0

    def pieces() -> Iterator[str]:
        nonlocal num_asked
        for _ in range(num_before):
            yield "word "
        is_waiting.set()
        go_on.wait()
        while True:
            num_asked += 1
            yield "more "

    stream = tts.stream(pieces(), seed=1)
    reader = start(lambda: list(stream))
    is_waiting.wait()
    assert_ends(start(stream.close))
    assert stream.finish_reason == "cancelled"
    assert_speaks(tts)  # while the iterator still waits
    go_on.set()
    assert_ends(reader)
    assert num_asked <= 1


@pytest.mark.parametrize("num_before", [0, 1, 5])
def test_stream_can_be_closed_by_its_own_text(tts: TTS, num_before: int) -> None:
    num_asked = 0

    def pieces() -> Iterator[str]:
        nonlocal num_asked
        for _ in range(num_before):
            yield "word "
        stream.close()
        while True:
            num_asked += 1
            yield "more "

    stream: Stream = tts.stream(pieces(), seed=1)
    assert_ends(start(lambda: list(stream)))
    assert stream.finish_reason == "cancelled"
    assert num_asked <= 1
    assert_speaks(tts)


def test_stream_closed_during_a_turn_frees_its_slot(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = plain_backend(tts)
    step, stream = backend.step, tts.stream(TEXT, **OPTIONS)
    next(stream)

    def close_first(slots: list[int], num_frames: int) -> object:
        assert_ends(start(stream.close))
        return step(slots, num_frames)

    with monkeypatch.context() as patch:
        patch.setattr(backend, "step", close_first)
        assert list(stream) == []
    assert_speaks(tts)


IN_A_HANDLER = """
import os, signal, sys, threading, time
from vivace import TTS

tts = TTS.load(sys.argv[1], device="cpu", max_streams=1)
options = dict(seed=1, min_frames=40, max_frames=40, chunk_frames=4)
signal.signal(signal.SIGUSR1, lambda *_: stream.close())

def assert_speaks():
    assert len(tts.speak("Hello.", seed=2, min_frames=3, max_frames=3).codes) == 3

backend = tts.engine.backend
step = backend.step
def close_in_step(slots, num_frames):
    signal.raise_signal(signal.SIGUSR1)
    return step(slots, num_frames)

stream = tts.stream("Hello.", **options)
next(stream)
backend.step = close_in_step
assert list(stream) == [] and stream.finish_reason == "cancelled"
backend.step = step
assert_speaks()

def pieces():
    yield "word "
    signal.raise_signal(signal.SIGUSR1)
    yield "word "
stream = tts.stream(pieces(), seed=1)
list(stream)
assert stream.finish_reason == "cancelled"
assert_speaks()

with tts.stream("Hello.", **options) as holder:
    next(holder)
    def send_when_queued():
        while not tts.engine.num_waiting:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGUSR1)
    threading.Thread(target=send_when_queued).start()
    began, stream = time.monotonic(), tts.stream("Hello.", **options)
    assert list(stream) == [] and time.monotonic() - began < 30
assert_speaks()
print("closed")
"""


@pytest.mark.ci
@pytest.mark.skipif(sys.platform == "win32", reason="a signal for users")
def test_stream_can_be_closed_by_a_signal_handler(tiny_folder: Path) -> None:
    done = fork_server.run(IN_A_HANDLER, str(tiny_folder / "custom_voice"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "closed\n"
