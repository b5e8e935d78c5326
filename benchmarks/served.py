"""Measures `vivace serve --workers N` as separate processes; started by `serve.py --workers N`.

First the engine alone is measured in this process, then the server, which gets the same checkpoint.
Both load at the same time, and the server is idle while the engine is measured. A released model's
name becomes a checkpoint of its shape with random weights in a temporary folder. The streams are
divided among client processes, which start at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from released import is_released
from serve_clients import (
    BYTES_PER_SECOND,
    TEXT,
    Run,
    as_run,
    lengths,
    request_http,
    rounds,
    speak_all,
)
from serve_report import compare, deliver, print_row

START_S = 0.1  # from the order to start until all clients start
STOP_TIMEOUT_S = 30.0
MANY = "4096"  # connections from one address


def measure_workers(arguments: argparse.Namespace) -> None:
    results, live = [], None
    with checkpoint(arguments) as source, serving(arguments, source) as wait_for_server:
        engine, url = measure_engine(arguments, source, wait_for_server)
        for num_streams in arguments.streams:
            served = [request_all(url, arguments, num_streams, 1) for _ in rounds(arguments)]
            alone, steady = engine[num_streams]
            results.append(compare(num_streams, alone, served[1:], []))
            if steady:
                served_steady = request_all(url, arguments, num_streams, arguments.rounds)
                results[-1]["steady"] = compare(num_streams, steady, [served_steady], [])
            print_row(results[-1])
        if arguments.live:
            live = request_live(url, arguments)
            print(f"live: {json.dumps(live)}", flush=True)
    deliver(arguments, {"workers": arguments.workers, "results": results, "live": live})


@contextmanager
def checkpoint(arguments: argparse.Namespace) -> Iterator[str | None]:
    """The folder or hub id of the model; None: the embedded voice."""
    if not is_released(arguments.model):
        yield None if arguments.model == "embedded" else arguments.model
        return
    from shapes import write_checkpoint

    from vivace.device.choice import pick_device

    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / arguments.model.partition(":")[0]
        write_checkpoint(where.name, where, pick_device(arguments.device))
        yield str(where)


def measure_engine(
    arguments: argparse.Namespace, source: str | None, wait_for_server: Callable[[], str]
) -> tuple[dict[int, tuple[list[Run], list[Run]]], str]:
    """Runs at one instant and steady runs for each number of streams, and the server's URL."""
    from vivace import TTS

    options = {"max_frames": arguments.frames, "seed": 7, "guard": False}
    found = {}
    with TTS.load(
        source,
        device=arguments.device,
        dtype=arguments.dtype,
        backend=arguments.backend,
        max_streams=max(arguments.streams),
        max_queue=1_024,
    ) as tts:
        tts.warmup()
        url = wait_for_server()
        for num_streams in arguments.streams:
            runs = [asyncio.run(speak_all(tts, num_streams, 1, options)) for _ in rounds(arguments)]
            steady = list[Run]()
            if arguments.rounds:
                steady = [asyncio.run(speak_all(tts, num_streams, arguments.rounds, options))]
            found[num_streams] = runs[1:], steady
    return found, url


def most_streams(arguments: argparse.Namespace) -> int:
    return int(max(*arguments.streams, arguments.live))


@contextmanager
def serving(arguments: argparse.Namespace, source: str | None) -> Iterator[Callable[[], str]]:
    """Run `vivace serve` and yield a function that waits until it is ready and returns its URL."""
    command = [sys.executable, "-m", "vivace", "serve", "--port=0"]
    command += ["--workers", str(arguments.workers), "--device", arguments.device]
    command += ["--dtype", arguments.dtype, "--backend", arguments.backend]
    command += ["--max-streams", str(most_streams(arguments)), "--max-wait", "600"]
    command += ["--max-connections", MANY, "--max-connections-per-address", MANY]
    command += [] if source is None else ["--model", f"model={source}"]
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("ab") as log:
        server = subprocess.Popen(command, stderr=log)
        try:
            yield partial(wait_for_url, server, Path(log.name))
        finally:
            server.terminate()
            try:
                server.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()


def wait_for_url(server: subprocess.Popen[bytes], log: Path) -> str:
    while server.poll() is None:
        time.sleep(0.1)
        if found := re.search(r"^ready: (http://[^/\s]+)", log.read_text(), re.MULTILINE):
            return found[1]
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


# -- client processes --------------------------------------------------------------------------


def start_clients(url: str, arguments: argparse.Namespace, orders: dict[str, Any]) -> list[Any]:
    """Run the clients, each with its share of the streams. Returns what they print."""
    total = orders["streams"]
    num_clients = min(arguments.clients, total)
    shares = [range(client, total, num_clients) for client in range(num_clients)]
    sent = {**orders, "url": url, "frames": arguments.frames}
    clients = [
        subprocess.Popen(
            [sys.executable, __file__, json.dumps({**sent, "streams": list(share)})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for share in shares
    ]
    start_together(clients)
    answers = [client.communicate()[0] for client in clients]
    if any(client.returncode for client in clients):
        raise SystemExit("a client failed")
    return [json.loads(answer) for answer in answers]


def start_together(clients: list[subprocess.Popen[bytes]]) -> None:
    """Let the clients start at the same time when all of them are ready."""
    for client in clients:
        assert client.stdout is not None
        client.stdout.readline()  # empty if it has failed
    start = f"{time.time() + START_S}\n".encode()
    for client in clients:
        assert client.stdin is not None
        with suppress(BrokenPipeError):
            client.stdin.write(start)
            client.stdin.flush()


def request_all(url: str, arguments: argparse.Namespace, num_streams: int, num_rounds: int) -> Run:
    orders = {"streams": num_streams, "rounds": num_rounds}
    runs = [Run(**one) for one in start_clients(url, arguments, orders)]
    first_ms = [ms for run in runs for ms in run.first_ms]
    return Run(first_ms, sum(run.audio_s for run in runs), max(run.wall_s for run in runs))


def request_live(url: str, arguments: argparse.Namespace) -> dict[str, Any]:
    from vivace.cli.bench.load import ClientResult, summarise_live

    orders = {"streams": arguments.live, "seconds": arguments.seconds}
    answers = start_clients(url, arguments, orders)
    results = [ClientResult(**one) for answer in answers for one in answer]
    return summarise_live(results, arguments.live, arguments.seconds)


async def run_client(orders: dict[str, Any]) -> Any:
    host, _, port = orders["url"].removeprefix("http://").rpartition(":")
    streams = orders["streams"]
    if "seconds" in orders:
        return await play_all(orders, host, int(port))
    pairs = [await asyncio.open_connection(host, int(port)) for _ in streams]
    wait_for_start()

    async def run_client(place: int) -> list[tuple[float, float]]:
        answers = []
        for size in lengths(orders["frames"], streams[place], orders["rounds"]):
            first_ms, num_bytes = await request_http(*pairs[place], host, request_body(size))
            answers.append((first_ms, num_bytes / BYTES_PER_SECOND))
        return answers

    began = time.perf_counter()
    results = await asyncio.gather(*map(run_client, range(len(streams))))
    return asdict(as_run(results, time.perf_counter() - began))


def wait_for_start() -> None:
    """Report that this client is ready, and wait for the time at which all clients start."""
    print("ready", flush=True)
    time.sleep(max(0.0, float(sys.stdin.readline()) - time.time()))


def request_body(num_frames: int, seed: int = 7) -> bytes:
    body = {"input": TEXT, "response_format": "pcm", "max_new_tokens": num_frames, "seed": seed}
    return json.dumps(body).encode()


async def play_all(orders: dict[str, Any], host: str, port: int) -> list[dict[str, Any]]:
    """Live clients: each plays one utterance after another in real time."""
    from vivace.cli.bench.load import BUFFER_S, LIVE_FRAMES, RAMP_S, Playback

    results = list[dict[str, Any]]()
    wait_for_start()
    until = time.perf_counter() + RAMP_S + orders["seconds"]

    async def play(stream: int) -> None:
        generator = random.Random(stream)
        await asyncio.sleep(generator.uniform(0, RAMP_S))
        pair = await asyncio.open_connection(host, port)
        while time.perf_counter() < until:
            playback = Playback(time.perf_counter())
            body = request_body(generator.randint(*LIVE_FRAMES), generator.randrange(10**6))

            async def pace(num_bytes: int, playback: Playback = playback) -> None:
                now = time.perf_counter()
                playback.receive(num_bytes / BYTES_PER_SECOND, now)
                await asyncio.sleep(max(0.0, playback.played_until - BUFFER_S - now))

            await request_http(*pair, host, body, pace)
            results.append(asdict(playback.result))

    await asyncio.gather(*map(play, orders["streams"]))
    return results


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_client(json.loads(sys.argv[1])))))
