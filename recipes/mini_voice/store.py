"""The whole training set on the device: audio, labels and codes as flat tensors.

Utterances follow each other without gaps, and each begins on a frame. A crop may span two of them.
Crops are drawn from all speakers equally, independent of the amount of their speech. If codes are
known at the start, only utterances with codes are used; otherwise `codes` is set later.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from recipes.mini_voice.common import DEVICE
from recipes.mini_voice.lines import SPEAKER
from recipes.mini_voice.settings import FRAME, SAMPLE_RATE
from recipes.mini_voice.synthesize import plan

MAX_UTTERANCES = 100_000
SPAN = 4  # frames per sampling position; a crop begins at any of them


@dataclass
class Part:
    """Utterances in the order of their arrival."""

    audio: Tensor  # int16 [samples]
    labels: Tensor  # uint8 [2 * frames]
    codes: Tensor  # int16 [frames, books]
    num_frames: int = 0
    lines: list[int] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)  # of each utterance
    starts: list[int] = field(default_factory=list)  # its first frame
    num_refused: int = 0  # utterances whose codes are of another length

    def add(
        self, shard: Path, known: dict[int, np.ndarray] | None, uncoded: Collection[int] = ()
    ) -> None:
        """`uncoded` are speakers whose utterances need no codes."""
        with np.load(shard) as data:
            audio, labels = data["audio"].reshape(-1, FRAME), data["labels"].reshape(-1, 2)
            lines, frames = data["lines"], data["frames"]
        if known is not None:
            none = np.zeros((0, self.codes.shape[1]), np.int16)
            found = [
                np.zeros((n, none.shape[1]), np.int16)
                if line // SPEAKER in uncoded
                else known.get(line, none)
                for line, n in zip(lines.tolist(), frames.tolist(), strict=True)
            ]
            fits = np.asarray([len(c) == n for c, n in zip(found, frames, strict=True)], bool)
            self.num_refused += int((~fits).sum())
            kept = np.repeat(fits, frames)
            audio, labels, lines, frames = audio[kept], labels[kept], lines[fits], frames[fits]
            codes = np.concatenate([none, *(c for c, fit in zip(found, fits, strict=True) if fit)])
        begin, end = self.num_frames, self.num_frames + len(audio)
        if end * FRAME > len(self.audio):
            return
        self.audio[begin * FRAME : end * FRAME] = torch.from_numpy(audio.ravel()).to(DEVICE)
        self.labels[2 * begin : 2 * end] = torch.from_numpy(labels.ravel()).to(DEVICE)
        if known is not None:
            self.codes[begin:end] = torch.from_numpy(codes).to(DEVICE)
        self.lines += lines.tolist()
        self.frames += frames.tolist()
        self.starts += (begin + np.cumsum(frames) - frames).tolist()
        self.num_frames = end


def _part(hours: float, num_books: int) -> Part:
    frames = int(hours * 3600 * SAMPLE_RATE / FRAME) + 1
    return Part(
        torch.zeros(frames * FRAME, dtype=torch.int16, device=DEVICE),
        torch.zeros(2 * frames, dtype=torch.uint8, device=DEVICE),
        torch.zeros(frames, num_books, dtype=torch.int16, device=DEVICE),
    )


class Store:
    """Reads shards as they appear. Captured steps sample within `limits`."""

    def __init__(
        self, data: SimpleNamespace, num_books: int, known: dict[int, np.ndarray] | None = None,
        uncoded: Collection[int] = (),
    ) -> None:  # fmt: skip
        """`known` are the codes [frames, books] of each line; `uncoded` speakers have none yet."""
        self._folder, self._known, self._uncoded = Path(data.shards), known, uncoded
        shards = plan(data)
        self._pending = list(range(len(shards)))
        self._dev = {i for i, lines in enumerate(shards) if lines[0][0] % SPEAKER < data.num_dev}
        self._speakers = [lines[0][0] // SPEAKER for lines in shards]
        self._min_hours = data.min_hours
        self.train = _part(data.max_hours, num_books)
        self.dev = _part(min(1.0, data.max_hours), num_books)
        self.num_speakers = count = len(data.speakers)
        self.limits = torch.zeros(count, 2, dtype=torch.float64, device=DEVICE)  # of the next two
        num_places = len(self.train.codes) // SPAN + MAX_UTTERANCES
        self.places = torch.zeros(count, num_places, dtype=torch.int64, device=DEVICE)
        self.starts = torch.zeros(count, MAX_UTTERANCES, dtype=torch.int64, device=DEVICE)
        self.end = torch.zeros((), dtype=torch.int64, device=DEVICE)  # frames
        self._check_reach()

    def _check_reach(self) -> None:
        """Check that `gather` reaches the end of a buffer with more than 2**31 samples."""
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

    @property
    def _is_enough(self) -> bool:
        speakers = {line // SPEAKER for line in self.train.lines}
        return self.hours >= self._min_hours and len(speakers) == self.num_speakers

    def _ready(self) -> list[int]:
        """New shards, those of all speakers in turn: no speaker waits for the shards of another."""
        names = {path.name for path in self._folder.glob("?????.npz")}
        found = [index for index in self._pending if f"{index:05d}.npz" in names]
        counts = dict.fromkeys(range(self.num_speakers), 0)
        ranks = {}
        for index in found:
            ranks[index] = counts[self._speakers[index]]
            counts[self._speakers[index]] += 1
        return sorted(found, key=ranks.__getitem__)

    def poll(self, most: int = 4) -> None:
        """Take up to `most` new shards."""
        ready = self._ready()[:most]
        for index in ready:
            part = self.dev if index in self._dev else self.train
            part.add(self._folder / f"{index:05d}.npz", self._known, self._uncoded)
            self._pending.remove(index)
        if ready:
            self._tell()

    def _tell(self) -> None:
        """Update the limits of captured steps."""
        train = self.train
        lines, starts, frames = (
            np.asarray(found, np.int64) for found in (train.lines, train.starts, train.frames)
        )
        speakers = lines // SPEAKER
        for speaker in range(self.num_speakers):
            own, lengths = starts[speakers == speaker], frames[speakers == speaker]
            counts = np.maximum(1, lengths // SPAN)
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            places = np.repeat(own, counts) + SPAN * within
            for kept, found in ((self.places, places), (self.starts, own)):
                kept[speaker, : len(found)] = torch.from_numpy(found).to(DEVICE)
            limits = torch.tensor([len(places), len(own)], dtype=torch.float64)
            self.limits[speaker].copy_(limits)
        self.end.fill_(train.num_frames)

    def close(self) -> None:
        """Ignore further shards, which would have no codes."""
        self._pending = []

    def wait(self, *, complete: bool = False, timeout: float = 300.0) -> None:
        """Wait for all shards, or for enough hours and a train shard of every speaker."""
        begun = time.perf_counter()
        while not self.is_complete and (complete or not self._is_enough):
            if time.perf_counter() - begun > timeout:
                print(f"shards missing: {len(self._pending)}", flush=True)
                break
            self.poll(most=MAX_UTTERANCES)
            time.sleep(0.2)
        if not self.train.starts:
            raise SystemExit("no audio: is synthesis running?")
        print(f"audio: {self.hours:.2f} h, {len(self.train.starts)} utterances", flush=True)

    def sample_frames(
        self, batch: int, crop: int, num_starts: int, speaker: int | None = None
    ) -> Tensor:
        """Draw the first frames of `batch` crops, alternating between speakers: [batch].

        The first `num_starts` crops begin at the start of an utterance, the others anywhere.
        """
        who = torch.arange(batch, device=DEVICE) % self.num_speakers
        who = who if speaker is None else torch.full_like(who, speaker)
        draw = torch.rand(batch, dtype=torch.float64, device=DEVICE)
        place, start = (draw[:, None] * self.limits[who]).long().unbind(-1)
        shift = torch.randint(SPAN, (batch - num_starts,), device=DEVICE)
        begin = torch.cat((
            self.starts[who[:num_starts], start[:num_starts]],
            self.places[who[num_starts:], place[num_starts:]] + shift,
        ))  # fmt: skip
        return torch.minimum(begin, (self.end - crop - 1).clamp(min=0))


def gather(flat: Tensor, starts: Tensor, length: int) -> Tensor:
    """Runs of `length` from each start: [B, length, ...]."""
    return flat[starts[:, None] + torch.arange(length, device=flat.device)]
