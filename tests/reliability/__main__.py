"""python -m tests.reliability --nightly: every goal at its large size, with its control.

    python -m tests.reliability --nightly                      # an hour
    python -m tests.reliability --nightly --minutes 360 --repeat
    python -m tests.reliability --only G9 --minutes 10 --cpu 0.5

The soak (G9) runs for `--minutes` against `vivace serve` with the embedded voice, and its leaky
control for a tenth of that; meanwhile the other goals run one after the other, each in a pytest of
its own. `--repeat` goes on with other examples until the time is up. A goal that measures times is
missed on a machine with other work. Exit code 1: a goal was not held, or a control not found out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "serve")]

from goals import GOALS, Goal  # noqa: E402
from nightly import Result, run_goal, summarize, tabulate  # noqa: E402

SOAK = "G9"
SOAK_MOST_MIB = 32.0  # of growth, in a night
CONTROL_SHARE = 0.1
GOAL_LIMIT_S = 3_600.0


def say(words: str) -> None:
    print(words, flush=True)  # noqa: T201


def run_soak(minutes: float, cpu: float, seed: int) -> Result:
    """The soak, then its control: the same traffic over a server that leaks."""
    from soak import Told, soak

    began, result = time.monotonic(), Result(SOAK, "soak", rounds=1)
    lengths = {(): 60 * minutes, ("--leak",): max(200.0, 60 * minutes * CONTROL_SHARE)}
    for flags, seconds in lengths.items():
        told = Told(seconds=seconds, interval_s=min(60.0, seconds / 20), cpu=cpu, seed=seed)
        report = soak(told, *flags, most_mib=SOAK_MOST_MIB)
        leaks, name = report["leaks"], "G9 leaky control" if flags else "G9 soak"
        result.figures[name] = report
        say(f"{name}: {report['requests']} requests, {report['after_warm_up']}, leaks: {leaks}")
        if flags:
            missed = {"memory", "files", "threads", "tasks"} - set(leaks)
            result.controls += 4 - len(missed)
            result.controls_failed += [f"a leak of {each}" for each in sorted(missed)]
            continue
        result.cases = report["requests"]
        result.failed += [f"{each} grows" for each in leaks]
        result.failed += [f"{report['faults']} faults"] if report["faults"] else []
        result.failed += ["exit code"] if report["exit_code"] else []
        result.passed = 1
    result.seconds = time.monotonic() - began
    return result


def run_others(
    goals: list[Goal], ends: float, repeats: bool, keep: Callable[[list[Result]], None]
) -> dict[str, Result]:
    results: dict[str, Result] = {}
    for number in range(1_000):
        for goal in goals:
            if number and time.monotonic() > ends:
                return results
            result = run_goal(goal, number, GOAL_LIMIT_S)
            if goal.id in results:
                results[goal.id].add(result)
            else:
                results[goal.id] = result
            say(list(tabulate([result]))[-1])
            keep([results[goal.id]])
        if not repeats:
            break
    return results


def run(arguments: argparse.Namespace) -> int:
    known = {goal.id for goal in GOALS}
    wanted = set(filter(None, arguments.only.split(","))) or known
    if unknown := wanted - known:
        say(f"no goal named {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
        return 2
    began, load = time.monotonic(), os.getloadavg()[0]
    soaked: list[Result] = []

    def work() -> None:
        soaked.append(run_soak(arguments.minutes, arguments.cpu, arguments.seed))

    soaking = threading.Thread(target=work) if SOAK in wanted else None
    if soaking is not None:
        soaking.start()
    others = [goal for goal in GOALS if goal.id in wanted - {SOAK}]

    def keep(results: list[Result]) -> None:
        if arguments.json:
            write(arguments.json, results, time.monotonic() - began, load)

    results = run_others(others, began + 60 * arguments.minutes, arguments.repeat, keep)
    if soaking is not None:
        soaking.join()
        if not soaked:
            soaked.append(Result(SOAK, "soak", failed=["it did not come to its end"]))
    all_results = [*results.values(), *soaked]
    table = list(tabulate(all_results))
    say("\n".join(table))
    say(", ".join(f"{count} {how}" for how, count in summarize(all_results).items()))
    keep(all_results)
    return 0 if all(each.is_held for each in all_results) else 1


def write(path: Path, results: list[Result], seconds: float, load: float) -> None:
    """The goals of this run; those of an earlier one stay where they were not run again."""
    from vivace.cli.bench.machine import machine

    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    where = {**machine(), "load_before": round(load, 1), "load_after": round(os.getloadavg()[0], 1)}
    told = {
        each.id: {**each.as_json(), "run_s": round(seconds), "machine": where} for each in results
    }
    goals = {**report.get("goals", {}), **told}
    ordered = dict(sorted(goals.items(), key=lambda item: int(item[0][1:])))
    path.write_text(
        json.dumps({"benchmark": "reliability-nightly", "goals": ordered}, indent=1) + "\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nightly", action="store_true", help="all goals")
    parser.add_argument("--only", default="", help="goals with commas between: G1,G9")
    parser.add_argument("--minutes", type=float, default=60.0, help="of the soak, and of --repeat")
    parser.add_argument("--repeat", action="store_true", help="until the time is up")
    parser.add_argument("--cpu", type=float, default=0.5, help="cores for the soak")
    parser.add_argument("--seed", type=int, default=0, help="of the soak's traffic")
    parser.add_argument("--json", type=Path, help="add the results to this file")
    arguments = parser.parse_args()
    if not (arguments.nightly or arguments.only):
        parser.error("say --nightly for all goals, or --only G9")
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
