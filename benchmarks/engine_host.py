"""Measures the CPU time of the engine's thread with many streams, without a model.

    python benchmarks/engine_host.py --streams 64,256,1024

The engine runs the `cuda_graph` backend on the CPU. Its graphs are replaced by functions that only
advance the counters of the slots, so all CPU time is spent by the host's code: scheduling, queuing
frames and the codec, reading results and delivering them. Turns and readers run in one thread, one
after the other. A stream that ends is replaced by a new one. `burst` is the admission of requests
that are made together, from their opening up to their first chunks.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import current_thread
from typing import Any, ParamSpec, TypeVar
from unittest.mock import patch

import engine as engine_benchmark
import numpy as np
from engine import random_tts
from numpy.typing import NDArray
from report import read_sizes, write_report
from torch import Tensor

from vivace.backends.base import Frames, Rendered
from vivace.backends.cuda_graph import stepper
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.codec import graphs as codec_graphs
from vivace.backends.cuda_graph.slots.table import RING, Status
from vivace.checkpoint import EMBEDDED
from vivace.cli.bench.machine import machine
from vivace.engine.checkpoints import attention
from vivace.engine.limits import EngineLimits
from vivace.engine.streams.stream import Stream
from vivace.engine.turns.worker import EngineWorker
from vivace.engine.utterances.steps import Wait
from vivace.serve.garbage_collection import collect_less_often
from vivace.tts import TTS

TEXT = "The river babbled inanely to itself, and nobody came to see it any more."
SHORTEST, LONGEST = 96, 160  # frames of an utterance
MAX_FRAMES = 256  # of a slot

# Of the engine's thread: messages of readers; sweeps, plan and wake-ups; prompts; queuing frames;
# reading their codes; giving them to utterances; the codec; delivering audio; freeing slots
ENGINE_PHASES = (
    *("messages", "schedule", "admit", "prepare", "read", "collect", "render", "deliver"),
    "release",
)
READER_PHASES = ("readers", "open")

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[[], object]


class PhaseClock:
    """CPU time of this thread by phase. An inner phase does not count for the outer one."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._phases = ["other"]
        self._since = time.thread_time()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.charge()
        self._phases.append(name)
        try:
            yield
        finally:
            self.charge()
            self._phases.pop()

    def charge(self) -> None:
        now = time.thread_time()
        self.seconds[self._phases[-1]] += now - self._since
        self._since = now

    def clear(self) -> None:
        self.charge()
        self.seconds.clear()

    def timed(self, name: str, function: Callable[P, T]) -> Callable[P, T]:
        def run(*args: P.args, **options: P.kwargs) -> T:
            with self.phase(name):
                return function(*args, **options)

        return run


class CountingGraphs:
    """Stands in for the graphs of a backend: advances slots without computing anything."""

    def __init__(self, backend: CudaGraphBackend) -> None:
        self._backend: Any = backend
        num_rows = backend.max_streams + 1
        self._num_made = np.zeros(num_rows, np.int64)
        self._lengths = np.random.default_rng(1).integers(SHORTEST, LONGEST, num_rows)
        self._reports: NDArray[np.int32] = self._backend._stepper._reports.numpy()
        self._reports[:, 2:] = np.random.default_rng(2).integers(0, 64, self._reports[:, 2:].shape)
        self._shares = self._reports[:, stepper.SHARES].view(np.float32)
        self._shares[:] = 0.9
        self._backend._codec._samples.numpy().fill(0.1)

    def get(self, key: tuple[Any, ...], work: Work, park: Work) -> Work:
        if key[0] == "prefill":
            return lambda: self._admit(key[1])
        return (lambda: self._step(key[1], key[-1])) if key[0] == "frame" else _do_nothing

    def _admit(self, num_rows: int) -> None:
        lines = self._backend._prefill._inputs[num_rows].lines
        self._num_made[lines[:, 0]] = 0

    def _step(self, batch: int, count: int) -> None:
        rows = np.array(self._backend._stepper._rows._written[:batch])
        lengths, first = self._lengths[rows], self._num_made[rows]
        for frame in first + np.arange(count)[:, None]:  # the attention advances steadily
            self._reports[np.arange(batch), 2 + frame % RING] = frame * 16 // lengths
        made = np.minimum(first + count, lengths)
        self._num_made[rows] = made
        self._reports[:batch, 0] = np.where(made < lengths, Status.RUNNING, Status.STOP)
        self._reports[:batch, 1] = made


def _do_nothing() -> None: ...


class Host:
    """An engine whose turns and readers run in this thread."""

    def __init__(self, num_streams: int, *, is_watched: bool) -> None:
        self.clock = PhaseClock()
        self.num_turns = self.num_stepped = self.num_frames = 0

        def build(name: str, model: Any, decoder: Any, capacity: Any) -> Any:
            backend = CudaGraphBackend(
                model,
                decoder,
                max_streams=num_streams,
                max_frames=MAX_FRAMES,
                layers="plain",
                is_capturing=False,
            )
            graphs = CountingGraphs(backend)
            for pool in (backend.graphs, backend.codec_graphs):
                vars(pool)["get"] = lambda *key: self.clock.timed("stubs", graphs.get(*key))
            backend._layers.packs_prompts = True  # as the layers of a GPU
            if not is_watched:
                backend._table.head = None
            return backend

        limits = EngineLimits(max_streams=num_streams, max_queue=2 * num_streams)
        with (
            patch.object(engine_benchmark, "build_backend", build),
            patch.object(engine_benchmark, "EngineLimits", lambda **_: limits),
        ):
            self.tts: TTS = random_tts(str(EMBEDDED), device="cpu", max_streams=num_streams)
        self.engine: Any = self.tts.engine
        self.engine._thread = current_thread()
        self._time_phases(self.engine._worker, self.engine.backend)

    def _time_phases(self, worker: EngineWorker, backend: Any) -> None:
        clock, pipeline = self.clock, worker.pipeline
        start_step, start_render = backend.start_step, backend.start_render

        def start(slots: Any, num_frames: int) -> Callable[[], Frames]:
            self.num_turns += 1
            self.num_stepped += len(slots)
            self.num_frames += len(slots) * num_frames
            return clock.timed("read", start_step(slots, num_frames))

        def render(slots: Any, frames: Frames) -> Callable[[], Rendered]:
            return clock.timed("render", start_render(slots, frames))

        for target, name, function, phase in (
            (backend, "start_step", start, "prepare"),
            (backend, "start_render", render, "render"),
            (pipeline, "_admit", pipeline._admit, "admit"),
            (pipeline, "_start", pipeline._start, "prepare"),
            (pipeline, "_collect", pipeline._collect, "collect"),
            (pipeline, "_deliver", pipeline._deliver, "deliver"),
            (worker, "_release", worker._release, "release"),
            (self.engine, "_take_turn", self.engine._take_turn, "schedule"),
            (self.engine, "_read_messages", self.engine._read_messages, "messages"),
        ):
            setattr(target, name, clock.timed(phase, function))

    def open(self) -> Stream:
        with self.clock.phase("open"):
            return self.tts.stream(TEXT, language="english", seed=1)

    def turn(self, streams: list[Stream]) -> list[Stream]:
        """Let every reader read, then take a turn. Returns the streams that have not ended."""
        with self.clock.phase("readers"):
            streams = [one for one in streams if advance(one)]
        self.engine._read_messages(False)
        self.engine._take_turn()
        return streams

    def keep_speaking(self, num_streams: int, num_turns: int) -> None:
        """Measure turns while this many streams are live."""
        streams: list[Stream] = []
        for _ in range(2):  # the first turns spread the streams
            self.clear()
            while self.num_turns < num_turns:
                streams += [self.open() for _ in range(num_streams - len(streams))]
                streams = self.turn(streams)
        for one in streams:
            one.close()

    def admit_burst(self, num_requests: int) -> None:
        """Open requests at once and measure until each has its first chunk."""
        self.engine._read_messages(False)
        self.engine._worker.sweep()  # of earlier streams
        self.clear()
        streams = [self.open() for _ in range(num_requests)]
        while not all(one.usage.frames for one in streams):
            streams = self.turn(streams)
        for one in streams:
            one.close()

    def clear(self) -> None:
        self.clock.clear()
        self.num_turns = self.num_stepped = self.num_frames = 0


def advance(stream: Stream) -> bool:
    """Read a stream until its next step waits for frames; False at its end."""
    try:
        while stream.step() is not Wait.FRAMES:
            pass
    except StopIteration:
        return False
    return True


def main() -> None:
    arguments = parse()
    attention.MAX_TRIES = 0  # searches no attention head
    rows = []
    for num_streams in arguments.streams:
        rows += measure(num_streams, arguments)
    if arguments.json:
        report = {"benchmark": "engine_host", "machine": machine(), "rows": rows}
        write_report(arguments.json, report)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=read_sizes, default="64,256,1024")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--burst", type=int, default=256, help="requests, at most one per stream")
    parser.add_argument("--watched", action="store_true", help="check that every word is spoken")
    parser.add_argument("--profile", choices=("burst", "steady"), help="functions by time")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


class NoCopies:
    """Takes the place of `HostCopies`: results are read where they are."""

    def start(self, tensor: Tensor) -> Callable[[], NDArray[Any]]:
        return tensor.numpy


def measure(num_streams: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    with patch.object(codec_graphs, "HostCopies", NoCopies):
        host = Host(num_streams, is_watched=arguments.watched)
        collect_less_often()  # as the server and `vivace bench` do
        num_requests = min(arguments.burst, num_streams)
        host.admit_burst(num_requests)  # the first one fills caches
        with profiled(arguments.profile == "burst"):
            host.admit_burst(num_requests)
        rows = [summarise(host, num_streams, f"burst of {num_requests}")]
        with profiled(arguments.profile == "steady"):
            host.keep_speaking(num_streams, arguments.turns)
        rows.append(summarise(host, num_streams, "steady"))
        gc.unfreeze()
    return rows


@contextmanager
def profiled(is_wanted: bool) -> Iterator[None]:
    with cProfile.Profile() if is_wanted else nullcontext() as profile:
        yield
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


def summarise(host: Host, num_streams: int, load: str) -> dict[str, Any]:
    host.clock.charge()
    num_turns, seconds = host.num_turns, host.clock.seconds
    phases = {
        name: round(1e6 * seconds[name] / num_turns) for name in (*ENGINE_PHASES, *READER_PHASES)
    }
    engine_us = 1e6 * sum(seconds[name] for name in ENGINE_PHASES)
    row = {
        "streams": num_streams,
        "load": load,
        "turns": num_turns,
        "stepped": round(host.num_stepped / num_turns, 1),
        "frames": round(host.num_frames / host.num_stepped, 2),
        "us_per_turn": phases,
        "engine_us_per_turn": round(engine_us / num_turns),
        "engine_us_per_stream": round(engine_us / host.num_stepped, 1),
    }
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
