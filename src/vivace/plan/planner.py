"""How many GPUs a number of calls needs, so that the loss of one is not heard."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vivace.errors import RequestError
from vivace.plan.figures import Figures
from vivace.plan.replica import percentile
from vivace.plan.traffic import Call, Heard, calls

SEARCH_S, FINAL_S = 20.0, 60.0  # of simulated time
LOSS_S = 10.0  # after a loss that are watched
MAX_UNDERRUNS = 0.01  # of all talks


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    num_calls: int  # at once
    call: Call
    first_audio_ms: float = 200.0  # p95, at most
    num_losses: int = 1  # replicas that may be lost at once

    def __post_init__(self) -> None:
        if self.num_calls < 1 or self.num_losses < 0:
            raise RequestError("calls must be 1 or more, and losses 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """What a demand needs, and what its callers hear."""

    demand: Demand
    figures: Figures
    num_gpus: int
    max_calls: int  # of one GPU, within the demand's first audio
    num_calls: int  # of one GPU, while all are there
    usual: Heard
    lost: Heard  # the seconds after a loss, on one of those that are left

    @property
    def audio_per_s(self) -> float:
        """Seconds of audio a second, of one GPU."""
        return self.usual.audio_s / self.usual.seconds

    def cost_of_audio_hour(self, price: float) -> float:
        """Of all GPUs at a price an hour, for each hour of audio that all calls hear."""
        return self.num_gpus * price / (self.demand.num_calls * self.demand.call.share)


def plan_capacity(figures: Figures, demand: Demand) -> CapacityPlan:
    """As few GPUs as hold the demand's calls even after its losses."""
    most = _most_calls(figures, demand)
    num_gpus = math.ceil(demand.num_calls / most) + demand.num_losses
    num_calls = math.ceil(demand.num_calls / num_gpus)
    num_left = max(1, num_gpus - demand.num_losses)
    num_joining = math.ceil(demand.num_calls / num_left) - num_calls
    call = demand.call
    return CapacityPlan(
        demand=demand,
        figures=figures,
        num_gpus=num_gpus,
        max_calls=most,
        num_calls=num_calls,
        usual=calls(figures, num_calls, call, seconds=FINAL_S),
        lost=calls(figures, num_calls, call, seconds=LOSS_S, num_joining=num_joining),
    )


def _most_calls(figures: Figures, demand: Demand) -> int:
    """Of one GPU: the largest number, to a fiftieth, whose listeners hear what was demanded."""
    low, high = 0, math.ceil(figures.most_audio / demand.call.share)  # more was never made
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if _holds(figures, demand, middle) else (low, middle)
    if not low:
        raise RequestError(
            f"{figures.model} on {figures.gpu} does not give first audio within "
            f"{demand.first_audio_ms:g} ms (p95) to a single call; ask for less"
        )
    return low


def _holds(figures: Figures, demand: Demand, num_calls: int) -> bool:
    seconds = SEARCH_S * max(1.0, 64 / num_calls)  # as many talks, of few calls
    heard = calls(figures, num_calls, demand.call, seconds=seconds)
    is_soon = percentile(heard.firsts_ms, 95) <= demand.first_audio_ms
    return is_soon and heard.num_underruns <= MAX_UNDERRUNS * len(heard.firsts_ms)
