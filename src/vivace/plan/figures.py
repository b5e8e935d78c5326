"""Measured times of a model on a GPU: frames, codec and prompts in milliseconds.

`scripts/make_plan_figures.py` creates `h200.json` from the benchmark results.
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
READER_MS = 0.02  # assumed


@dataclass(frozen=True, slots=True)
class Figures:
    """Times in milliseconds, by the batch size of the captured CUDA graph."""

    gpu: str
    model: str
    frame_ms: Mapping[int, float]  # talker and predictor
    codec_ms: Mapping[int, Sequence[float]]  # of 1 frame and of 8 frames
    prompt_ms: float
    more_prompt: float  # time of a further prompt in a turn, as a share of the first
    host_ms: float  # per request, without the device
    reader_ms: float  # per chunk, while the client blocks the engine
    num_slots: int
    throughput: tuple[Mapping[str, Any], ...]  # rows of the measurement
    live: tuple[Mapping[str, Any], ...]  # rows of clients that play in real time
    source: Mapping[str, Any]  # date, commit and files

    def step(self, batch: int, num_frames: int) -> float:
        """Time of `num_frames` frames with `batch` streams, rounded up to a captured batch size."""
        return num_frames * interpolate(self.frame_ms, _captured(batch))

    def render(self, batch: int, num_frames: int) -> float:
        """Codec time of `num_frames` frames with `batch` streams, split into captured sizes."""
        size = _captured(batch)
        one = interpolate({key: ms[0] for key, ms in self.codec_ms.items()}, size)
        eight = interpolate({key: ms[1] for key, ms in self.codec_ms.items()}, size)
        return sum(one + (eight - one) * (part - 1) / 7 for part in split_frames(num_frames))

    def admit(self, num_prompts: int) -> float:
        return self.prompt_ms * (1 + self.more_prompt * (num_prompts - 1))

    @property
    def max_audio_per_s(self) -> float:
        """The highest measured throughput, in seconds of audio per second."""
        return max(float(row["audio_s_per_s"]) for row in self.throughput)


def _captured(batch: int) -> int:
    return fit(batch, BATCHES) or batch


def interpolate(known: Mapping[int, float], at: float) -> float:
    """Linear interpolation between the known values, and extrapolation above the last."""
    keys = sorted(known)
    if at <= keys[0] or len(keys) == 1:
        return known[keys[0]]
    upper = next((n for n in range(1, len(keys)) if at <= keys[n]), len(keys) - 1)
    low, high = keys[upper - 1], keys[upper]
    return known[low] + (known[high] - known[low]) * (at - low) / (high - low)


def load_figures(gpu: str, model: str) -> Figures:
    """Raises RequestError with the measured models if there are no figures."""
    known = read_gpu(gpu)
    if model not in known:
        raise RequestError(
            f"no measurements of model {model!r} on {gpu}; available: {', '.join(known)}"
        )
    return parse_figures(gpu, model, known[model])


def parse_figures(gpu: str, model: str, entry: Mapping[str, Any]) -> Figures:
    fields: dict[str, Any] = {**entry}
    for name in ("frame_ms", "codec_ms"):
        fields[name] = {int(batch): value for batch, value in entry[name].items()}
    for name in ("throughput", "live"):
        fields[name] = tuple(entry[name])
    return Figures(gpu=gpu, model=model, **fields)


def read_gpu(gpu: str) -> dict[str, Any]:
    """The entry of each measured model."""
    if gpu not in GPUS:
        raise RequestError(
            f"no measurements on GPU {gpu!r}; available: {', '.join(GPUS)}. Measure another GPU "
            "with `vivace bench --json FILE`, then use --bench FILE"
        )
    found: dict[str, Any] = json.loads((files("vivace.plan") / f"{gpu}.json").read_text("utf-8"))
    return found
