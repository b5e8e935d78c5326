"""Streams that are played in real time, simulated with the scheduler and the times of an H200."""

from __future__ import annotations

import dataclasses
import random

import pytest

from vivace.plan.figures import Figures, load_figures
from vivace.plan.replica import FRAME_MS, SimulatedReplica, SimulatedUtterance

BUFFER_MS = 500.0  # audio that a client holds before it reads more
SECONDS = 6
RAMP_MS = 2_000.0


class LiveReplica(SimulatedReplica):
    """Its clients request a chunk when less than `BUFFER_MS` of audio is left."""

    def schedule_request(self, utterance: SimulatedUtterance) -> None:
        time_ms = max(self.now, utterance.playback_end_ms - BUFFER_MS)
        self.schedule(time_ms, lambda: self._request_chunk(utterance))


def figures(model: str) -> Figures:
    return dataclasses.replace(load_figures("h200", model), num_slots=1_024)


def play(replica: LiveReplica, num_streams: int, spread_ms: float) -> list[SimulatedUtterance]:
    """Clients that begin within `spread_ms` and speak one utterance after another."""
    generator, played = random.Random(3), list[SimulatedUtterance]()
    until_ms = spread_ms + 1000 * SECONDS

    def speak() -> None:
        num_frames = generator.randint(60, 190)
        played.append(SimulatedUtterance(replica.now, num_frames, on_end=lambda _: speak()))
        replica.speak(played[-1])

    for _ in range(num_streams):
        replica.schedule(generator.uniform(0, spread_ms), speak)
    replica.run(until_ms)
    return played


@pytest.mark.parametrize(("model", "num_streams"), [("0.6B", 800), ("1.7B", 700)])
def test_live_streams_do_not_underrun(model: str, num_streams: int) -> None:
    played = play(LiveReplica(figures(model)), num_streams, RAMP_MS)
    assert sum(one.num_underruns for one in played) == 0
    audio_s = sum(one.num_read for one in played) * FRAME_MS / 1000
    assert audio_s > 0.8 * num_streams * SECONDS


@pytest.mark.parametrize("spread_ms", [1.0, 75.0])
@pytest.mark.parametrize("model", ["0.6B", "1.7B"])
def test_a_burst_of_256_requests_does_not_underrun(model: str, spread_ms: float) -> None:
    played = play(LiveReplica(figures(model)), 256, spread_ms)
    assert sum(one.num_underruns for one in played) == 0
    assert max(one.first_audio_ms for one in played) < 500
