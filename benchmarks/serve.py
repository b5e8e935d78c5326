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
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from released import is_released
from serve_clients import TEXT, Run, request_from_process, rounds, speak_all
from serve_report import compare, deliver, print_row
from served import measure_workers

if TYPE_CHECKING:
    from vivace.tts import TTS


def main() -> None:
    arguments = parse_arguments()
    if arguments.workers is not None:
        measure_workers(arguments)
        return
    tts = load(arguments)
    results = []
    with serving(tts, arguments) as (url, wyoming_url):
        for num_streams in arguments.streams:
            results.append(measure(tts, url, wyoming_url, num_streams, arguments))
            print_row(results[-1])
    deliver(arguments, {"results": results})


def measure(
    tts: TTS, url: str, wyoming_url: str | None, num_streams: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """The figures of the engine and the server with `num_streams` simultaneous streams."""
    options = {"max_frames": arguments.frames, "seed": 7, "guard": False}
    body = {"input": TEXT, "response_format": "pcm", "max_new_tokens": arguments.frames, "seed": 7}
    direct, served, wyoming = list[Run](), list[Run](), list[Run]()
    for _ in rounds(arguments):  # alternating, because the load of the machine may change
        direct.append(asyncio.run(speak_all(tts, num_streams, 1, options)))
        served.append(request_from_process(url, num_streams, 1, body))
        if wyoming_url is not None:
            wyoming.append(request_from_process(wyoming_url, num_streams, 1, {"text": TEXT}))
    row = compare(num_streams, direct[1:], served[1:], wyoming[1:])
    if arguments.rounds:
        size = (num_streams, arguments.rounds)
        alone = asyncio.run(speak_all(tts, *size, options))
        steady = request_from_process(url, *size, body)
        row["steady"] = compare(num_streams, [alone], [steady], [])
    return row


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


def load(arguments: argparse.Namespace) -> Any:
    from vivace import TTS

    most = max(arguments.streams)
    if is_released(arguments.model):
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


@contextmanager
def serving(tts: Any, arguments: argparse.Namespace) -> Iterator[tuple[str, str | None]]:
    """Run a server of this model in a thread and yield its URLs."""
    from vivace.serve.context import ServeContext
    from vivace.serve.server import Server
    from vivace.serve.settings import ServeSettings

    wyoming_port = None if is_released(arguments.model) else 0
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


if __name__ == "__main__":
    main()
