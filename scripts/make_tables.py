"""Update the tables of README and docs from the results in benchmarks/results.

    python scripts/make_tables.py            # tests/docs/test_docs.py checks that they are current

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cpu_tables
import gpu_tables
from result_tables import read, table

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "docs/performance.md",
    "docs/measuring.md",
    "docs/quality.md",
    "docs/embedded-voice.md",
    "docs/integrations/README.md",
)
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(\n<!-- end of table -->)", re.DOTALL)


def main() -> None:
    for name in PAGES:
        page = ROOT / name
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")


def fill(text: str) -> str:
    """The page with its tables made from the current results."""
    return BLOCK.sub(lambda block: block[1] + TABLES[block[2]]() + block[3], text)


def frames() -> str:
    rows = []
    for result, where in (
        ("frame-h200", "NVIDIA H200, bfloat16"),
        ("frame-tiny-cpu", "one CPU thread"),
    ):
        for row in read(result)["results"][: 2 if where.startswith("NVIDIA") else 1]:
            what = (
                row["shape"]
                .replace("-CustomVoice", "")
                .replace("tiny custom_voice", "tiny checkpoint")
            )
            rows.append(
                [
                    f"{what}, {where}",
                    f"{row['ms_per_frame']:.1f}",
                    f"{row['official_ms_per_frame']:.1f}",
                    f"{row['times_faster']:.1f}",
                ]
            )
    return table("| | ours, ms per frame | official, ms per frame | times faster |", rows)


def quality() -> str:
    names = {
        "quality-mini-dev-all": "`heart`, held-out sentences",
        "quality-mini-dev": "the first 200 of them",
        "quality-mini-streamed": "`heart`, streamed text (one id per frame)",
        "quality-mini-hard": "`heart`, hard lines",
        "quality-mini-michael": "`michael`, held-out sentences",
        "quality-mini-codec": "the codec alone, `heart` encoded and decoded",
        "quality-mini-codec-michael": "the same, `michael`",
        "quality-teacher-hard": "the teacher of `heart`, hard lines",
    }
    rows = []
    for name, what in names.items():
        figures = read(name)["figures"]
        is_compared = figures["pace_against"] == "the reference"
        rows.append(
            [
                what,
                figures["lines"],
                f"{figures['wer_percent']:.1f}",
                f"{figures['distillmos']:.2f}",
                _two_places(figures.get("distillmos_5th_percentile")),
                f"{figures['runaways_and_lost_percent']:.1f}",
                f"{figures['likeness']:.2f}" if is_compared else "",
                f"{figures['duration_ratio_median']:.2f}" if is_compared else "",
            ]
        )
    head = "| | lines | WER % | DistillMOS | DistillMOS, 5th percentile |"
    head += " runaways + lost (WER > 50 %) % | speaker similarity |"
    head += " length relative to the teacher |"
    return table(head, rows)


def _two_places(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def cpu(make: Callable[..., cpu_tables.Table], *names: str) -> str:
    """A table of cpu_tables.py."""
    return table(*make(*(read(name) for name in names)))


def integrations() -> str:
    rows: list[list[object]] = []
    for result in read("integrations-mini-cpu")["results"]:
        low, middle, high = (f"{ms:.1f}" for ms in result["overhead_quartiles_ms"])
        rows.append([result["framework"], result["way"], middle, f"{low} to {high}"])
    return table("| framework | | overhead, ms | middle half of the runs |", rows)


def letters() -> str:
    rows = [
        (row["text"], row["without"]["right"], row["with_letter_names"]["right"])
        for row in read("letters-mini")["results"]
    ]
    return table("| text | without | with `letter_names` |", rows)


TABLES: dict[str, Callable[[], str]] = {
    "frames": frames,
    "quality": quality,
    "cpu": partial(cpu, cpu_tables.contended, "cpu-mini"),
    "cpu-arm": partial(cpu, cpu_tables.contended, "cpu-mini-arm"),
    "cpu-cpp-2cores": partial(cpu, cpu_tables.parts, "cpu-mini-cpp-2cores"),
    "cpu-cpp-arm": partial(cpu, cpu_tables.parts, "cpu-mini-cpp-arm"),
    "codec-cpu": partial(cpu, cpu_tables.codec, "codec-cpu"),
    "cpu-models": partial(cpu, cpu_tables.models, "cpu-models-0.6B", "cpu-models-1.7B"),
    "cpu-models-2cores": partial(
        cpu, cpu_tables.models, "cpu-models-0.6B-2cores", "cpu-models-1.7B-2cores"
    ),
    "cpu-streams": partial(cpu, cpu_tables.streams, "cpu-streams-0.6B"),
    "cpu-streams-2cores": partial(cpu, cpu_tables.streams, "cpu-streams-0.6B-2cores"),
    "cpu-calls": partial(cpu, cpu_tables.calls, "cpu-calls-0.6B", "cpu-calls-1.7B"),
    "cpu-calls-2cores": partial(
        cpu, cpu_tables.calls, "cpu-calls-0.6B-2cores", "cpu-calls-1.7B-2cores"
    ),
    "cpu-beside": partial(cpu, cpu_tables.beside, "cpu-streams-0.6B"),
    "gpu": gpu_tables.gpu,
    "chunks": gpu_tables.chunks,
    "load": gpu_tables.load,
    "memory": gpu_tables.memory,
    "persistent": gpu_tables.persistent,
    "fp8": gpu_tables.fp8,
    "megakernel-calls": gpu_tables.megakernel_calls,
    "backends": gpu_tables.backends,
    "codec-precisions": gpu_tables.codec_precisions,
    "served": gpu_tables.served,
    "served-live": gpu_tables.served_live,
    "roofline": gpu_tables.roofline,
    "kernel-errors": gpu_tables.kernel_errors,
    "integrations": integrations,
    "letters": letters,
}

if __name__ == "__main__":
    main()
