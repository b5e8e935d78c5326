"""Measures the CPU time that the completeness check adds on the host, without a model.

    python benchmarks/guard_host.py --streams 1,8,64 --json benchmarks/results/guard-host.json

A backend without a model returns prepared frames, samples and attention places, so all CPU time is
spent in Python: the engine's thread and the reader. Runs with and without the check alternate; the
figures are minima over all rounds. `steady` attention advances by one text id every few frames.
`random` attention is that of random weights: most frames raise a fault, and no fault is repaired.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import current_thread
from typing import Any
from unittest.mock import patch

import numpy as np
from engine_host import TEXT, advance
from report import read_sizes, write_report

from vivace.backends.base import Admission, Frames, Places, Rendered, Slot, SlotStatus
from vivace.cli.bench.machine import machine
from vivace.engine.checkpoints import attention
from vivace.engine.streams.stream import Stream
from vivace.engine.utterances import follower, retry
from vivace.model.config import Head
from vivace.tts import TTS

NUM_FRAMES = 120  # of every utterance
NUM_CODEBOOKS = 6
SAMPLES_PER_FRAME = 1_920
MAX_TURN = 64  # frames
SHARE = 0.9  # of the attention that is on the text


@dataclass
class Generation:
    places: list[tuple[int, float]]
    num_made: int = 0


@dataclass
class PreparedBackend:
    """Returns prepared results. Implements `vivace.backends.base.Backend`."""

    is_random: bool
    name: str = "prepared"
    max_streams: int = 64
    shares_work: bool = True
    max_prompt_rows: int = 2048
    renders_beside: bool = True
    watched: Head | None = None
    turns: list[tuple[int, int]] = field(default_factory=list)  # slots, frames
    _slots: dict[Slot, Generation] = field(default_factory=dict)
    _num_admitted: int = 0

    def __post_init__(self) -> None:
        codes = np.random.default_rng(1).integers(0, 2_048, (1, NUM_FRAMES + MAX_TURN, 1))
        self._codes = np.tile(codes, (self.max_streams, 1, NUM_CODEBOOKS))
        self._samples = np.full(MAX_TURN * SAMPLES_PER_FRAME, 0.1, np.float32)
        self._loudness = np.full(MAX_TURN, 0.1, np.float32)
        self._random = random.Random(1)

    def admit_many(self, requests: Sequence[Admission]) -> list[Slot | Exception]:
        slots: list[Slot | Exception] = []
        for prompt, _ in requests:
            self._num_admitted += 1
            self._slots[self._num_admitted] = Generation(self._places(prompt.num_own_ids))
            slots.append(self._num_admitted)
        return slots

    def _places(self, num_ids: int) -> list[tuple[int, float]]:
        if self.is_random:
            return [(self._random.randrange(num_ids), SHARE) for _ in range(NUM_FRAMES)]
        return [(frame * num_ids // NUM_FRAMES, SHARE) for frame in range(NUM_FRAMES)]

    def start_step(self, slots: Sequence[Slot], num_frames: int) -> Callable[[], Frames]:
        self.turns.append((len(slots), num_frames))
        lengths: list[int] = []
        status: list[SlotStatus] = []
        places: list[Places] = []
        for slot in slots:
            one = self._slots[slot]
            first, one.num_made = one.num_made, min(one.num_made + num_frames, NUM_FRAMES)
            lengths.append(one.num_made - first)
            status.append("stop" if one.num_made == NUM_FRAMES else "running")
            if self.watched is not None:
                places.append(one.places[first : one.num_made])
        codes = self._codes[: len(slots), first : first + max(lengths)]
        reported = None if self.watched is None else tuple(places)
        frames = Frames(codes, tuple(lengths), tuple(status), reported)
        return lambda: frames

    def start_render(self, slots: Sequence[Slot], frames: Frames) -> Callable[[], Rendered]:
        samples = [self._samples[: count * SAMPLES_PER_FRAME] for count in frames.lengths]
        rendered = Rendered(samples, [self._loudness[:count] for count in frames.lengths])
        return lambda: rendered

    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None: ...

    def release(self, slot: Slot) -> None:
        del self._slots[slot]

    def watch(self, head: Head) -> None:
        self.watched = head

    def warmup(self) -> None: ...

    def memory(self) -> dict[str, int]:
        return {}

    def facts(self) -> dict[str, str]:
        return {}


def main() -> None:
    arguments = parse()
    retry.MAX_RETRIES = 0  # as in benchmarks/completeness_cost.py
    follower.TAIL_FRAMES = 10**9
    attention.MAX_TRIES = 0  # the runs without the check search no head
    rows = []
    for is_random in (False, True):
        for num_streams in arguments.streams:
            rows.append(measure(num_streams, is_random, arguments))
            print(json.dumps(rows[-1]), flush=True)
    if arguments.json:
        report = {"benchmark": "guard_host", "machine": machine(), "rows": rows}
        write_report(arguments.json, report)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=read_sizes, default="1,8,64")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--texts", type=int, default=64, help="spoken in a round")
    parser.add_argument("--profile", action="store_true", help="profile the checked runs")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def measure(num_streams: int, is_random: bool, arguments: argparse.Namespace) -> dict[str, Any]:
    backend = PreparedBackend(is_random, max_streams=num_streams)
    with patch("vivace.engine.checkpoints.loading.build_backend", lambda *_: backend):
        tts = TTS.load(device="cpu", max_streams=num_streams)
    tts.engine._thread = current_thread()  # turns are run here, not in a second thread
    seconds: dict[bool, list[float]] = {True: [], False: []}
    turns: dict[bool, list[tuple[int, int]]] = {}
    for number in range(2 * arguments.rounds + 2):
        is_checked = number % 2 == 1
        backend.watched, backend.turns = Head(0, 0) if is_checked else None, []
        profile = cProfile.Profile() if arguments.profile and number == 3 else None
        taken = speak(tts, max(arguments.texts, num_streams), num_streams, profile)
        turns[is_checked] = backend.turns
        if number >= 2:
            seconds[is_checked].append(taken)
    return {"streams": num_streams, "attention": "random" if is_random else "steady"} | compare(
        min(seconds[False]), min(seconds[True]), turns[False], turns[True]
    )


def speak(tts: TTS, num_texts: int, num_streams: int, profile: cProfile.Profile | None) -> float:
    """Returns the seconds of CPU time, without those in which texts are prepared."""
    taken = 0.0
    for _ in range(0, num_texts, num_streams):
        streams = [
            tts.stream(TEXT, language="english", seed=1, chunk_frames=8) for _ in range(num_streams)
        ]
        with profile or nullcontext():
            began = time.process_time()
            read(tts.engine, streams)
            taken += time.process_time() - began
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    return taken


def read(engine: Any, streams: list[Stream]) -> None:
    """Alternate between the readers and the engine's turns."""
    while streams:
        streams = [one for one in streams if advance(one)]
        engine._read_messages(False)
        engine._take_turn()


def compare(
    plain_s: float,
    checked_s: float,
    plain: Sequence[tuple[int, int]],
    checked: Sequence[tuple[int, int]],
) -> dict[str, Any]:
    num_plain, num_checked = (sum(slots for slots, _ in turns) for turns in (plain, checked))
    return {
        "stream_turns": num_plain,
        "stream_turns_checked": num_checked,
        "us_per_stream_turn": round(1e6 * plain_s / num_plain, 1),
        "us_per_stream_turn_checked": round(1e6 * checked_s / num_checked, 1),
        "added_us_per_stream_turn": round(1e6 * (checked_s - plain_s) / num_plain, 1),
    }


if __name__ == "__main__":
    main()
