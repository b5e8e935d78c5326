"""`python -m tests.reliability --nightly` runs every goal at its large size, with its control.

    python -m tests.reliability --nightly --json nightly.json      # 80 minutes on two cores
    python -m tests.reliability --nightly --minutes 360 --repeat
    python -m tests.reliability --only G9 --minutes 10 --cpu 0.5

The goals that measure times run first and alone. Then the soak (G9) runs for `--minutes` against
`vivace serve` with the embedded voice, and its leaky control for a tenth of that time. Beside the
soak the other goals run one at a time, each in a pytest process with a time limit. `--repeat`
continues with other examples until the time is up. The file of `--json` is written after every
goal. A goal that measures times needs a quiet machine. Exit code 1: a goal failed, or a control was
not detected.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path

from tests.reliability.goals import GOALS, Goal
from tests.reliability.nightly import Report, Result, load_average, run_goal, summarize, tabulate

SOAK = "G9"
SOAK_MOST_MIB = 32.0  # memory growth in a night
CONTROL_SHARE = 0.1


def say(words: str) -> None:
    print(words, flush=True)  # noqa: T201


def run_soak(minutes: float, cpu: float, seed: int, report: Report) -> None:
    """Run the soak, then its control: the same traffic on a server that leaks."""
    from tests.reliability.soak import SoakLimits, soak

    began, load, result = time.monotonic(), load_average(), Result(SOAK, "soak", rounds=1)
    result.failed = ["it did not come to its end"]
    report.replace(result)
    lengths = {(): 60 * minutes, ("--leak",): max(200.0, 60 * minutes * CONTROL_SHARE)}
    for flags, seconds in lengths.items():
        limits = SoakLimits(seconds=seconds, interval_s=min(60.0, seconds / 20), cpu=cpu, seed=seed)
        found = soak(limits, *flags, most_mib=SOAK_MOST_MIB)
        leaks, name = found["leaks"], "G9 leaky control" if flags else "G9 soak"
        result.figures[name] = found
        say(f"{name}: {found['requests']} requests, {found['after_warm_up']}, leaks: {leaks}")
        if flags:
            missed = {"memory", "files", "threads", "tasks"} - set(leaks)
            result.controls += 4 - len(missed)
            result.controls_failed = [f"a leak of {each}" for each in sorted(missed)]
        else:
            result.cases, result.passed = found["requests"], 1
            result.failed = [f"{each} grows" for each in leaks]
            result.failed += [f"{found['faults']} faults"] if found["faults"] else []
            result.failed += ["exit code"] if found["exit_code"] else []
            result.controls_failed = ["not run yet"]
        result.seconds, result.loads = time.monotonic() - began, (load, load_average())
        report.replace(result)


def run_others(goals: list[Goal], ends: float, repeats: bool, report: Report) -> None:
    for number in range(1_000 if repeats else 1):
        for goal in goals:
            if number and time.monotonic() > ends:
                return
            run_one(goal, number, report)


def run_one(goal: Goal, number: int, report: Report) -> None:
    result = run_goal(goal, number)
    say(list(tabulate([result]))[-1])
    report.add(result)


def run(arguments: argparse.Namespace) -> int:
    known = {goal.id for goal in GOALS}
    wanted = set(filter(None, arguments.only.split(","))) or known
    if unknown := wanted - known:
        say(f"no goal named {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
        return 2
    report = Report(arguments.json)
    others = [goal for goal in GOALS if goal.id in wanted - {SOAK}]
    for goal in others:
        if goal.is_timed:
            run_one(goal, 0, report)
    soaking = threading.Thread(
        target=run_soak, args=(arguments.minutes, arguments.cpu, arguments.seed, report)
    )
    if SOAK in wanted:
        soaking.start()
    ends = time.monotonic() + 60 * arguments.minutes
    run_others([goal for goal in others if not goal.is_timed], ends, arguments.repeat, report)
    if SOAK in wanted:
        soaking.join()
    results = list(report.results.values())
    say("\n".join(tabulate(results)))
    say(", ".join(f"{count} {how}" for how, count in summarize(results).items()))
    return 0 if all(each.has_passed for each in results) else 1


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
