"""Compares speech over HTTP and Wyoming with the engine alone: first audio and throughput.

    PYTHONPATH=src python benchmarks/serve.py --streams 1 8 64 --json benchmarks/results/serve.json
    PYTHONPATH=src python benchmarks/serve.py 1.7B-CustomVoice --frames 100 --streams 1 64
    PYTHONPATH=src python benchmarks/serve.py 0.6B-CustomVoice --workers 4 --streams 64 --live 600

The model is the embedded voice (default), a checkpoint, or a released model's name, which selects
random weights of its shape (`:half` after it: codec in half precision). Every stream speaks one
utterance of at most `--frames` frames. The engine is measured with `tts.astream` in this process,
the server with as many connections from another process over loopback. `--workers N` measures
`vivace serve --workers N` in processes of its own instead (`served.py`).

All streams start at the same time. `--rounds N` adds the figure `steady`: each client speaks N
utterances in sequence, of 0.5 to 1.5 times the frames; the wait for the first one is not counted.
Wyoming needs its extra. It has no frame limit, so models with random weights, which do not end, are
not measured with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from report import write_report

TEXT = "It was a bright cold day in April, and the clocks were striking thirteen."
BYTES_PER_SECOND = 48_000  # of 16-bit samples at 24 kHz


@dataclass(frozen=True)
class Run:
    """One round with a number of simultaneous streams."""

    first_ms: list[float]
    audio_s: float
    wall_s: float


def main() -> None:
    if sys.argv[1:2] == ["--client"]:
        url, num_streams, num_rounds, sent = sys.argv[2:]
        run = asyncio.run(request_all(url, int(num_streams), int(num_rounds), json.loads(sent)))
        print(json.dumps(asdict(run)))
        return
    arguments = parse_arguments()
    if arguments.workers is not None:
        from served import measure

        measure(arguments)
        return
    tts = load(arguments)
    options = {"max_frames": arguments.frames, "seed": 7, "guard": False}
    results = []
    with serving(tts, arguments) as (url, wyoming_url):
        for num_streams in arguments.streams:
            body: dict[str, Any] = {
                "input": TEXT,
                "response_format": "pcm",
                "max_new_tokens": arguments.frames,
                "seed": 7,
            }
            direct, served, wyoming = list[Run](), list[Run](), list[Run]()
            for _ in rounds(arguments):  # alternating, because the load of the machine may change
                direct.append(asyncio.run(speak_all(tts, num_streams, 1, options)))
                served.append(request_from_process(url, num_streams, 1, body))
                if wyoming_url is not None:
                    wyoming.append(
                        request_from_process(wyoming_url, num_streams, 1, {"text": TEXT})
                    )
            results.append(compare(num_streams, direct[1:], served[1:], wyoming[1:]))
            if arguments.rounds:
                size = (num_streams, arguments.rounds)
                alone = asyncio.run(speak_all(tts, *size, options))
                steady = request_from_process(url, *size, body)
                results[-1]["steady"] = compare(num_streams, [alone], [steady], [])
            print_row(results[-1])
    deliver(arguments, {"results": results})


def deliver(arguments: argparse.Namespace, figures: dict[str, Any]) -> None:
    if arguments.json:
        from vivace.cli.bench.machine import machine

        report = {"benchmark": "serve", "machine": machine(), "model": arguments.model}
        report |= {"frames": arguments.frames, **figures}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_report(arguments.json, report)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="embedded")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64], help="at once")
    parser.add_argument("--frames", type=int, default=50, help="frames of an utterance, 80 ms each")
    parser.add_argument("--repeats", type=int, default=3, help="measured rounds after a warm-up")
    parser.add_argument("--rounds", type=int, default=0, help="utterances per client for `steady`")
    parser.add_argument("--workers", type=int, help="measure `vivace serve` with so many workers")
    parser.add_argument("--live", type=int, default=0, help="paced clients; needs --workers")
    parser.add_argument("--seconds", type=float, default=10.0, help="of live playback")
    parser.add_argument("--clients", type=int, default=4, help="client processes; with --workers")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--json", type=Path, help="where to write the results")
    return parser.parse_args()


def rounds(arguments: argparse.Namespace) -> range:
    return range(arguments.repeats + 1)  # the first is a warm-up


def load(arguments: argparse.Namespace) -> Any:
    from vivace import TTS

    most = max(arguments.streams)
    if is_random(arguments.model):
        from engine import random_tts

        name, _, precision = arguments.model.partition(":")
        return random_tts(
            name,
            device=arguments.device,
            dtype=arguments.dtype,
            backend=arguments.backend,
            max_streams=most,
            codec_precision=precision or "auto",
        )
    source = None if arguments.model == "embedded" else arguments.model
    return TTS.load(
        source,
        device=arguments.device,
        dtype=arguments.dtype,
        backend=arguments.backend,
        max_streams=most,
    )


def is_random(model: str) -> bool:
    from released import RELEASED_MODELS

    return model.partition(":")[0] in RELEASED_MODELS


@contextmanager
def serving(tts: Any, arguments: argparse.Namespace) -> Iterator[tuple[str, str | None]]:
    """Run a server of this model in a thread and yield its URLs."""
    from vivace.serve.context import ServeContext
    from vivace.serve.server import Server
    from vivace.serve.settings import ServeSettings

    wyoming_port = None if is_random(arguments.model) else 0
    settings = ServeSettings(port=0, wyoming_port=wyoming_port)
    server = Server(ServeContext.create(settings, lambda spec: tts))
    loop, is_up = asyncio.new_event_loop(), threading.Event()
    urls: list[str | None] = []

    def on_ready(url: str) -> None:
        urls.extend((url, server.wyoming_url))
        is_up.set()

    def work() -> None:
        try:
            loop.run_until_complete(server.serve(on_ready))
        finally:
            is_up.set()

    thread = threading.Thread(target=work)
    thread.start()
    is_up.wait()
    try:
        yield str(urls[0]), urls[1]
    finally:
        loop.call_soon_threadsafe(server.stop)
        thread.join()


# -- the engine alone -----------------------------------------------------------------------------


def lengths(most: int, stream: int, num_rounds: int) -> list[int]:
    """Frames of each utterance of a client: constant, or 0.5 to 1.5 times `frames` for `steady`."""
    if num_rounds == 1:
        return [most]
    chance = random.Random(stream)
    return [chance.randint(most // 2, most * 3 // 2) for _ in range(num_rounds)]


async def speak_all(tts: Any, num_streams: int, num_rounds: int, options: dict[str, Any]) -> Run:
    async def run_client(stream: int) -> list[tuple[float, float]]:
        sizes = lengths(options["max_frames"], stream, num_rounds)
        return [await speak(tts, {**options, "max_frames": size}) for size in sizes]

    began = time.perf_counter()
    results = await asyncio.gather(*map(run_client, range(num_streams)))
    return as_run(results, time.perf_counter() - began)


def as_run(results: list[list[tuple[float, float]]], wall_s: float) -> Run:
    """Combine results. With several utterances per client, the first wait is not counted."""
    first_ms = [ms for one in results for ms, _ in one[min(1, len(one) - 1) :]]
    return Run(first_ms, sum(audio_s for one in results for _, audio_s in one), wall_s)


async def speak(tts: Any, options: dict[str, Any]) -> tuple[float, float]:
    began, first_ms, audio_s = time.perf_counter(), 0.0, 0.0
    async for chunk in tts.astream(TEXT, **options):
        first_ms = first_ms or 1000 * (time.perf_counter() - began)
        audio_s += len(chunk.samples) / chunk.sample_rate
    return first_ms, audio_s


# -- over HTTP ------------------------------------------------------------------------------------


def request_from_process(url: str, num_streams: int, num_rounds: int, body: dict[str, Any]) -> Run:
    sizes = [str(num_streams), str(num_rounds)]
    command = [sys.executable, __file__, "--client", url, *sizes, json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Run(**json.loads(done.stdout))


async def request_all(url: str, num_streams: int, num_rounds: int, body: dict[str, Any]) -> Run:
    scheme, _, where = url.partition("://")
    host, _, port = where.rpartition(":")
    request = request_http if scheme == "http" else request_wyoming
    pairs = [await asyncio.open_connection(host, int(port)) for _ in range(num_streams)]

    async def run_client(stream: int) -> list[tuple[float, float]]:
        answers = []
        for size in lengths(body.get("max_new_tokens", 0), stream, num_rounds):
            sent = body | {"max_new_tokens": size} if scheme == "http" else body
            first_ms, num_bytes = await request(*pairs[stream], host, json.dumps(sent).encode())
            answers.append((first_ms, num_bytes / BYTES_PER_SECOND))
        pairs[stream][1].close()
        return answers

    began = time.perf_counter()
    results = await asyncio.gather(*map(run_client, range(num_streams)))
    return as_run(results, time.perf_counter() - began)


async def request_http(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    host: str,
    body: bytes,
    receive: Callable[[int], Awaitable[None]] | None = None,
) -> tuple[float, int]:
    """Milliseconds to the first byte of audio, and the number of bytes.

    `receive` is called with the number of bytes of each chunk.
    """
    head = (
        f"POST /v1/audio/speech HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    began, first_ms, total = time.perf_counter(), 0.0, 0
    writer.write(head.encode() + body)
    status = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
    if b" 200" not in status:
        raise SystemExit(f"the server returned {status.decode()}")
    while num_bytes := int(await reader.readline(), 16):
        await reader.readexactly(num_bytes + 2)
        first_ms = first_ms or 1000 * (time.perf_counter() - began)
        total += num_bytes
        if receive is not None:
            await receive(num_bytes)
    await reader.readline()  # the end of the last chunk
    return first_ms, total


async def request_wyoming(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, body: bytes
) -> tuple[float, int]:
    began, first_ms, total = time.perf_counter(), 0.0, 0
    writer.write(b'{"type": "synthesize", "data_length": %d}\n' % len(body) + body)
    while (event := json.loads(await reader.readline()))["type"] != "audio-stop":
        if event["type"] == "error":
            raise SystemExit("the server returned an error")
        num_bytes = event.get("payload_length", 0)
        await reader.readexactly(event.get("data_length", 0) + num_bytes)
        if num_bytes:
            first_ms = first_ms or 1000 * (time.perf_counter() - began)
            total += num_bytes
    return first_ms, total


# -- figures --------------------------------------------------------------------------------------


def compare(
    num_streams: int, direct: list[Run], served: list[Run], wyoming: list[Run]
) -> dict[str, Any]:
    engine, http = summarise(direct), summarise(served)
    kept = http["audio_s_per_s"] / engine["audio_s_per_s"]
    found = {"streams": num_streams, "engine": engine, "http": http, "kept": round(kept, 3)}
    found["added_first_ms"] = round(http["first_ms_p50"] - engine["first_ms_p50"], 2)
    return {**found, "wyoming": summarise(wyoming)} if wyoming else found


def summarise(runs: list[Run]) -> dict[str, float]:
    first = sorted(ms for run in runs for ms in run.first_ms)
    return {
        "first_ms_p50": round(statistics.median(first), 2),
        "first_ms_p99": round(first[min(len(first) - 1, round(0.99 * len(first)))], 2),
        "audio_s_per_s": round(statistics.median(run.audio_s / run.wall_s for run in runs), 2),
    }


def print_row(result: dict[str, Any]) -> None:
    engine, http, wyoming = result["engine"], result["http"], ""
    if "wyoming" in result:
        figures = result["wyoming"]
        wyoming = (
            f", over Wyoming {figures['first_ms_p50']:.1f} (p99 {figures['first_ms_p99']:.1f})"
        )
    print(
        f"{result['streams']:4d} streams: first audio {engine['first_ms_p50']:.1f} ms "
        f"(p99 {engine['first_ms_p99']:.1f}), over HTTP {http['first_ms_p50']:.1f} "
        f"(p99 {http['first_ms_p99']:.1f}){wyoming}; "
        f"{engine['audio_s_per_s']:.1f} s of audio a second, "
        f"over HTTP {http['audio_s_per_s']:.1f} ({result['kept']:.0%})",
        flush=True,
    )
    if "steady" in result:
        print("steady:", end="")
        print_row(result["steady"])


if __name__ == "__main__":
    main()
