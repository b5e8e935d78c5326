"""Reads the figures of a machine from a file of `vivace bench --json`.

The file has the throughput for some numbers of streams and the mean milliseconds per frame. Other
figures (one frame of the codec, a second prompt in a turn, host time) are those of the H200.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vivace.errors import RequestError
from vivace.plan.figures import READER_MS, Figures
from vivace.plan.fit import fit_throughput
from vivace.text.files import read_utf8

MAX_FILE_BYTES = 16 * 2**20
ONE_FRAME_SHARE = 0.3  # codec time of one frame, as a share of eight frames
MORE_PROMPT = 0.3
HOST_MS = 0.5  # of a request
HINT = "run `vivace bench --json FILE --batches 1,8,64`"


def read_bench(path: str | Path) -> Figures:
    """The figures of the backend with the highest throughput. RequestError for an invalid file."""
    text = read_utf8(path, MAX_FILE_BYTES, RequestError)
    try:
        return _figures(json.loads(text), str(path))
    except RequestError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(f"{path}: not a report of vivace bench; {HINT}") from error


def _figures(report: Mapping[str, Any], path: str) -> Figures:
    measured = [row for row in report.get("backends", ()) if "audio_s_per_s" in row]
    if not measured:
        raise RequestError(f"{path}: no measurements of several streams; {HINT}")
    best = max(measured, key=lambda row: float(row["audio_s_per_s"]))["backend"]
    rows = [row for row in measured if row["backend"] == best]
    latency, machine = report["latency"], report["machine"]
    figures = Figures(
        gpu=str(machine.get("gpu") or machine["cpu"]),
        model=str(report["model"]),
        frame_ms={},
        codec_ms={},
        prompt_ms=float(latency["parts"]["prompt_ms"]),
        more_prompt=MORE_PROMPT,
        host_ms=HOST_MS,
        reader_ms=READER_MS,
        num_slots=max(int(row["streams"]) for row in rows),
        throughput=(*report.get("throughput", ()), *rows),
        live=tuple(report.get("live", ())),
        source={"bench": {key: machine[key] for key in ("date", "commit")}, "backend": best},
    )
    fitted = [_fit(figures, row, int(latency["frames"])) for row in rows]
    return dataclasses.replace(
        figures,
        frame_ms={batch: ms for one in fitted for batch, ms in one.frame_ms.items()},
        codec_ms={batch: ms for one in fitted for batch, ms in one.codec_ms.items()},
    )


def _fit(figures: Figures, row: Mapping[str, Any], num_frames: int) -> Figures:
    """Figures of one row. Its times were measured while frames and codec overlapped: fit them."""
    count, eight_ms = int(row["streams"]), 8 * float(row["codec_ms"])
    figures = dataclasses.replace(
        figures,
        frame_ms={count: float(row["model_ms"])},
        codec_ms={count: (ONE_FRAME_SHARE * eight_ms, eight_ms)},
    )
    return fit_throughput(figures, {**row, "requests": count, "frames": num_frames})
