"""Concurrent streams over real sockets: no failure, no long wait, no underrun."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.figures import percentile, record
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import running
from tests.support.websocket_client import wait_until
from vivace.serve.settings import ServeSettings

NUM_FRAMES = 50
FRAME_BYTES = 1_920 * 2
BUFFER_S = 0.24  # of audio in the player's buffer before it starts

CLIENT = """
import asyncio, json, sys, time

async def ask(port, body):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/audio/speech HTTP/1.1\\r\\nhost: 127.0.0.1\\r\\n"
    head += f"content-type: application/json\\r\\ncontent-length: {len(body)}\\r\\n\\r\\n"
    began = time.perf_counter()
    writer.write(head.encode() + body)
    status = int((await reader.readuntil(b"\\r\\n\\r\\n")).split(b" ", 2)[1])
    answered_s, arrivals, total = time.perf_counter() - began, [], 0
    while status == 200 and (size := int(await reader.readline(), 16)):
        await reader.readexactly(size + 2)
        total += size
        arrivals.append((time.perf_counter() - began, total))
    writer.close()
    return status, answered_s, arrivals

async def main(port, num_streams, body):
    return await asyncio.gather(*(ask(port, body.encode()) for _ in range(num_streams)))

print(json.dumps(asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))))
"""


@dataclass(frozen=True)
class ClientTimes:
    """A stream as its client received it: seconds since the request, and bytes until then."""

    status: int
    answered_s: float
    arrivals: list[tuple[float, int]]

    @property
    def first_s(self) -> float:
        return self.arrivals[0][0]

    @property
    def num_bytes(self) -> int:
        return self.arrivals[-1][1]

    @property
    def is_dry(self) -> bool:
        """Whether a player that starts at the first byte with a small buffer has an underrun."""
        start = self.first_s + BUFFER_S
        before = [0, *(count for _, count in self.arrivals)]
        return any(
            at - start > count / 48_000
            for (at, _), count in zip(self.arrivals, before, strict=False)
        )


def ask_many(port: int, num_streams: int) -> list[ClientTimes]:
    """Run the clients in another process, so that they do not share the interpreter lock."""
    body = json.dumps({"input": "Hello there.", "response_format": "pcm"})
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(port), str(num_streams), body],
        capture_output=True,
        text=True,
        check=True,
    )
    return [ClientTimes(*each) for each in json.loads(done.stdout)]


def settings(tmp_path: Path) -> ServeSettings:
    return ServeSettings(port=0, voices=tmp_path, max_queue=256)


@pytest.mark.parametrize("num_streams", [64])
def test_concurrent_streams_are_all_complete(tmp_path: Path, num_streams: int) -> None:
    backend = ScriptedSpeech(default=Plan(NUM_FRAMES), step_s=0.01)
    with running(settings(tmp_path), backend.load) as server:
        results = ask_many(server.port, num_streams)
    assert {each.status for each in results} == {200}
    assert {each.num_bytes for each in results} == {NUM_FRAMES * FRAME_BYTES}
    assert not backend.active_slots


@pytest.mark.slow  # on a quiet machine
@pytest.mark.parametrize("num_streams", [64, 256])
def test_concurrent_streams_start_soon_without_underruns(tmp_path: Path, num_streams: int) -> None:
    """Five turns make the audio of 0.4 s, as on a GPU."""
    backend = ScriptedSpeech(default=Plan(NUM_FRAMES), step_s=0.02)
    with running(settings(tmp_path), backend.load) as server:
        ask_many(server.port, 2)
        results = ask_many(server.port, num_streams)
    p99 = percentile([each.first_s for each in results], 0.99)
    dry = sum(each.is_dry for each in results)
    record(
        f"G2 {num_streams} streams",
        requests=num_streams,
        ran_dry=dry,
        first_byte_p99_ms=round(1e3 * p99, 1),
    )
    assert {each.status for each in results} == {200}
    assert dry == 0
    if num_streams == 64:
        assert p99 <= 0.25


def test_underrun_check_detects_a_pause() -> None:
    """Control of the test above."""
    steady = [(0.1 + 0.08 * turn, 3_840 * (turn + 1)) for turn in range(10)]
    assert not ClientTimes(200, 0.1, steady).is_dry
    assert ClientTimes(
        200, 0.1, [*steady[:5], *((at + 1.0, count) for at, count in steady[5:])]
    ).is_dry


def test_finished_streams_leave_no_threads(tmp_path: Path) -> None:
    backend = ScriptedSpeech(default=Plan(5))
    with running(settings(tmp_path), backend.load) as server:
        ask_many(server.port, 16)
        num_threads = threading.active_count()
        for _ in range(2):
            ask_many(server.port, 16)
        wait_until(lambda: threading.active_count() < num_threads + 16)  # pools may grow
