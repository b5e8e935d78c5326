"""The nouns that cross every boundary: how to sample, why it ended, what it cost.

The standard library only; no torch, no numpy, no files.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, cast

from vivace.errors import RequestError

FinishReason = Literal["stop", "length", "stall", "cancelled"]
"""`stop`: the end of speech was drawn. `stall`: nothing new was said any more."""

SAMPLE_RATE = 24_000  # every released checkpoint speaks at this rate
MAX_SEED = 2**63 - 1
MAX_TOP_K = 2**31 - 1
FLOAT32_MAX = 3.4e38


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How codes are drawn from their logits.

    `temperature`, `top_k` and `top_p` shape codebook 0, which carries the words; the
    `predictor_` three shape the residual codebooks. A temperature of 0 is greedy, and
    `temperature=0` alone makes both greedy.
    """

    temperature: float = 0.9
    top_k: int = 50  # 0 keeps every code
    top_p: float = 1.0
    repetition_penalty: float = 1.05  # codebook 0 only
    predictor_temperature: float | None = None  # None: greedy if the talker is, else 0.9
    predictor_top_k: int = 50
    predictor_top_p: float = 1.0
    min_frames: int = 2  # the end of speech is not drawn before
    max_frames: int = 8191
    seed: int | None = None  # None draws a fresh one

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, low=0.0)
        if self.predictor_temperature is not None:
            _check_number("predictor_temperature", self.predictor_temperature, low=0.0)
        for name in ("top_k", "predictor_top_k"):
            _check_integer(name, getattr(self, name), low=0, high=MAX_TOP_K)
        for name in ("top_p", "predictor_top_p"):
            _check_probability(name, getattr(self, name))
        if not _check_number("repetition_penalty", self.repetition_penalty, low=0.0):
            raise RequestError("repetition_penalty must be above 0; 1 is none")
        _check_integer("min_frames", self.min_frames, low=0)
        _check_integer("max_frames", self.max_frames, low=1)
        if self.seed is not None:
            _check_integer("seed", self.seed, low=0, high=MAX_SEED)

    @property
    def residual_temperature(self) -> float:
        """The predictor's temperature, settled."""
        if self.predictor_temperature is not None:
            return self.predictor_temperature
        return 0.0 if self.temperature == 0 else 0.9

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with these fields changed; a name that does not exist is a RequestError."""
        known = {field.name for field in dataclasses.fields(self)}
        if unknown := sorted(set(changes) - known):
            raise RequestError(
                f"no sampling argument named {', '.join(unknown)}; "
                f"try one of: {', '.join(sorted(known))}"
            )
        if changes.get("temperature") == 0:
            changes.setdefault("predictor_temperature", 0.0)
        return dataclasses.replace(self, **changes)


def _check_number(name: str, value: object, *, low: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):  # numpy's numbers are Real too
        raise RequestError(f"{name} must be a number, not {value!r}")
    if not low <= cast("float", value) <= FLOAT32_MAX:
        raise RequestError(f"{name} must be {low:g} or more and finite, not {value}")
    return float(value)


def _check_probability(name: str, value: object) -> None:
    if not 0 < _check_number(name, value, low=0.0) <= 1:
        raise RequestError(f"{name} must be above 0 and at most 1, not {value}")


def _check_integer(name: str, value: object, *, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RequestError(f"{name} must be a whole number, not {value!r}")
    if int(value) < low or (high is not None and int(value) > high):
        bounds = f"{low} or more" if high is None else f"from {low} to {high}"
        raise RequestError(f"{name} must be {bounds}, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one utterance cost."""

    text_tokens: int
    frames: int
    audio_s: float
    wall_s: float
    seed: int  # the one that was used: give it again to get the same codes
    first_audio_ms: float | None = None  # from the call to the first samples

    @property
    def times_real_time(self) -> float:
        """Seconds of audio made per second of waiting; bigger is better."""
        return self.audio_s / self.wall_s if self.wall_s else float("inf")
