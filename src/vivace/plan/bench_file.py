"""Figures of any machine from the file of `vivace bench --json`, estimated where it has none.

A file has the throughput of some numbers of streams and milliseconds per frame, averaged over a
stream. What a single frame costs the codec, a second prompt its turn and a request
the host is as on the H200.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vivace.errors import RequestError
from vivace.plan.figures import Figures
from vivace.plan.traffic import together

NUM_FITS = 6
ONE_OF_EIGHT = 0.3  # of what the codec takes for eight frames
MORE_PROMPT = 0.8
HOST_MS = 0.5  # of a request
READER_MS = 0.02
AGAIN = "run `vivace bench --json FILE --batches 1,8,64`"


def read_bench(path: str | Path) -> Figures:
    """The figures of the backend that made the most audio; a RequestError names what is missing."""
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        return _figures(report, str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"{path} cannot be read: {reason}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{path} is no report of vivace bench; {AGAIN}") from error


def _figures(report: Mapping[str, Any], path: str) -> Figures:
    measured = [row for row in report.get("backends", ()) if "audio_s_per_s" in row]
    if not measured:
        raise RequestError(f"{path} has no times of several streams; {AGAIN}")
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
        arrivals=tuple(report.get("arrivals", ())),
        source={"bench": {key: machine[key] for key in ("date", "commit")}, "backend": best},
    )
    fitted = [_fit(figures, row, int(latency["frames"])) for row in rows]
    return dataclasses.replace(
        figures,
        frame_ms={batch: ms for one in fitted for batch, ms in one.frame_ms.items()},
        codec_ms={batch: ms for one in fitted for batch, ms in one.codec_ms.items()},
    )


def _fit(figures: Figures, row: Mapping[str, Any], num_frames: int) -> Figures:
    """Times of a row, scaled until the simulated throughput is the measured one.

    Frames and codec overlap on a GPU, so the times of the row are not those of each alone.
    """
    count, goal = int(row["streams"]), float(row["audio_s_per_s"])
    frame_ms, codec_ms = float(row["model_ms"]), float(row["codec_ms"])
    scale = 1.0
    for _ in range(NUM_FITS):
        eight_ms = 8 * codec_ms * scale
        figures = dataclasses.replace(
            figures,
            frame_ms={count: frame_ms * scale},
            codec_ms={count: (ONE_OF_EIGHT * eight_ms, eight_ms)},
        )
        heard = together(figures, count, count, num_frames)
        scale *= heard.audio_s / heard.seconds / goal
    return figures
