"""Computes how many GPUs a number of calls needs, including spare GPUs for losses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vivace.errors import RequestError
from vivace.plan.figures import Figures
from vivace.plan.replica import percentile
from vivace.plan.traffic import Call, TrafficResult, simulate_calls

SEARCH_S, FINAL_S = 20.0, 60.0  # simulated time of each trial and of the result
LOSS_S = 10.0  # simulated time after a loss
MAX_UNDERRUNS = 0.01  # per utterance


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    num_calls: int  # concurrent
    call: Call
    first_audio_ms: float = 200.0  # maximum p95
    num_losses: int = 1  # GPUs that may fail at the same time

    def __post_init__(self) -> None:
        if self.num_calls < 1 or self.num_losses < 0:
            raise RequestError(
                f"calls must be 1 or more and losses 0 or more, not {self.num_calls} and "
                f"{self.num_losses}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """The GPUs that a demand needs, and the simulated quality of service."""

    demand: Demand
    figures: Figures
    num_gpus: int
    max_calls: int  # per GPU, within the required first audio
    num_calls: int  # per GPU, while no GPU is lost
    normal: TrafficResult  # of one GPU
    after_loss: TrafficResult  # of one remaining GPU, in the seconds after a loss

    @property
    def audio_per_s(self) -> float:
        """Seconds of audio per second of one GPU."""
        return self.normal.audio_s / self.normal.seconds

    def cost_of_audio_hour(self, price: float) -> float:
        """Cost of one hour of audio, at `price` per GPU and hour."""
        return self.num_gpus * price / (self.demand.num_calls * self.demand.call.share)


def plan_capacity(figures: Figures, demand: Demand) -> CapacityPlan:
    """The smallest number of GPUs that meets the demand even after its losses."""
    most = _max_calls(figures, demand)
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
        normal=simulate_calls(figures, num_calls, call, seconds=FINAL_S),
        after_loss=simulate_calls(
            figures, num_calls, call, seconds=LOSS_S, num_joining=num_joining
        ),
    )


def _max_calls(figures: Figures, demand: Demand) -> int:
    """The largest number of calls on one GPU that meets the demand, within 2 %."""
    low, high = 0, math.ceil(figures.max_audio_per_s / demand.call.share)
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if _meets_demand(figures, demand, middle) else (low, middle)
    if not low:
        raise RequestError(
            f"first audio within {demand.first_audio_ms:g} ms (p95) is not possible with "
            f"{figures.model} on {figures.gpu}, even for one call; allow more time"
        )
    return low


def _meets_demand(figures: Figures, demand: Demand, num_calls: int) -> bool:
    seconds = SEARCH_S * max(1.0, 64 / num_calls)  # few calls need more time for enough utterances
    result = simulate_calls(figures, num_calls, demand.call, seconds=seconds)
    is_in_time = percentile(result.first_audio_ms, 95) <= demand.first_audio_ms
    return is_in_time and result.num_underruns <= MAX_UNDERRUNS * len(result.first_audio_ms)
