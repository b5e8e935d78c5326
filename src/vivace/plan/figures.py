"""What was measured of a model on a GPU: milliseconds of frames, codec and prompts.

`h200.json` is made by `scripts/make_plan_figures.py` from the results of the benchmarks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from vivace.backends.cuda_graph.buckets import BATCHES, fit, split_frames
from vivace.errors import RequestError

GPUS = ("h200",)


@dataclass(frozen=True, slots=True)
class Figures:
    """Times in milliseconds, by the batch that a graph was captured for."""

    gpu: str
    model: str
    frame_ms: Mapping[int, float]  # talker and predictor
    codec_ms: Mapping[int, Sequence[float]]  # of 1 frame, and of 8
    prompt_ms: float
    more_prompt: float  # what a second prompt of a turn costs, as a share of the first
    host_ms: float  # of a request, besides the device
    reader_ms: float  # of a chunk, which its reader keeps the engine waiting for
    num_slots: int
    throughput: tuple[Mapping[str, Any], ...]  # as they were measured
    arrivals: tuple[Mapping[str, Any], ...]
    source: Mapping[str, Any]  # date, commit and files

    def step(self, batch: int, num_frames: int) -> float:
        """Frames of so many streams; graphs are captured for some sizes of a batch."""
        return num_frames * interpolate(self.frame_ms, _captured(batch))

    def render(self, batch: int, num_frames: int) -> float:
        """Codec of so many streams; it is captured for some numbers of frames."""
        size = _captured(batch)
        one = interpolate({key: ms[0] for key, ms in self.codec_ms.items()}, size)
        eight = interpolate({key: ms[1] for key, ms in self.codec_ms.items()}, size)
        return sum(one + (eight - one) * (part - 1) / 7 for part in split_frames(num_frames))

    def admit(self, num_prompts: int) -> float:
        return self.prompt_ms * (1 + self.more_prompt * (num_prompts - 1))

    @property
    def most_audio(self) -> float:
        """Seconds of audio a second, the most that was measured."""
        return max(float(row["audio_s_per_s"]) for row in self.throughput)


def _captured(batch: int) -> int:
    return fit(batch, BATCHES) or batch


def interpolate(known: Mapping[int, float], at: float) -> float:
    """Straight lines between what is known, and on beyond its end."""
    keys = sorted(known)
    if at <= keys[0] or len(keys) == 1:
        return known[keys[0]]
    upper = next((n for n in range(1, len(keys)) if at <= keys[n]), len(keys) - 1)
    low, high = keys[upper - 1], keys[upper]
    return known[low] + (known[high] - known[low]) * (at - low) / (high - low)


def models_of(gpu: str) -> list[str]:
    return list(_read(gpu))


def load_figures(gpu: str, model: str) -> Figures:
    """A RequestError names what was measured."""
    known = _read(gpu)
    if model not in known:
        raise RequestError(
            f"no figures of {model!r} on {gpu}; there are some of: {', '.join(known)}"
        )
    return parse_figures(gpu, model, known[model])


def parse_figures(gpu: str, model: str, told: Mapping[str, Any]) -> Figures:
    fields: dict[str, Any] = {**told}
    for name in ("frame_ms", "codec_ms"):
        fields[name] = {int(batch): value for batch, value in told[name].items()}
    for name in ("throughput", "arrivals"):
        fields[name] = tuple(told[name])
    return Figures(gpu=gpu, model=model, **fields)


def _read(gpu: str) -> dict[str, Any]:
    if gpu not in GPUS:
        raise RequestError(
            f"nothing was measured on {gpu!r}; there are figures of: {', '.join(GPUS)}. "
            "Measure yours with `vivace bench --json FILE`, then plan with --bench FILE"
        )
    found: dict[str, Any] = json.loads((files("vivace.plan") / f"{gpu}.json").read_text("utf-8"))
    return found
