"""The whole set on the device: one flat run of audio, in frames, with labels and later codes.

Utterances follow each other without gaps; each begins on a frame. A crop may span two of them,
which sounds like a pause.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from recipes.mini_voice.common import DEVICE
from recipes.mini_voice.settings import FRAME, SAMPLE_RATE
from recipes.mini_voice.synthesize import plan

MAX_UTTERANCES = 100_000


@dataclass
class Part:
    """Utterances in the order in which they came."""

    audio: Tensor  # int16 [samples]
    labels: Tensor  # uint8 [2 * frames]
    num_frames: int = 0
    lines: list[int] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)  # of each utterance
    starts: list[int] = field(default_factory=list)  # its first frame

    def add(self, shard: Path) -> None:
        with np.load(shard) as data:
            audio, labels = data["audio"], data["labels"]
            lines, frames = data["lines"].tolist(), data["frames"].tolist()
        count = len(audio) // FRAME
        begin, end = self.num_frames, self.num_frames + count
        if end * FRAME > len(self.audio):
            return
        self.audio[begin * FRAME : end * FRAME] = torch.from_numpy(audio).to(DEVICE)
        self.labels[2 * begin : 2 * end] = torch.from_numpy(labels).to(DEVICE)
        for line, length in zip(lines, frames, strict=True):
            self.lines.append(line)
            self.frames.append(length)
            self.starts.append(begin)
            begin += length
        self.num_frames = end


def _part(hours: float) -> Part:
    frames = int(hours * 3600 * SAMPLE_RATE / FRAME) + 1
    return Part(
        torch.zeros(frames * FRAME, dtype=torch.int16, device=DEVICE),
        torch.zeros(2 * frames, dtype=torch.uint8, device=DEVICE),
    )


class Store:
    """Reads shards as they appear; `limits` is what captured steps sample within."""

    def __init__(self, data: SimpleNamespace) -> None:
        self._folder = Path(data.shards)
        shards = plan(data)
        self._pending = list(range(len(shards)))
        self._dev = {i for i, lines in enumerate(shards) if lines[0][0] < data.num_dev}
        self._min_hours = data.min_hours
        self.train, self.dev = _part(data.max_hours), _part(min(1.0, data.max_hours))
        self.limits = torch.zeros(2, dtype=torch.float64, device=DEVICE)  # frames, utterances
        self.starts = torch.zeros(MAX_UTTERANCES, dtype=torch.int64, device=DEVICE)
        self._check_reach()

    def _check_reach(self) -> None:
        """The buffer has more than 2**31 samples: prove that gathering reaches its end."""
        audio = self.train.audio
        audio[-3:] = torch.tensor([5, 6, 7], dtype=torch.int16, device=DEVICE)
        last = torch.tensor([len(audio) - 3], device=DEVICE)
        assert gather(audio, last, 3).tolist() == [[5, 6, 7]]
        audio[-3:] = 0

    @property
    def is_complete(self) -> bool:
        return not self._pending

    @property
    def hours(self) -> float:
        return self.train.num_frames * FRAME / SAMPLE_RATE / 3600

    def poll(self, most: int = 4) -> None:
        """Take up to `most` new shards."""
        names = {path.name for path in self._folder.glob("?????.npz")}
        ready = [index for index in self._pending if f"{index:05d}.npz" in names][:most]
        for index in ready:
            part = self.dev if index in self._dev else self.train
            part.add(self._folder / f"{index:05d}.npz")
            self._pending.remove(index)
        if ready:
            count = len(self.train.starts)
            self.starts[:count] = torch.tensor(self.train.starts, device=DEVICE)
            self.limits.copy_(torch.tensor([self.train.num_frames, count], dtype=torch.float64))

    def wait(self, *, complete: bool = False, timeout: float = 300.0) -> None:
        begun = time.perf_counter()
        while not (self.is_complete if complete else self.hours >= self._min_hours):
            if time.perf_counter() - begun > timeout:
                print(f"shards missing: {len(self._pending)}", flush=True)
                if not self.train.starts:
                    raise SystemExit("no audio: is synthesis running?")
                break
            self.poll(most=64)
            time.sleep(0.2)
        print(f"audio: {self.hours:.2f} h, {len(self.train.starts)} utterances", flush=True)

    def sample_frames(self, batch: int, crop: int, start_fraction: float) -> Tensor:
        """First frames of `batch` crops, drawn on the device: [batch]."""
        draw = torch.rand(3, batch, dtype=torch.float64, device=DEVICE)
        last = self.limits[0] - crop - 1
        anywhere = (draw[0] * last).long()
        begin = self.starts[(draw[1] * self.limits[1]).long()]
        begin = torch.minimum(begin, last.long())
        return torch.where(draw[2] < start_fraction, begin, anywhere)


def gather(flat: Tensor, starts: Tensor, length: int) -> Tensor:
    """Runs of `length` from each start: [B, length, ...]."""
    return flat[starts[:, None] + torch.arange(length, device=flat.device)]
