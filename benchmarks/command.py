"""CPU seconds of a whole command, from the start of Python to its exit.

    python benchmarks/command.py --first --json benchmarks/results/command.json

The command speaks "Hi." with the embedded voice into a file. Every run is a new process. `cpu_s` is
the sum of all threads and child processes, in user and system mode. `first` is the first run after
an installation: an empty cache folder, so the C++ kernels and the bytecode are compiled. `eager` is
PyTorch. The other runs read cached bytecode, which pip writes when it installs packages.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import write_report

TEXT = "Hi."


def main() -> None:
    arguments = parse_arguments()
    results = []
    with tempfile.TemporaryDirectory(prefix="vivace-command-") as name:
        folder = Path(name)
        if arguments.first:
            cache = {"XDG_CACHE_HOME": str(folder / "cache")}
            results.append({"run": "first", **run_command(folder, "auto", cache)})
        for backend in arguments.backends:
            run_command(folder, backend)  # compiles kernels and bytecode
            runs = [run_command(folder, backend) for _ in range(arguments.repeats)]
            results.append({"run": backend, **summarise(runs)})
    for result in results:
        print(f"{result['run']}: {result['cpu_s']:.2f} CPU s, {result['wall_s']:.2f} s", flush=True)
    write_report(arguments.json, describe(results, arguments.note))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backends", nargs="+", default=["auto", "eager"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--first", action="store_true", help="measure a first start too")
    parser.add_argument("--note", default="", help="kept in the JSON, such as how quiet it was")
    parser.add_argument("--json", type=Path, help="where to write the results")
    return parser.parse_args()


def run_command(
    folder: Path, backend: str, environment: dict[str, str] | None = None
) -> dict[str, float]:
    output = str(folder / "hi.wav")
    command = [sys.executable, "-m", "vivace", TEXT, "-o", output, "--force", "--seed=1"]
    path = os.pathsep.join(filter(None, sys.path))
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment = {**os.environ, "PYTHONPATH": path, **bytecode, **(environment or {})}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [*command, f"--backend={backend}"], env=environment, check=True, stderr=subprocess.DEVNULL
    )
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    user_s, system_s = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return {"cpu_s": user_s + system_s, "user_s": user_s, "system_s": system_s, "wall_s": wall_s}


def summarise(runs: list[dict[str, float]]) -> dict[str, float]:
    """Medians, and the fewest CPU seconds."""
    figures = {name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0]}
    return {**figures, "cpu_s_best": round(min(run["cpu_s"] for run in runs), 3)}


def describe(results: list[dict[str, Any]], note: str) -> dict[str, Any]:
    from vivace.cli.bench.machine import machine

    report = {"benchmark": "command", "text": TEXT, "machine": machine(), "note": note}
    return report | {"results": results}


if __name__ == "__main__":
    main()
