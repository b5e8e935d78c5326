"""Measures every available backend with one stream and with many: time per stage of a frame."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from vivace.backends import BackendEntry, Capacity, survey
from vivace.cli.bench.latency import Subject, measure_backend_times
from vivace.cli.bench.load import measure_throughput
from vivace.engine.checkpoints.loaded import LoadedCheckpoint, Runtime
from vivace.engine.engine import Engine
from vivace.engine.limits import EngineLimits
from vivace.errors import BackendError
from vivace.tts import TTS

BATCHES = (1, 8, 64, 256)
MAX_MEASUREMENT_S = 15.0  # longer measurements are skipped


def measure_backends(
    subject: Subject, batches: Sequence[int], *, num_frames: int
) -> list[dict[str, Any]]:
    """One row per backend and number of streams. A backend that cannot run has a reason instead."""
    rows: list[dict[str, Any]] = []
    for entry, refusal in survey(subject.tts.device):
        try:
            if refusal is not None:
                raise BackendError(refusal)
            rows += _measure(entry, subject, batches, num_frames)
        except BackendError as error:
            rows.append({"backend": entry.name, "refused": str(error)})
    return rows


def _measure(
    entry: BackendEntry, subject: Subject, batches: Sequence[int], num_frames: int
) -> Iterator[dict[str, Any]]:
    model, codec = subject.tts.loaded.runtime.load()
    refusals = {count: entry.unfit(model, Capacity(max_streams=count)) for count in batches}
    fitting = [count for count in sorted(batches) if refusals[count] is None]
    if not fitting:
        raise BackendError(str(refusals[min(batches)]))
    backend = entry.build(model, codec, Capacity(max_streams=fitting[-1]))
    engine = Engine(backend, EngineLimits(max_streams=fitting[-1]))
    runtime = Runtime.of(model, codec, engine)
    tts = TTS(LoadedCheckpoint(subject.tts.checkpoint, subject.tts.tokenizer, runtime))
    last_s, last = 0.0, 1
    with tts:
        for count in fitting:
            expected_s = last_s if backend.shares_work else last_s * count / last
            if expected_s > MAX_MEASUREMENT_S:
                reason = f"skipped: the measurement would take about {expected_s:.0f} s"
                yield {"backend": entry.name, "streams": count, "refused": reason}
                continue
            began, last = time.perf_counter(), count
            yield {"backend": entry.name} | _row(
                dataclasses.replace(subject, tts=tts), count, num_frames
            )
            last_s = time.perf_counter() - began
    yield from (
        {"backend": entry.name, "streams": count, "refused": reason}
        for count, reason in refusals.items()
        if reason is not None
    )


def _row(subject: Subject, num_streams: int, num_frames: int) -> dict[str, Any]:
    """Milliseconds per frame of all streams together, after a warm-up round."""
    measure = partial(measure_throughput, subject, num_streams, num_frames=num_frames, rounds=1)
    measure()
    result, times = measure_backend_times(subject.tts.engine, measure)
    per_frame = {f"{name}_ms": round(1000 * s / num_frames, 3) for name, s in times.items()}
    return {"streams": num_streams, **per_frame, "audio_s_per_s": result["audio_s_per_s"]}
