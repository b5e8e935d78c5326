"""Forked children: an idle engine can be used there, a busy one raises at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import fork_server

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fork on Linux")

BEGIN = """
import os, sys, threading
import torch
from vivace import TTS
from vivace.device.choice import can_fork
from vivace.errors import EngineError

def wait_for(child):
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"

def is_refused(use):
    try:
        use()
    except EngineError as error:
        return "process" in str(error) and "child" in str(error)
    return False

folder = sys.argv[1]
"""

WHILE_SPEAKING = """
tts = TTS.load(folder, device="cpu", threads=1)
backend, inside, go_on = tts.engine.backend, threading.Event(), threading.Event()
step = backend.step

def slow_step(slots, num_frames):
    inside.set()
    go_on.wait()
    return step(slots, num_frames)

backend.step = slow_step
stream, spoken = tts.stream("Hello.", seed=1, max_frames=20), []
reader = threading.Thread(target=lambda: spoken.extend(stream))
reader.start()
inside.wait()  # the other thread uses the engine and holds the stream's lock
child = os.fork()
if child == 0:
    backend.step = step
    assert is_refused(lambda: tts.speak("Hello.", max_frames=2))
    assert is_refused(lambda: tts.stream("Hello."))
    assert is_refused(lambda: next(stream))
    stream.close()
    repr(tts)
    tts.close()
    sys.exit(0)  # runs every finalizer
wait_for(child)
go_on.set()
reader.join()
assert spoken[-1].is_last
print("parent and child ended")
"""

WITHOUT_USE = """
tts = TTS.load(folder, device="cpu", threads=1)
stream = tts.stream("Hello.", seed=1, min_frames=20, max_frames=20)
next(stream)
child = os.fork()
if child == 0:
    del stream
    sys.exit(0)
wait_for(child)
assert sum(len(chunk.codes) for chunk in stream) == 19
print("parent and child ended")
"""

SEVERAL_THREADS = """
tts = TTS.load(folder, device="cpu", threads=2)
tts.speak("Hello.", seed=1, max_frames=4)
child = os.fork()
if child == 0:
    assert is_refused(lambda: tts.speak("Hello.", seed=1, max_frames=4))
    assert is_refused(lambda: tts.device)
    sys.exit(0)
wait_for(child)
tts.speak("Hello.", seed=1, max_frames=4)
print("parent and child ended")
"""

IDLE = """
tts = TTS.load(folder, device="cpu", threads=1)
before = tts.speak("Hello.", seed=1, max_frames=4)
for _ in range(2):
    child = os.fork()
    if child == 0:
        if can_fork("cpu", 1):
            assert tts.speak("Hello.", seed=1, max_frames=4) == before
        else:
            assert is_refused(lambda: tts.speak("Hello.", seed=1, max_frames=4))
        sys.exit(0)
    wait_for(child)
assert tts.speak("Hello.", seed=1, max_frames=4) == before
print("parent and child ended")
"""


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(
    "script",
    [WHILE_SPEAKING, WITHOUT_USE, SEVERAL_THREADS, IDLE],
    ids=["while speaking", "without use", "several threads", "idle"],
)
def test_forked_child_never_hangs(tiny_folder: Path, script: str) -> None:
    done = fork_server.run(BEGIN + script, str(tiny_folder / "custom_voice"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "parent and child ended\n"
