"""Compare results of benchmarks/gpu.sh on one H200 with their targets.

    python benchmarks/targets.py benchmarks/results

A figure without a result file is shown as a dash.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIZES = ("0.6B", "1.7B")
Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    file: str  # a format string for the size of the model
    target: tuple[float, float]  # 0.6B, 1.7B
    read: Callable[[Report, str], float]
    is_least: bool = False  # the target is a lower bound


ONE, LOAD = "engine-{}-default-h200", "engine-{}-half-h200"


def speed(num_streams: int) -> Callable[[Report, str], float]:
    return lambda report, _: _row(report["throughput"], streams=num_streams)["audio_s_per_s"]


def predictor(report: Report, size: str) -> float:
    which = {"shape": f"{size}-CustomVoice", "backend": "megakernel", "batch": 1}
    return float(_row(report["results"], **which)["speak_ms"])


ROWS = (
    Row("ms per frame, batch 1, sampling on", ONE, (1.6, 2.15),
        lambda report, _: report["latency"]["parts"]["model_ms_per_frame"]),
    Row("predictor, ms", "persistent-h200", (1.2, 1.2), predictor),
    Row("codec, 1 frame, batch 1, ms", "codec-fused-h200", (0.8, 0.8),
        lambda report, _: _row(report["results"], precision="half")["ms"]["1 x 1"]),
    Row("first audio, ms", ONE, (3.2, 4.3), lambda report, _: report["latency"]["first_audio_ms"]),
    Row("times real time, whole call", ONE, (45, 34),
        lambda report, _: report["latency"]["times_real_time"], is_least=True),
    Row("64 streams, s of audio a second", "engine-{}-64-h200", (1400, 1100), speed(64),
        is_least=True),
    Row("256 streams, s of audio a second", "engine-{}-256-h200", (2200, 1700), speed(256),
        is_least=True),
    Row("40 requests a second, first audio p95, ms", LOAD, (35, 35),
        lambda report, _: _row(report["arrivals"], requests_per_s=40)["first_audio_ms"]["p95"]),
)  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    print(f"{'':<44}" + "".join(f"{size:>10}{'target':>8}       " for size in SIZES))
    for row in ROWS:
        cells = (_cell(folder, row, index) for index in range(len(SIZES)))
        print(f"{row.name:<44}" + "".join(cells))


def _cell(folder: Path, row: Row, index: int) -> str:
    target = row.target[index]
    path = folder / f"{row.file.format(SIZES[index])}.json"
    if not path.exists():
        return f"{'–':>10}{target:>8g}       "
    value = row.read(json.loads(path.read_text()), SIZES[index])
    is_met = value >= target if row.is_least else value <= target
    return f"{value:>10.5g}{target:>8g} {'met' if is_met else 'missed':<6}"


def _row(rows: list[Report], **which: object) -> Report:
    return next(row for row in rows if which.items() <= row.items())


if __name__ == "__main__":
    main()
