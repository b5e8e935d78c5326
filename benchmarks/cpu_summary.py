"""Print the results of cpu.sh as tables.

python benchmarks/cpu_summary.py build/cpu --suffix=-2cores
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "scripts"))

import cpu_tables
from result_tables import table

Report = dict[str, Any]
TABLES: dict[str, Callable[..., cpu_tables.Table]] = {  # by the beginning of a report's name
    "cpu-calls-": cpu_tables.calls,
    "cpu-mini-cpp": cpu_tables.parts,
    "cpu-models-": cpu_tables.models,
    "cpu-streams-": cpu_tables.streams,
    "codec-cpu": cpu_tables.codec,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="with the JSON files of cpu.sh")
    parser.add_argument("--suffix", default="", help="ends their names, such as -arm")
    arguments = parser.parse_args()
    for text in summarise(arguments.folder, arguments.suffix):
        print(f"\n{text}")


def summarise(folder: Path, suffix: str) -> Iterator[str]:
    for start, make in TABLES.items():
        if reports := read_all(folder, start, suffix):
            yield table(*make(*reports))
    if reports := read_all(folder, "cpu-calls-", suffix):
        yield table("| model | threads | resident after a call, GB |", list(memory_rows(reports)))
    for report in read_all(folder, "command", suffix):
        rows = [
            [row["run"], f"{row['cpu_s']:.2f}", f"{row['wall_s']:.2f}"] for row in report["results"]
        ]
        yield table("| command | CPU seconds | seconds |", rows)


def read_all(folder: Path, start: str, suffix: str) -> list[Report]:
    found = sorted(folder.glob(f"{start}*{suffix}.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]


def memory_rows(reports: list[Report]) -> Iterator[list[object]]:
    for report in reports:
        for row in report["results"]:
            name = f"{report['shape'].partition('-')[0]}, {row['weights']}"
            yield [name, row["threads"], f"{row['memory_gb']['one_call']['resident']:.2f}"]


if __name__ == "__main__":
    main()
