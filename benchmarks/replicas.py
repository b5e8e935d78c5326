"""Measures the effect on clients when one of two replicas is killed or restarted.

    PYTHONPATH=src python benchmarks/replicas.py http://127.0.0.1:8000 --kill-every 20 \\
        --title ray::ServeReplica:default:vivace --logs /tmp/ray/session_latest/logs/serve

- `--clients` connections request short texts with a seed, one in four over WebSockets, with a pause
  between requests (`--pause 0`: none). A probe requests one word every second to measure the wait.
- `--kill-every S` sends SIGKILL to one of two processes whose title begins with `--title`.
- `--restart COMMAND` runs once, after a third of the time.

A complete response has the length and the samples of the reference. The client must be able to tell
a failed response from a complete one. The servers' logs must list every request at most once, and
failed requests not at all: they belong to the killed process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

TEXTS = ("Yes.", "Thank you.", "One moment, please.", "I am on my way home.")
SEED = 7
SAMPLE_RATE = 24_000
NEARBY = 0.02  # of full scale: rounding depends on the batch size
RESPONSE_S = 120.0  # a request without a response after this time counts as hung
AFTER_S = 5.0  # requests this soon after a kill are reported separately


@dataclass
class ClientRequest:
    """One request and its result."""

    id: str
    kind: str  # http, socket or probe
    text: str
    began: float
    first_s: float | None = None  # until the first audio
    ended: float = 0.0
    audio: bytearray = field(default_factory=bytearray, repr=False)
    failure: str | None = None  # as the client reports it

    @property
    def key(self) -> tuple[bool, str]:
        """Key of the reference response."""
        return self.kind == "socket", self.text

    @property
    def is_whole(self) -> bool:
        return self.failure is None


class FaultTest:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        where = urlsplit(arguments.url)
        self.host, self.port = where.hostname or "127.0.0.1", where.port or 80
        self.requests: list[ClientRequest] = []
        self.kills: list[float] = []
        self.restarts: list[tuple[float, float]] = []
        self.num_skipped = 0  # kills skipped because only one replica was running
        self.is_over = False

    async def run(self) -> dict[str, Any]:
        reference = {}
        for kind in ("http", "socket"):  # text over a socket is live and gives other samples
            for text in TEXTS:
                one = await self.request(kind, text, is_counted=False)
                if not one.is_whole:
                    raise SystemExit(f"no response before the first kill: {one.failure}")
                reference[one.key] = bytes(one.audio)
        num_before = len(find(self.arguments.title))
        began = time.monotonic()
        clients = [asyncio.create_task(self.speak(n)) for n in range(self.arguments.clients)]
        clients.append(asyncio.create_task(self.probe()))
        faults = asyncio.create_task(self.cause_faults())
        await asyncio.sleep(self.arguments.seconds)
        self.is_over = True
        await faults
        await asyncio.gather(*clients)
        seconds = time.monotonic() - began
        num_after = await self.settled(num_before)
        return {
            "seconds": round(seconds, 1),
            "replicas": {"before": num_before, "after": num_after},
            **self.report(reference),
        }

    async def settled(self, num_wanted: int) -> int:
        for _ in range(60):
            found = find(self.arguments.title)
            if len(found) >= num_wanted and all([await is_ready(u) for u in self.arguments.check]):
                return len(found)
            await asyncio.sleep(1)
        return len(find(self.arguments.title))

    # -- the clients -------------------------------------------------------------------------

    async def speak(self, number: int) -> None:
        chance = random.Random(number)
        pause_s = self.arguments.pause
        await asyncio.sleep(chance.uniform(0, pause_s))
        kind = "socket" if number % 4 == 3 else "http"
        while not self.is_over:
            await self.request(kind, chance.choice(TEXTS))
            for _ in range(int(10 * pause_s * chance.uniform(0.5, 1.5))):
                if not self.is_over:
                    await asyncio.sleep(0.1)

    async def probe(self) -> None:
        while not self.is_over:
            await asyncio.gather(self.request("probe", TEXTS[0]), asyncio.sleep(1))

    async def request(self, kind: str, text: str, *, is_counted: bool = True) -> ClientRequest:
        name = kind if is_counted else "reference"
        request_id = f"replicas-{os.getpid()}-{name}-{len(self.requests)}"
        one = ClientRequest(request_id, kind, text, time.monotonic())
        if is_counted:
            self.requests.append(one)
        way = self.over_socket if kind == "socket" else self.over_http
        try:
            await asyncio.wait_for(way(one), RESPONSE_S)
        except asyncio.TimeoutError:
            one.failure = "hung"
        except (OSError, EOFError, ConnectionClosed, InvalidStatus) as error:
            one.failure = f"{type(error).__name__}: {error}"[:120]
        one.ended = time.monotonic()
        return one

    async def over_http(self, one: ClientRequest) -> None:
        """Read the chunked response without a library: the last chunk shows that it is complete."""
        body = json.dumps(
            {"input": one.text, "voice": "alloy", "response_format": "pcm", "seed": SEED}
        )
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            head = (
                f"POST /v1/audio/speech HTTP/1.1\r\nhost: {self.host}:{self.port}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                f"x-request-id: {one.id}\r\nconnection: close\r\n\r\n"
            )
            writer.write((head + body).encode())
            status = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode()
            if status != "200":
                one.failure = f"HTTP {status}"
                return
            while length := int((await reader.readuntil(b"\r\n")).strip(), 16):
                if one.first_s is None:
                    one.first_s = time.monotonic() - one.began
                one.audio += (await reader.readexactly(length + 2))[:-2]
        finally:
            writer.close()

    async def over_socket(self, one: ClientRequest) -> None:
        url = f"ws://{self.host}:{self.port}/v1/audio/speech/stream"
        async with connect(url, additional_headers={"x-request-id": one.id}) as socket:
            config = {"voice": "alloy", "response_format": "pcm", "seed": SEED}
            await socket.send(json.dumps({"type": "session.config", **config}))
            await socket.send(json.dumps({"type": "input.text", "text": one.text}))
            await socket.send(json.dumps({"type": "input.done"}))
            while True:
                message = await socket.recv()
                if isinstance(message, bytes):
                    one.first_s = one.first_s or time.monotonic() - one.began
                    one.audio += message
                    continue
                event = json.loads(message)
                if event["type"] == "error":
                    one.failure = f"error: {event.get('message')}"[:120]
                    return
                if event["type"] == "session.done":
                    return

    # -- faults ------------------------------------------------------------------------------

    async def cause_faults(self) -> None:
        began, arguments = time.monotonic(), self.arguments
        if arguments.restart:
            await asyncio.sleep(arguments.seconds / 3)
            start = time.monotonic()
            process = await asyncio.create_subprocess_shell(arguments.restart)
            if await process.wait():
                raise SystemExit(f"{arguments.restart} failed")
            self.restarts.append((start, time.monotonic()))
        while arguments.kill_every and not self.is_over:
            await asyncio.sleep(arguments.kill_every)
            if self.is_over or time.monotonic() - began > arguments.seconds - 5:
                return
            found = find(arguments.title)
            if len(found) < 2 or not all([await is_ready(url) for url in arguments.check]):
                self.num_skipped += 1
                continue
            os.kill(random.choice(found), signal.SIGKILL)
            self.kills.append(time.monotonic())

    # -- report ------------------------------------------------------------------------------

    def report(self, reference: dict[tuple[bool, str], bytes]) -> dict[str, Any]:
        whole = [one for one in self.requests if one.is_whole]
        failed = [one for one in self.requests if not one.is_whole]
        logged = count_in_logs([one.id for one in self.requests], self.arguments.logs)
        probes = [one for one in whole if one.kind == "probe" and one.first_s is not None]
        after = [one for one in probes if self.is_after_a_kill(one)]
        running = [
            sum(one.began <= kill <= one.ended for one in self.requests) for kill in self.kills
        ]
        return {
            "requests": dict(Counter(one.kind for one in self.requests)),
            "audio_s": round(sum(len(one.audio) for one in self.requests) / 2 / SAMPLE_RATE, 1),
            "kills": len(self.kills),
            "kills_skipped": self.num_skipped,
            "restart_s": [round(end - start, 1) for start, end in self.restarts],
            "streams_running_at_a_kill": running,
            "failed": len(failed),
            "failed_while_a_kill_hit_them": sum(self.was_hit(one) for one in failed),
            "failed_begun_after_the_kill": sum(not self.was_hit(one) for one in failed),
            "failures_seen": dict(Counter(one.failure for one in failed)),
            "hung": sum(one.failure == "hung" for one in failed),
            "whole_but_other_than_the_reference": sum(
                not is_same(one.audio, reference[one.key], is_part=False) for one in whole
            ),
            "failed_but_no_part_of_the_reference": sum(
                not is_same(one.audio, reference[one.key], is_part=True) for one in failed
            ),
            "in_the_logs": logged
            and {
                "twice_or_more": sum(count > 1 for count in logged.values()),
                "whole_once": sum(logged[one.id] == 1 for one in whole),
                "failed_on_a_living_server": sum(logged[one.id] > 0 for one in failed),
            },
            "new_requests_over_1_s": sum(one.first_s > 1 for one in probes if one.first_s),
            "first_audio_s": {
                "all": spread([one.first_s for one in whole if one.first_s is not None]),
                "new_requests": spread([one.first_s for one in probes if one.first_s]),
                f"new_requests_within_{AFTER_S:g}_s_of_a_kill": spread(
                    [one.first_s for one in after if one.first_s]
                ),
            },
        }

    def was_hit(self, one: ClientRequest) -> bool:
        return any(one.began <= kill <= one.ended for kill in self.kills)

    def is_after_a_kill(self, one: ClientRequest) -> bool:
        return any(0 <= one.began - kill <= AFTER_S for kill in self.kills)


async def is_ready(url: str) -> bool:
    where = urlsplit(url)
    try:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(f"GET {where.path} HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n".encode())
        answer = await reader.read(64)
        writer.close()
    except OSError:
        return False
    return b" 200 " in answer


def find(title: str) -> list[int]:
    """Processes whose title begins with `title`, without Ray replicas that are still starting."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            whole = read_title(entry) if entry.name.isdecimal() else ""
            if whole.startswith(title) and ".initialize" not in whole:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def read_title(entry: Path) -> str:
    return (entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode().strip()


def count_in_logs(ids: list[str], folder: Path | None) -> dict[str, int]:
    """How often each request appears in the servers' logs. A line is written at its end."""
    counts = dict.fromkeys(ids, 0)
    if folder is None:
        return {}
    for path in folder.glob("replica*.log"):
        for line in path.read_text(errors="replace").splitlines():
            if " 503 " in line:  # rejected while draining; the proxy sends it to the other replica
                continue
            for word in line.split():
                if word in counts:
                    counts[word] += 1
    return counts


def is_same(audio: bytearray, reference: bytes, *, is_part: bool) -> bool:
    if len(audio) > len(reference) or (not is_part and len(audio) < len(reference)):
        return False
    length = len(audio) // 2 * 2
    first = np.frombuffer(bytes(audio[:length]), "<i2").astype(np.float32)
    second = np.frombuffer(reference[:length], "<i2").astype(np.float32)
    return bool(np.abs(first - second).max(initial=0) <= NEARBY * 32_768)


def spread(seconds: list[float]) -> dict[str, float] | None:
    if len(seconds) < 2:
        return None
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    most = max(seconds)
    return {"p50": round(cuts[49], 3), "p95": round(cuts[94], 3), "max": round(most, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--pause", type=float, default=30.0, help="seconds, on average")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--kill-every", type=float, default=0.0)
    parser.add_argument("--restart", help="a command")
    parser.add_argument("--title", required=True, help="process title of a ready server")
    parser.add_argument("--check", nargs="*", default=[], help="URLs that are 200 once all serve")
    parser.add_argument("--logs", type=Path, help="a folder of replica*.log")
    parser.add_argument("--note", default="", help="the deployment, for the report")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    result = asyncio.run(FaultTest(arguments).run())
    options = {
        name: getattr(arguments, name) for name in ("clients", "pause", "kill_every", "note")
    }
    load = {"before": round(load_before, 1), "after": round(os.getloadavg()[0], 1)}
    result = {**options, **({"restart": True} if arguments.restart else {}), "load": load, **result}
    print(json.dumps(result, indent=1))
    if arguments.json:
        from vivace.cli.bench.machine import machine

        kept = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
        runs = [*kept.get("results", []), result]
        whole = {"benchmark": "replicas", "machine": machine(), "results": runs}
        arguments.json.write_text(json.dumps(whole, indent=1) + "\n")
    if result["hung"] or result["replicas"]["after"] < result["replicas"]["before"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
