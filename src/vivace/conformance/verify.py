"""Chooses the golden sets of a checkpoint, loads it for every run, and collects the report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vivace.checkpoint import Checkpoint
from vivace.conformance.checks import check_run, check_tokenizer, check_tokens
from vivace.conformance.golden import GoldenSet
from vivace.conformance.report import Report, Row, RunReport, failed_row, run_label
from vivace.errors import CheckpointError, RequestError, TTSError
from vivace.model.config import Weights
from vivace.tts import TTS


@dataclass(frozen=True, slots=True)
class Run:
    """How a checkpoint is loaded; the names of `TTS.load`."""

    backend: str = "auto"
    dtype: str = "auto"
    weights: Weights = "full"


REFERENCE_RUN = Run("eager", "float32")
MAX_DIFFERENCES = 3  # of a similar checkpoint
DEFAULT_RUNS = (REFERENCE_RUN, Run())


class NoGoldenError(RequestError):
    """No golden set fits the checkpoint."""


def verify_folder(
    folder: Path,
    golden_sets: Sequence[GoldenSet],
    runs: Sequence[Run],
    load: Callable[[Run], TTS],
    show: Callable[[str], None] = lambda text: None,  # the current step
) -> Report:
    """Compare a checkpoint with the golden sets that fit it. NoGoldenError if none does.

    A checkpoint that cannot be loaded has a row with the reason.
    """
    try:
        checkpoint = Checkpoint.open(folder)
    except CheckpointError as error:
        failed = _failed(runs[0], error, folder)
        return Report(kind=None, size=None, sets=[], not_recorded=[], token_rows=[], runs=[failed])
    sets = _fitting(checkpoint, golden_sets)
    token_rows: list[Row] = []
    reports: list[RunReport] = []
    for run in runs:
        show(f"loading with backend {run.backend}, {run.dtype}")
        began = time.perf_counter()
        try:
            loaded = load(run)
        except (TTSError, RuntimeError) as error:
            reports.append(_failed(run, error, folder))
            continue
        with loaded as tts:
            load_s = time.perf_counter() - began
            label = _label(tts)
            if label in (report.label for report in reports):
                continue
            if not token_rows:
                token_rows += check_tokenizer(tts.checkpoint.folder, sets)
                token_rows += check_tokens(tts.tokenizer, sets)
            reports.append(_report(tts, sets, load_s, label, show))
    return Report(
        kind=checkpoint.config.tts_model_type,
        size=checkpoint.config.tts_model_size,
        sets=[one.name for one in sets],
        not_recorded=[one.name for one in golden_sets if one not in sets],
        token_rows=token_rows,
        runs=reports,
    )


def _failed(run: Run, error: Exception, folder: Path) -> RunReport:
    """The report of a run whose checkpoint cannot be loaded."""
    reason = " ".join(str(error).split()).replace(f"{folder}{os.sep}", "")
    row = failed_row("load", error, reason=reason.replace(str(folder), "the checkpoint"))
    return RunReport(
        backend=run.backend,
        dtype=run.dtype,
        weights=run.weights,
        device="",
        load_s=None,
        frame_ms={},
        rows=[row],
    )


def _fitting(checkpoint: Checkpoint, golden_sets: Sequence[GoldenSet]) -> list[GoldenSet]:
    """The golden sets for this checkpoint, with values that were checked against it."""
    sets = [one for one in golden_sets if one.fits(checkpoint)]
    config = checkpoint.config
    if not sets:
        raise NoGoldenError(
            f"no golden values are recorded for this {config.tts_model_type} checkpoint "
            f"(hidden size {config.talker_config.hidden_size}{_nearest(checkpoint, golden_sets)}); "
            "record them on a machine that you trust with --record FILE, and compare with "
            "--golden FILE"
        )
    for one in sets:
        one.check_values(checkpoint)
    return sets


def _nearest(checkpoint: Checkpoint, sets: Sequence[GoldenSet]) -> str:
    """The set with the fewest differences, if a wrong config.json can explain them."""
    found = [(one.differences(checkpoint), one.name) for one in sets]
    differences, name = min(found, key=lambda pair: len(pair[0]), default=([], ""))
    if not differences or len(differences) > MAX_DIFFERENCES:
        return ""
    return f"; the set {name!r} is for another config.json: this one has {', '.join(differences)}"


def _report(
    tts: TTS, sets: Sequence[GoldenSet], load_s: float, label: str, show: Callable[[str], None]
) -> RunReport:
    frame_ms: dict[str, float] = {}
    rows = []
    for row in check_run(tts, sets, frame_ms):
        show(f"{label}: {row.check}")
        rows.append(row)
    backend, dtype, weights, device = _facts(tts)
    return RunReport(
        backend=backend,
        dtype=dtype,
        weights=weights,
        device=device,
        load_s=round(load_s, 3),
        frame_ms=frame_ms,
        rows=rows,
    )


def _label(tts: TTS) -> str:
    return run_label(*_facts(tts))


def _facts(tts: TTS) -> tuple[str, str, str, str]:
    dtype = str(tts.dtype).removeprefix("torch.")
    return tts.engine.backend.name, dtype, tts.loaded.runtime.model.weights, tts.device.type
