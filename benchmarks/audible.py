"""Time from the call to the first audible sample, with true shapes and a silent start.

    python benchmarks/audible.py 0.6B-CustomVoice 1.7B-CustomVoice --json benchmarks/results/x.json

Speech of the released checkpoints begins with silence: about one frame of 80 ms for preset voices,
up to six frames for voices cloned from a speaker vector. Random weights make no silence, so
`SilentStart` sets the samples of the first frames to zero after the codec has rendered them. The
engine makes and renders all frames as usual, and `trim_start` removes the zeros.

`in_process` reads `tts.stream` in this process, one request after another. Each begins when the
engine is idle: the frames of a cancelled request would delay it. `http` sends requests at random
times with `--rate` requests per second on average, from another process, and waits for the
first 16-bit sample above -50 dBFS in the response. It is left out if the server's packages are not
installed. Times are milliseconds from the request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from report import write_report
from serve import serving
from serve_clients import TEXT

from vivace.audio.trim import first_audible

if TYPE_CHECKING:  # the client's process starts without torch
    from vivace.backends.base import Backend, Frames, Rendered, Slot
    from vivace.tts import TTS

SILENT_FRAMES = {"preset voice": 1, "speaker vector": 6}
NUM_FRAMES = 24  # of one utterance
WARM_UP = 3  # requests that are not counted
PAUSE_S = 0.1  # between requests in process: a cancelled one may have frames in flight


class SilentStart:
    """Makes the first rendered frames of every slot silent."""

    def __init__(self, backend: Backend) -> None:
        self.num_frames = 0  # of silence at the start of a slot
        self._num_rendered: dict[Slot, int] = {}
        self._start_render, self._release = backend.start_render, backend.release
        replaced: Any = backend
        replaced.start_render, replaced.release = self.start_render, self.release

    def start_render(self, slots: Sequence[Slot], frames: Frames) -> Callable[[], Rendered]:
        wait = self._start_render(slots, frames)
        done = [self._num_rendered.get(slot, 0) for slot in slots]
        for slot, before, length in zip(slots, done, frames.lengths, strict=True):
            self._num_rendered[slot] = before + length

        def silenced() -> Rendered:
            rendered = wait()
            for row, before in enumerate(done):
                num_silent = min(frames.lengths[row], max(0, self.num_frames - before))
                if num_silent:
                    length = frames.lengths[row]
                    rendered.samples[row] = _silence(rendered.samples[row], num_silent / length)
                    rendered.loudness[row] = _silence(rendered.loudness[row], num_silent / length)
            return rendered

        return silenced

    def release(self, slot: Slot) -> None:
        self._num_rendered.pop(slot, None)
        self._release(slot)


def _silence(values: NDArray[np.float32], share: float) -> NDArray[np.float32]:
    """The values with the first `share` of them set to zero."""
    silenced: NDArray[np.float32] = values.copy()  # the backend may own the memory
    silenced[: round(share * len(values))] = 0
    return silenced


def main() -> None:
    if sys.argv[1:2] == ["--client"]:
        print(json.dumps(asyncio.run(request_all(**json.loads(sys.argv[2])))))
        return
    arguments = parse_arguments()
    results = [row for model in arguments.models for row in measure(model, arguments)]
    if arguments.json:
        from vivace.cli.bench.machine import machine

        report = {"benchmark": "audible", "machine": machine(), "results": results}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_report(arguments.json, report)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", help="released models' names or checkpoint folders")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--repeats", type=int, default=30, help="requests in process")
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second over HTTP")
    parser.add_argument("--seconds", type=float, default=10.0, help="of requests over HTTP")
    parser.add_argument("--json", type=Path, help="where to write the results")
    return parser.parse_args()


def measure(model: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from engine import random_tts

    tts = random_tts(model, device=arguments.device, backend=arguments.backend, max_streams=8)
    tts.warmup()
    silent = SilentStart(tts.engine.backend)
    rows = []
    for start, silent.num_frames in SILENT_FRAMES.items():
        row: dict[str, Any] = {"model": model, "backend": tts.engine.backend.name, "start": start}
        row["silent_frames"] = silent.num_frames
        row["in_process"] = summarize(speak_all(tts, silent.num_frames, arguments.repeats))
        rows.append(row)
    if (reason := why_no_server()) is not None:
        print(f"not measured over HTTP: {reason}")
        tts.close()
    else:
        with serving(tts, argparse.Namespace(model=model)) as (url, _):
            for row in rows:
                silent.num_frames = row["silent_frames"]
                found = request_from_process(url, arguments)
                row["http"] = {"requests_per_s": arguments.rate, **found}
    for row in rows:
        print_row(row)
    return rows


def why_no_server() -> str | None:
    """The package of the server that is not installed, or None."""
    try:
        import vivace.serve.server  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def summarize(times: list[float]) -> dict[str, float]:
    from vivace.cli.bench.load import percentiles

    return percentiles(times)


def print_row(row: dict[str, Any]) -> None:
    inside = row["in_process"]
    text = f"in process p50 {inside['p50']:.1f}, p95 {inside['p95']:.1f} ms"
    if "http" in row:
        http = row["http"]["audible_ms"]
        rate = row["http"]["requests_per_s"]
        text += f"; over HTTP at {rate:g}/s p50 {http['p50']:.1f}, p95 {http['p95']:.1f} ms"
    print(f"{row['model']}, {row['backend']}, {row['silent_frames']} silent: {text}", flush=True)


# -- in process -----------------------------------------------------------------------------------


def speak_all(tts: TTS, num_silent: int, repeats: int) -> list[float]:
    """`audible_ms` of requests, one after another."""
    return [speak(tts, num_silent, seed) for seed in range(WARM_UP + repeats)][WARM_UP:]


def speak(tts: TTS, num_silent: int, seed: int) -> float:
    time.sleep(PAUSE_S)
    began = time.perf_counter()
    sampling: dict[str, Any] = {"max_frames": NUM_FRAMES, "min_frames": NUM_FRAMES, "guard": False}
    with tts.stream(TEXT, seed=seed, language="english", **sampling) as stream:
        chunk = next(stream)
        audible_ms = 1000 * (time.perf_counter() - began)
    if first_audible(chunk.samples) is None or len(chunk.codes) <= num_silent:
        raise SystemExit(f"the first chunk is not audible after {num_silent} silent frames")
    return audible_ms


# -- over HTTP ------------------------------------------------------------------------------------


def request_from_process(url: str, arguments: argparse.Namespace) -> dict[str, Any]:
    order = json.dumps({"url": url, "rate": arguments.rate, "seconds": arguments.seconds})
    command = [sys.executable, __file__, "--client", order]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    times: list[float] = json.loads(done.stdout)
    return {"requests": len(times), "audible_ms": summarize(times)}


async def request_all(url: str, rate: float, seconds: float) -> list[float]:
    """Send requests at random times. A request's time counts from when it was due."""
    generator, tasks = random.Random(7), list[asyncio.Task[float]]()
    host, _, port = url.partition("://")[2].rpartition(":")
    for _ in range(WARM_UP):
        await request_speech(host, int(port), time.perf_counter())
    began, due = time.perf_counter(), 0.0
    while (due := due + generator.expovariate(rate)) < seconds or not tasks:
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        tasks.append(asyncio.create_task(request_speech(host, int(port), began + due)))
    return list(await asyncio.gather(*tasks))


async def request_speech(host: str, port: int, began: float) -> float:
    """Milliseconds to the first audible sample."""
    fields = {"input": TEXT, "response_format": "pcm", "max_new_tokens": NUM_FRAMES, "seed": 7}
    body = json.dumps(fields).encode()
    reader, writer = await asyncio.open_connection(host, port)
    head = (
        f"POST /v1/audio/speech HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    status = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
    if b" 200" not in status:
        raise SystemExit(f"the server returned {status.decode()}")
    audible_ms = None
    while num_bytes := int(await reader.readline(), 16):
        pcm = np.frombuffer(await reader.readexactly(num_bytes), np.int16)
        samples = pcm.astype(np.float32) / np.float32(32_768)
        await reader.readexactly(2)
        if audible_ms is None and first_audible(samples) is not None:
            audible_ms = 1000 * (time.perf_counter() - began)
    writer.close()
    if audible_ms is None:
        raise SystemExit("the response has no audible sample")
    return audible_ms


if __name__ == "__main__":
    main()
