"""Draw docs/load.png from the results of benchmarks/engine.py on an H200 (needs matplotlib)."""

from __future__ import annotations

import json
from pathlib import Path

from vivace.cli.bench.report import plot_arrivals

ROOT = Path(__file__).parent.parent


def main() -> None:
    arrivals = {}
    for size in ("0.6B", "1.7B"):
        path = ROOT / "benchmarks" / "results" / f"engine-{size}-half-h200.json"
        report = json.loads(path.read_text(encoding="utf-8"))
        arrivals[f"{size}, one {report['machine']['gpu']}"] = report["arrivals"]
    plot_arrivals(arrivals, ROOT / "docs" / "load.png")


if __name__ == "__main__":
    main()
