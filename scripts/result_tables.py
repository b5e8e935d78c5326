"""Reads the results of benchmarks, and formats rows as Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


def read(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results


def table(head: str, rows: Sequence[Sequence[object]]) -> str:
    columns = head.count("|") - 1
    lines = [head, "|" + "---|" * columns]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)
