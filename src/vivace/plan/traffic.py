"""Who asks a replica: requests at given times, clients that ask again at once, and calls."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from vivace.plan.figures import Figures
from vivace.plan.replica import FRAME_MS, Replica, Talk

JITTER_MS = 0.3  # mean, of a request's way to the engine
SPREAD = 0.5  # of utterance lengths: the deviation of their logarithm
WARM_UP_S = 5.0


@dataclass(frozen=True, slots=True)
class Heard:
    """What listeners heard in a time that was watched."""

    firsts_ms: tuple[float, ...]  # from a request to its first audio
    num_underruns: int  # of all talks
    audio_s: float
    seconds: float
    num_most: int  # streams at once


def arrivals(figures: Figures, rate: float, num_requests: int, num_frames: int, seed: int) -> Heard:
    """The requests of `vivace bench --rates`: the same times, each for as many frames."""
    generator, jitter, due_s = random.Random(7), random.Random(seed), 0.0
    replica, talks = Replica(figures), list[Talk]()
    for _ in range(num_requests):
        due_s += generator.expovariate(rate)
        talks.append(Talk(1000 * due_s, num_frames))
        replica.speak(talks[-1], jitter.expovariate(1 / JITTER_MS))
    replica.run()
    return _heard(replica, talks, replica.now / 1000)


def together(figures: Figures, num_streams: int, num_requests: int, num_frames: int) -> Heard:
    """The streams of `vivace bench --streams`: each is followed by the next."""
    replica, talks = Replica(figures), list[Talk]()

    def speak(time_ms: float) -> None:
        if len(talks) < num_requests:
            talk = Talk(time_ms, num_frames, on_end=lambda _: speak(replica.now))
            talks.append(talk)
            replica.speak(talk)

    for number in range(num_streams):
        speak(0.01 * number)
    replica.run()
    return _heard(replica, talks, replica.now / 1000)


@dataclass(frozen=True, slots=True)
class Call:
    """How a call goes: the voice speaks, then somebody else does."""

    utterance_s: float = 5.0  # mean of a lognormal
    pause_s: float = 7.0  # mean of an exponential

    @property
    def share(self) -> float:
        """Of a call that is speech."""
        return self.utterance_s / (self.utterance_s + self.pause_s)


def calls(
    figures: Figures,
    num_calls: int,
    call: Call,
    *,
    seconds: float,
    seed: int = 1,
    num_joining: int = 0,
) -> Heard:
    """Calls on one replica, in the steady state; or, with some joining, from that moment on.

    Those that join come from a replica that was lost: who was being spoken to asks again at once.
    """
    replica, watched = Replica(figures), list[Talk]()
    generator = random.Random(seed)
    mean_log = math.log(call.utterance_s) - SPREAD * SPREAD / 2

    def speak(time_ms: float) -> None:
        length_s = generator.lognormvariate(mean_log, SPREAD)
        talk = Talk(time_ms, max(1, round(1000 * length_s / FRAME_MS)), on_end=pause)
        if time_ms >= 1000 * WARM_UP_S:
            watched.append(talk)
        replica.speak(talk)

    def pause(talk: Talk) -> None:
        pause_ms = 1000 * generator.expovariate(1 / call.pause_s)
        begin = talk.ends_playing_ms + pause_ms
        replica.at(begin, partial(speak, begin))

    for _ in range(num_calls):
        begin = 1000 * generator.uniform(0, call.utterance_s + call.pause_s)
        replica.at(begin, partial(speak, begin))
    for _ in range(num_joining):
        is_cut = generator.random() < call.share
        wait_s = generator.random() if is_cut else generator.expovariate(1 / call.pause_s)
        begin = 1000 * (WARM_UP_S + (0.1 * wait_s if is_cut else wait_s))
        replica.at(begin, partial(speak, begin))
    replica.run(1000 * (WARM_UP_S + seconds))
    return _heard(replica, watched, seconds)


def _heard(replica: Replica, talks: Sequence[Talk], seconds: float) -> Heard:
    begun = [talk for talk in talks if talk.first_ms]
    unheard = [replica.now - talk.asked_ms for talk in talks if not talk.first_ms]
    return Heard(
        firsts_ms=(*(talk.first_ms for talk in begun), *unheard),
        num_underruns=sum(talk.num_underruns for talk in begun),
        audio_s=sum(talk.num_read for talk in talks) * FRAME_MS / 1000,
        seconds=seconds,
        num_most=replica.num_most,
    )
