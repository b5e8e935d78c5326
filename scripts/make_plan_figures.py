"""Write src/vivace/plan/h200.json: what `vivace plan` knows of a GPU, from the benchmarks' results.

    python scripts/make_plan_figures.py        # a minute or two

Measured: milliseconds of a frame up to batch 8, of the codec and of a prompt, and the tables of
whole calls. Not measured, and chosen so that the simulation gives the measured *throughput* at 1,
8, 32 and 64 streams: a frame at batch 64, and how long a reader keeps the engine. The table of
requests at random is not used here, so that tests/plan can hold the simulation to it.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from vivace.plan.figures import parse_figures
from vivace.plan.replica import percentile
from vivace.plan.traffic import together

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CONTENTION = {1: 0.6, 8: 0.7, 64: 0.9}  # by the throughput of 1, 8 and 64 streams, by hand
MORE_PROMPT = 0.8
FRAME_64_MS = (0.02, 0.03, 0.04, 0.05, 0.06, 0.07)  # more for each stream above 8
READER_MS = (0.05, 0.1)


def main() -> None:
    told = {model: make(model) for model in ("0.6B", "1.7B")}
    path = ROOT / "src" / "vivace" / "plan" / "h200.json"
    path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def make(model: str) -> dict[str, Any]:
    engine, codec = read(f"engine-{model}-h200"), read("codec-h200")
    parts = engine["latency"]["parts"]
    frames = {
        row["batch"]: row["frame_ms"]
        for row in read("persistent-h200")["results"]
        if row["backend"] == "cuda_graph" and row["shape"].startswith(model)
    }
    split = next(row["ms"] for row in codec["results"] if row["precision"] == "split")
    codecs = {n: (split[f"{n} x 1"], split[f"{n} x 8"]) for n in (1, 8, 64)}
    alone_ms = parts["prompt_ms"] + frames[1] + codecs[1][0]
    told = {
        "frame_ms": frames,
        "codec_ms": codecs,
        "contention": CONTENTION,
        "prompt_ms": parts["prompt_ms"],
        "more_prompt": MORE_PROMPT,
        "host_ms": round(engine["latency"]["first_audio_ms"] - alone_ms, 3),
        "reader_ms": 0.0,
        "num_slots": 64,
        "throughput": engine["throughput"],
        "arrivals": engine["arrivals"],
        "source": {
            "engine": {key: engine["machine"][key] for key in ("date", "commit")},
            "codec": {key: codec["machine"][key] for key in ("date", "commit")},
        },
    }
    tried = [fit(model, told, *one) for one in itertools.product(FRAME_64_MS, READER_MS)]
    return min(tried, key=lambda one: one[0])[1]


def fit(
    model: str, told: dict[str, Any], more_ms: float, reader_ms: float
) -> tuple[float, dict[str, Any]]:
    """How far the simulation is from the measured throughput, and the figures it was made with."""
    frames = {**told["frame_ms"], 64: round(told["frame_ms"][8] + 56 * more_ms, 3)}
    told = {**told, "frame_ms": frames, "reader_ms": reader_ms}
    figures = parse_figures("h200", model, told)
    loss = 0.0
    for row in told["throughput"]:
        heard = together(figures, row["streams"], row["requests"], row["frames"])
        measured = row["first_audio_ms"]
        loss += (2 * (heard.audio_s / heard.seconds / row["audio_s_per_s"] - 1)) ** 2
        loss += (percentile(heard.firsts_ms, 50) / measured["p50"] - 1) ** 2
        loss += (percentile(heard.firsts_ms, 95) / measured["p95"] - 1) ** 2
    return loss, told


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return found


if __name__ == "__main__":
    main()
