"""Rows of the tables of docs/performance.md about CPUs; `make_tables.py` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Report = dict[str, Any]
Table = tuple[str, list[list[object]]]  # the head, and the rows

KERNEL_NAMES = {
    "pytorch": "PyTorch",
    "avx512": "AVX-512",
    "avx2": "AVX2",
    "amx": "AMX, two bfloat16 numbers",
    "bf16": "AMX, bfloat16",
    "baseline": "SSE2",
}
BACKENDS = {"eager": "float32, `eager`", "official": "float32, `qwen-tts`"}
BATCHES = (4,)


def contended(report: Report) -> Table:
    """The embedded voice, also on busy cores."""
    results = report["results"]
    busy = {row["threads"]: row for row in results if row["contended"]}
    rows: list[list[object]] = [
        [
            "default (one)" if row["threads"] == "default" else row["threads"],
            f"{row['load_s']:.2f} s",
            f"{row['first_audio_ms']:.0f} ms",
            f"{row['times_real_time']:.1f}",
            _busy(busy[row["threads"]]),
        ]
        for row in results
        if not row["contended"]
    ]
    head = "| threads | load | first audio, streamed | times real time |"
    return f"{head} times real time, busy cores |", rows


def _busy(row: Report) -> str:
    return f"{row['times_real_time']:.1f}" if "times_real_time" in row else "not done in 90 s"


def parts(report: Report) -> Table:
    """The embedded voice by part."""
    rows: list[list[object]] = [
        [
            row["threads"],
            f"{row['load_s']:.2f} s",
            f"{row['first_audio_ms']:.0f} ms",
            f"{row['times_real_time']:.1f}",
            *(f"{row['ms_per_frame'][part]:.1f}" for part in ("prefill", "model", "codec")),
        ]
        for row in report["results"]
    ]
    head = "| threads | load | first audio, streamed | times real time | prompt, ms |"
    return f"{head} talker and predictor, ms per frame | codec, ms per frame |", rows


def codec(report: Report) -> Table:
    rows: list[list[object]] = [
        [
            f"{row['shape']}, {KERNEL_NAMES[row['kernels']]}",
            row["threads"],
            *(f"{row['ms_per_frame'][frames]:.1f}" for frames in ("1", "4", "8")),
            "" if row["kernels"] == "pytorch" else f"{row['db_from_pytorch']:.0f}",
        ]
        for row in report["results"]
    ]
    head = "| codec | threads | 1 frame per call | 4 frames | 8 frames |"
    return f"{head} dB from PyTorch |", rows


def models(*reports: Report) -> Table:
    """One stream of released shapes."""
    rows = [
        [
            f"{report['shape'].partition('-')[0]}, {_weights(row)}",
            row["threads"],
            f"{row['model_ms_per_frame']:.0f}",
            f"{row['codec_ms_per_frame']:.1f}" if "codec_ms_per_frame" in row else "",
            f"{row['times_real_time']:.2f}" if "times_real_time" in row else "",
        ]
        for report in reports
        for row in report["results"]
        if row.get("streams") == 1
    ]
    head = "| model | threads | talker and predictor, ms per frame |"
    return f"{head} codec, ms per frame | times real time |", rows


def _weights(row: Report) -> str:
    return BACKENDS.get(row["weights"], f"{row['weights']}, `cpu`")


def streams(report: Report) -> Table:
    """Several streams that share each sweep of the weights."""
    rows: list[list[object]] = [
        [
            row["weights"],
            row["threads"],
            row["streams"],
            f"{row['model_ms_per_frame']:.0f}",
            f"{row['times_real_time']:.1f}",
        ]
        for row in report["results"]
        if row["weights"] in ("int8", "int4") and "streams" in row
    ]
    head = "| weights | threads | streams | talker and predictor, ms per frame of all streams |"
    return f"{head} times real time, all streams |", rows


def beside(report: Report) -> Table:
    """The codec after the model on all threads, and beside it on threads of its own."""
    after = {
        (row["weights"], row["threads"]): row["model_ms_per_frame"] + row["codec_ms_per_frame"]
        for row in report["results"]
        if row.get("streams") == 1 and "codec_ms_per_frame" in row
    }
    rows: list[list[object]] = [
        [
            f"{row['weights']}, {row['threads']} threads",
            f"{after[row['weights'], row['threads']]:.1f}",
            f"{row['model_threads']} + {row['codec_threads']}",
            f"{row['ms_per_frame']:.1f}",
        ]
        for row in report["results"]
        if "codec_threads" in row
    ]
    head = "| | one after the other, ms per frame | threads of model + codec |"
    return f"{head} beside each other, ms per frame |", rows


def calls(*reports: Report) -> Table:
    """Whole calls of released shapes."""
    rows = [row for report in reports for row in _call_rows(report)]
    head = "| model | threads | first audio | times real time, one text |"
    return f"{head} {' | '.join(f'{size} texts' for size in BATCHES)} |", rows


def _call_rows(report: Report) -> Iterator[list[object]]:
    for row in report["results"]:
        speeds = {call["batch"]: f"{call['times_real_time']:.2f}" for call in row["calls"]}
        yield [
            f"{report['shape'].partition('-')[0]}, {row['weights']}",
            row["threads"],
            f"{row['first_audio_ms']:.0f} ms",
            *(speeds.get(size, "") for size in (1, *BATCHES)),
        ]
