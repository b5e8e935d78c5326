"""Figures of `quality.py`: word errors, naturalness, similarity and duration over judged lines."""

from __future__ import annotations

from typing import Any

import numpy as np
from intervals import draw, interval

Row = dict[str, Any]

WORDS_PER_SECOND = 2.75  # 165 words per minute, a calm reader
LOST = 0.5  # share of wrong words above which a line counts as lost


def summarise(rows: list[Row]) -> dict[str, Any]:
    shares = np.array([row["errors"] / row["words"] for row in rows])
    is_runaway = np.array([row["finish_reason"] != "stop" for row in rows])
    ratios = np.array([duration_ratio(row) for row in rows])
    figures = {
        "lines": len(rows),
        "words": sum(row["words"] for row in rows),
        "wer_percent": percent(sum(r["errors"] for r in rows) / sum(r["words"] for r in rows)),
        "runaways_percent": percent(is_runaway.mean()),
        "lost_percent": percent(((shares > LOST) & ~is_runaway).mean()),
        "runaways_and_lost_percent": percent(((shares > LOST) | is_runaway).mean()),
        "distillmos": mean_of(rows, "mos"),
        "distillmos_5th_percentile": fifth_of(rows, "mos"),
        "intervals_95_percent": intervals(rows),
        "likeness": mean_of(rows, "likeness"),
        "pace_against": "the reference" if "reference_s" in rows[0] else "165 words a minute",
        "duration_ratio_median": round(float(np.median(ratios)), 3),
        "duration_ratio_1_to_99_percent": [
            round(float(x), 2) for x in np.percentile(ratios, (1, 99))
        ],
    }
    if all(row["wall_s"] for row in rows):
        audio, wall = sum(r["seconds"] for r in rows), sum(r["wall_s"] for r in rows)
        figures["times_real_time_while_speaking"] = round(audio / wall, 2)
    return figures


def intervals(rows: list[Row]) -> dict[str, list[float]]:
    """Bootstrap intervals of word errors and DistillMOS over the lines."""
    drawn = draw(np.array([(row["errors"], row["words"]) for row in rows]))
    figures = {"wer_percent": 100 * drawn[:, :, 0].sum(1) / drawn[:, :, 1].sum(1)}
    if mos := _known(rows, "mos"):
        drawn = draw(np.array(mos))
        figures["distillmos"] = drawn.mean(1)
        figures["distillmos_5th_percentile"] = np.percentile(drawn, 5, axis=1)
    return {name: interval(values) for name, values in figures.items()}


def duration_ratio(row: Row) -> float:
    if row.get("reference_s"):
        return float(row["span_s"] / row["reference_s"])
    return float(row["seconds"] / (0.4 + row["words"] / WORDS_PER_SECOND))


def percent(share: float) -> float:
    return round(100 * float(share), 2)


def mean_of(rows: list[Row], key: str) -> float | None:
    values = _known(rows, key)
    return round(float(np.mean(values)), 3) if values else None


def fifth_of(rows: list[Row], key: str) -> float | None:
    values = _known(rows, key)
    return round(float(np.percentile(values, 5)), 3) if values else None


def _known(rows: list[Row], key: str) -> list[float]:
    return [row[key] for row in rows if row.get(key) is not None]
