"""Bootstrap confidence intervals of the figures of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_DRAWS = 4_000


def draw(values: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
    """Bootstrap samples of the first axis: [draw, value, ...]. Without `rng`, with seed 1."""
    rng = np.random.default_rng(1) if rng is None else rng
    return values[rng.integers(0, len(values), (NUM_DRAWS, len(values)))]


def interval(drawn: NDArray[Any] | Sequence[float], digits: int = 2) -> list[float]:
    """The 95 % interval of a figure that was computed for every draw."""
    return [round(float(end), digits) for end in np.percentile(np.asarray(drawn), (2.5, 97.5))]
