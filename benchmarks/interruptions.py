"""Interrupts speech at random times in every integration and checks that no slot leaks.

    python benchmarks/interruptions.py --json benchmarks/results/interruptions-cpu.json

Runs the interruption tests of every framework (benchmarks/integrations.py lists what they need). A
test fails if a slot or a queued request remains, or if the next text is not spoken completely. A
framework that is not installed counts as a failure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest
from report import write_report

ROOT = Path(__file__).parent.parent
RANDOM = "test_interruptions_at_random_times_free_all_slots"
TESTS = {
    f"tests/integrations/test_pipecat_service.py::{RANDOM}": "pipecat",
    f"tests/integrations/test_livekit_voice.py::{RANDOM}": "livekit-agents",
    f"tests/integrations/test_realtimetts_engine.py::{RANDOM}": "realtimetts",
    f"tests/integrations/test_speech_to_speech.py::{RANDOM}": "speech-to-speech",
    "tests/serve/wyoming/test_disconnects.py::test_disconnect_at_any_time_frees_all_resources": (
        "wyoming"
    ),
    "tests/serve/sockets/test_interruptions.py"
    "::test_interruptions_at_random_times_free_every_slot": "WebSocket",
}


class Results:
    """A pytest plugin that collects the counters of each test."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        test, _, way = report.nodeid.rstrip("]").partition("[")
        counts = dict(report.user_properties)
        row = {"integration": TESTS[test], "way": way, "outcome": report.outcome, **counts}
        self.rows.append({**row, "seconds": round(report.duration, 1)})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT / "src"))
    results = Results()
    options = ["-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", "-m", "slow or not slow"]
    files, names = zip(*(test.split("::") for test in TESTS), strict=True)
    paths = [str(ROOT / file) for file in files]
    code = pytest.main([*options, "-k", " or ".join({*names}), *paths], [results])
    missing = set(TESTS.values()) - {row["integration"] for row in results.rows}
    if code or missing:
        sys.exit(f"failed{': not installed: ' if missing else ''}{', '.join(sorted(missing))}")
    if arguments.json:
        from vivace.cli.bench.machine import machine

        report = {"benchmark": "interruptions", "machine": machine(), "results": results.rows}
        write_report(arguments.json, report)


if __name__ == "__main__":
    main()
