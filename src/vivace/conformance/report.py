"""Results of `vivace verify`: rows with a status, and the report as JSON without personal data."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

_ABSOLUTE_PATH = re.compile(r"(?<![\w.])(?:[/~]|[A-Za-z]:\\)\w")
Status = Literal["ok", "differs", "not run"]
FORMAT = "vivace.verify/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison with golden values."""

    check: str
    result: str
    threshold: str
    status: Status
    is_required: bool = True
    values: Mapping[str, Any] = field(default_factory=dict)  # numbers behind the result

    @property
    def is_passed(self) -> bool:
        return self.status == "ok" or not self.is_required


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """All comparisons with one backend and precision."""

    backend: str
    dtype: str
    weights: str
    device: str  # its type; "" if it was not loaded
    load_s: float | None  # None: it was not loaded
    frame_ms: Mapping[str, float]  # by request
    rows: Sequence[Row]

    @property
    def label(self) -> str:
        return run_label(self.backend, self.dtype, self.weights, self.device)


def run_label(backend: str, dtype: str, weights: str, device: str) -> str:
    words = [backend] if dtype == backend == "auto" else [backend, dtype]
    words += [weights] if weights != "full" else []
    return " ".join([*words, "on", device] if device else words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    kind: str | None  # of the checkpoint; None if its configuration cannot be read
    size: str | None
    sets: Sequence[str]  # golden sets that fit the checkpoint
    not_recorded: Sequence[str]  # golden sets of other checkpoints
    token_rows: Sequence[Row]
    runs: Sequence[RunReport]

    @property
    def is_ok(self) -> bool:
        rows = [*self.token_rows, *(row for run in self.runs for row in run.rows)]
        return all(row.is_passed for row in rows)

    def table(self) -> Iterator[tuple[str, str, str, str, str]]:
        yield "run", "check", "result", "required", "status"
        for label, rows in self._labelled():
            for row in rows:
                yield label, row.check, row.result, row.threshold, row.status
        for run in self.runs:
            for name, frame_ms in run.frame_ms.items():
                yield run.label, f"time, {name}", f"{frame_ms:.1f} ms per frame", "-", "-"
            if run.load_s is not None:
                yield run.label, "time, load", f"{run.load_s:.2f} s", "-", "-"

    def as_json(self, machine: Mapping[str, Any]) -> dict[str, Any]:
        """`machine`: versions and the names of processors."""
        return {
            "format": FORMAT,
            "is_ok": self.is_ok,
            "machine": dict(machine),
            "kind": self.kind,
            "size": self.size,
            "sets": list(self.sets),
            "not_recorded": list(self.not_recorded),
            "token_rows": [_row_json(row) for row in self.token_rows],
            "runs": [
                {**dataclasses.asdict(run), "rows": [_row_json(row) for row in run.rows]}
                for run in self.runs
            ],
        }

    def _labelled(self) -> Iterator[tuple[str, Sequence[Row]]]:
        yield "tokenizer", self.token_rows
        for run in self.runs:
            yield run.label, run.rows


def failed_row(check: str, error: Exception, *, reason: str = "") -> Row:
    """The row of a check that did not run. A report keeps the type of the error, and `reason`."""
    name = type(error).__name__
    is_private = _ABSOLUTE_PATH.search(reason) is not None
    values = {"error": name if is_private or not reason else f"{name}: {reason}"}
    text = reason or " ".join(str(error).split())
    return Row(check=check, result=text, threshold="-", status="not run", values=values)


def _row_json(row: Row) -> dict[str, Any]:
    """A row. The message of an error may contain paths, so only its type is kept."""
    result = row.values.get("error", row.result) if row.status == "not run" else row.result
    return {**dataclasses.asdict(row), "result": result}
