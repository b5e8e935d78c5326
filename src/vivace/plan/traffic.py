"""Traffic for a simulated replica: continuous streams, and phone calls."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from vivace.plan.figures import Figures
from vivace.plan.replica import FRAME_MS, SimulatedReplica, SimulatedUtterance

SPREAD = 0.5  # standard deviation of the logarithm of utterance lengths
WARM_UP_S = 5.0


@dataclass(frozen=True, slots=True)
class TrafficResult:
    """Measurements of a period of simulated time."""

    first_audio_ms: tuple[float, ...]  # of each request
    num_underruns: int
    audio_s: float
    seconds: float
    peak_streams: int


def simulate_streams(
    figures: Figures, num_streams: int, num_requests: int, num_frames: int
) -> TrafficResult:
    """The streams of `vivace bench --streams`: a new request follows each finished one."""
    replica, utterances = SimulatedReplica(figures), list[SimulatedUtterance]()

    def speak(time_ms: float) -> None:
        if len(utterances) < num_requests:
            utterances.append(
                SimulatedUtterance(time_ms, num_frames, on_end=lambda _: speak(replica.now))
            )
            replica.speak(utterances[-1])

    for number in range(num_streams):
        speak(0.01 * number)
    replica.run()
    return _result(replica, utterances, replica.now / 1000)


@dataclass(frozen=True, slots=True)
class Call:
    """A call alternates between utterances and pauses."""

    utterance_s: float = 5.0  # mean of a lognormal distribution
    pause_s: float = 7.0  # mean of an exponential distribution

    @property
    def share(self) -> float:
        """Share of a call that is speech."""
        return self.utterance_s / (self.utterance_s + self.pause_s)


def simulate_calls(
    figures: Figures,
    num_calls: int,
    call: Call,
    *,
    seconds: float,
    seed: int = 1,
    num_joining: int = 0,
) -> TrafficResult:
    """Calls on one replica in the steady state, or after `num_joining` calls joined.

    The joining calls come from a lost replica. Calls that were receiving speech request it again
    within 0.1 s.
    """
    replica, measured = SimulatedReplica(figures), list[SimulatedUtterance]()
    generator = random.Random(seed)
    mean_log = math.log(call.utterance_s) - SPREAD * SPREAD / 2

    def speak(time_ms: float) -> None:
        length_s = generator.lognormvariate(mean_log, SPREAD)
        num_frames = max(1, round(1000 * length_s / FRAME_MS))
        utterance = SimulatedUtterance(time_ms, num_frames, on_end=pause)
        if time_ms >= 1000 * WARM_UP_S:
            measured.append(utterance)
        replica.speak(utterance)

    def pause(utterance: SimulatedUtterance) -> None:
        pause_ms = 1000 * generator.expovariate(1 / call.pause_s)
        start = utterance.playback_end_ms + pause_ms
        replica.schedule(start, partial(speak, start))

    for _ in range(num_calls):
        start = 1000 * generator.uniform(0, call.utterance_s + call.pause_s)
        replica.schedule(start, partial(speak, start))
    for _ in range(num_joining):
        is_cut = generator.random() < call.share
        wait_s = generator.random() if is_cut else generator.expovariate(1 / call.pause_s)
        start = 1000 * (WARM_UP_S + (0.1 * wait_s if is_cut else wait_s))
        replica.schedule(start, partial(speak, start))
    replica.run(1000 * (WARM_UP_S + seconds))
    return _result(replica, measured, seconds)


def _result(
    replica: SimulatedReplica, utterances: Sequence[SimulatedUtterance], seconds: float
) -> TrafficResult:
    """Utterances without audio count with the time that they have waited."""
    return TrafficResult(
        first_audio_ms=tuple(
            one.first_audio_ms or replica.now - one.requested_ms for one in utterances
        ),
        num_underruns=sum(utterance.num_underruns for utterance in utterances),
        audio_s=sum(utterance.num_read for utterance in utterances) * FRAME_MS / 1000,
        seconds=seconds,
        peak_streams=replica.peak_streams,
    )
