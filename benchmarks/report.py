"""Reads sizes from the command line and writes the report of a benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_report(path: Path | None, report: dict[str, Any]) -> None:
    """Write the JSON. Called after every row, so that an interrupted run keeps its rows."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def read_sizes(text: str) -> list[int]:
    """The numbers of an option such as `--streams 1,8,64`."""
    return [int(size) for size in text.split(",")]
