"""`vivace verify`: compares a checkpoint with golden values and prints a table."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from vivace._version import __version__
from vivace.checkpoint import EMBEDDED
from vivace.cli.bench.machine import machine
from vivace.cli.messages import print_error
from vivace.cli.progress import ProgressLine
from vivace.cli.request import find_model_folder, model_name
from vivace.cli.streams import (
    STDOUT_PATHS,
    print_columns,
    print_json,
    print_stderr,
    print_stdout,
    printable,
)
from vivace.conformance.golden import SHIPPED, load_golden, save_golden
from vivace.conformance.record import record_golden
from vivace.conformance.report import Report
from vivace.conformance.verify import (
    DEFAULT_RUNS,
    REFERENCE_RUN,
    NoGoldenError,
    Run,
    verify_folder,
)
from vivace.disk import why_unwritable, write_whole
from vivace.errors import RequestError
from vivace.tts import TTS

DIFFERS, NOT_RECORDED = 1, 2  # exit codes
PRIVATE = ("date", "commit")  # facts of the machine that a report does not need


def verify(arguments: argparse.Namespace) -> int:
    """Print the table. Returns 0 if all required rows are ok."""
    _check_output(arguments.record, may_exist=False)
    _check_output(arguments.json, may_exist=True)
    with ProgressLine(is_quiet=arguments.quiet) as line:
        line.show("looking for the model")
        folder = find_model_folder(model_name(arguments), arguments)
        load = partial(_load, folder, arguments)
        if arguments.record is not None:
            _record(load(REFERENCE_RUN), Path(arguments.record))
            return 0
        paths = SHIPPED if arguments.golden is None else (Path(arguments.golden),)
        sets = [one for path in paths for one in load_golden(path)]
        try:
            report = verify_folder(folder, sets, _runs(arguments), load, line.show)
        except NoGoldenError as error:
            line.clear()
            print_error(error)
            return NOT_RECORDED
    if arguments.json in STDOUT_PATHS:
        print_json(_as_json(report), indent=2)
    else:
        _print_report(report)
        if arguments.json is not None:
            _write_json(report, Path(arguments.json))
    return 0 if report.is_ok else DIFFERS


def _check_output(file: str | None, *, may_exist: bool) -> None:
    """Raise RequestError before the work if a file cannot be written."""
    if file is None or (may_exist and file in STDOUT_PATHS):
        return
    path = Path(file)
    reason = "it exists" if path.exists() and not may_exist else why_unwritable(path)
    if reason is not None:
        raise RequestError(f"cannot write {path}: {reason}")


def _runs(arguments: argparse.Namespace) -> tuple[Run, ...]:
    """The run of the options; without one of them, the default runs."""
    chosen = Run(arguments.backend, arguments.dtype, arguments.weights)
    return DEFAULT_RUNS if chosen == Run() else (chosen,)


def _load(folder: Path, arguments: argparse.Namespace, run: Run) -> TTS:
    return TTS.load(
        folder,
        device=arguments.device,
        dtype=run.dtype,
        weights=run.weights,
        backend=run.backend,
        threads=arguments.threads,
        max_streams=1,
    )


def _record(loaded: TTS, path: Path) -> None:
    with loaded as tts:
        if tts.loaded.runtime.model.weights != "full":
            raise RequestError("golden values are recorded with full weights, not quantized ones")
        is_embedded = tts.checkpoint.folder == EMBEDDED
        kind = tts.checkpoint.config.tts_model_type
        recording = record_golden(tts, "embedded voice" if is_embedded else f"recorded {kind}")
    save_golden([recording.golden], path)
    print_stdout(path)
    print_stderr(f"vivace: smallest margin of a choice: {recording.margin:.1e}")


def _print_report(report: Report) -> None:
    print_columns([tuple(map(printable, row)) for row in report.table()])
    for name in report.not_recorded:
        print_stdout(f"{printable(name)}: not recorded for this checkpoint")
    problem = "required rows differ or did not run"
    print_stdout("all required rows are ok" if report.is_ok else problem)


def _as_json(report: Report) -> dict[str, Any]:
    facts = {name: value for name, value in machine().items() if name not in PRIVATE}
    return report.as_json({"vivace": __version__, **facts})


def _write_json(report: Report, path: Path) -> None:
    content = json.dumps(_as_json(report), indent=2) + "\n"
    try:
        write_whole(path, content.encode(), replace=True)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror or error}") from error
