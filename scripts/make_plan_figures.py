"""Write src/vivace/plan/h200.json: the GPU figures of `vivace plan`, from the benchmark results.

    python scripts/make_plan_figures.py        # a few seconds

| figure | source |
|---|---|
| frame of one stream, prompt, first audio, throughput, live clients | engine-*-live-h200.json |
| additional frame time with 64 and 256 streams | kernels-h200.json |
| codec calls in half precision | codec-fused-h200.json |

The kernel benchmark is older than the engine benchmark. The times of 64 and 256 streams are
therefore scaled until the simulated throughput equals the measured one. The rows of live clients
are not used here, because tests/plan compares the simulation with them. Not measured: the time of
a further prompt in a turn, and the time that a client blocks the engine (`READER_MS`).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from vivace.plan.figures import READER_MS, Figures, parse_figures
from vivace.plan.fit import fit_throughput

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MORE_PROMPT_MS = {"0.6B": 0.146, "1.7B": 0.337}  # of 47 rows, set by hand after one trial
OF_KEYS = ("attend_slots_kernel", "merge_chunks_kernel")
KEYS_SHARE = 80 / 200


def main() -> None:
    figures = {model: make(model) for model in ("0.6B", "1.7B")}
    path = ROOT / "src" / "vivace" / "plan" / "h200.json"
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def make(model: str) -> dict[str, Any]:
    names = (f"engine-{model}-live-h200", "kernels-h200", "codec-fused-h200")
    engine, kernels, codec = (read(name) for name in names)
    rows = [r for r in kernels["results"] if r["part"] == f"{model}-CustomVoice frame"]
    latency = engine["latency"]
    frames = frame_ms(rows, latency["parts"]["model_ms_per_frame"])
    half = next(row["ms"] for row in codec["results"] if row["precision"] == "half")
    codecs = {n: [half[f"{n} x 1"], half[f"{n} x 8"]] for n in (1, 8, 64)}
    codecs[256] = [4 * ms for ms in codecs[64]]  # in four passes
    prompt_ms = latency["parts"]["prompt_ms"]
    alone_ms = prompt_ms + frames[1] + codecs[1][0]
    entry = {
        "frame_ms": frames,
        "codec_ms": codecs,
        "prompt_ms": prompt_ms,
        "more_prompt": round(MORE_PROMPT_MS[model] / prompt_ms, 3),
        "host_ms": round(latency["first_audio_ms"] - alone_ms, 3),
        "reader_ms": READER_MS,
        "num_slots": max(row["live_streams"] for row in engine["live"]),
        "throughput": engine["throughput"],
        "live": engine["live"],
        "source": {
            name: {key: result["machine"][key] for key in ("date", "commit")}
            for name, result in (("engine", engine), ("kernels", kernels), ("codec", codec))
        },
    }
    return entry | fitted_times(parse_figures("h200", model, entry))


def fitted_times(figures: Figures) -> dict[str, Any]:
    for row in figures.throughput:
        figures = fit_throughput(figures, row)
    times = dataclasses.asdict(figures)
    return {
        "frame_ms": {batch: round(ms, 3) for batch, ms in times["frame_ms"].items()},
        "codec_ms": {
            batch: [round(ms, 3) for ms in both] for batch, both in times["codec_ms"].items()
        },
    }


def frame_ms(rows: list[dict[str, Any]], alone_ms: float) -> dict[int, float]:
    """Milliseconds per frame by batch size, before the fit.

    The engine measures one slot. The kernel benchmark adds the difference of larger batches; its
    slots hold 200 keys, while a stream of 64 frames holds about 80 on average. The extra time of
    attention is scaled in proportion to the keys.
    """
    attention = {
        row["batch"]: sum(k["total_us"] for k in row["kernels"] if k["kernel"] in OF_KEYS) / 1000
        for row in rows
    }
    less = {batch: (1 - KEYS_SHARE) * (ms - attention[1]) for batch, ms in attention.items()}
    own = {row["batch"]: row["graph_ms"] - less[row["batch"]] for row in rows}
    return {batch: alone_ms + own[batch] - own[1] for batch in (1, 64, 256)}


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return found


if __name__ == "__main__":
    main()
