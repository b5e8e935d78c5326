"""Scales the times of a batch size until the simulated throughput equals the measured one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from vivace.plan.figures import Figures
from vivace.plan.traffic import simulate_streams

NUM_FITS = 6


def fit_throughput(figures: Figures, row: Mapping[str, Any]) -> Figures:
    """Figures whose simulation has the throughput of `row`, a row of `vivace bench --streams`.

    One factor scales the frame time and the codec times of the batch size `row["streams"]`.
    """
    count, goal = int(row["streams"]), float(row["audio_s_per_s"])
    for _ in range(NUM_FITS):
        result = simulate_streams(figures, count, int(row["requests"]), int(row["frames"]))
        scale = result.audio_s / result.seconds / goal
        codec_ms = tuple(scale * ms for ms in figures.codec_ms[count])
        figures = dataclasses.replace(
            figures,
            frame_ms={**figures.frame_ms, count: scale * figures.frame_ms[count]},
            codec_ms={**figures.codec_ms, count: codec_ms},
        )
    return figures
