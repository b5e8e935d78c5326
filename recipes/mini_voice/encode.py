"""Encode the whole set and pack the codes into files for the talker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recipes.mini_voice.codec_model import CodecTrainer
from recipes.mini_voice.common import DEVICE
from recipes.mini_voice.settings import FRAME
from recipes.mini_voice.store import Part, Store

SAMPLES_PER_PASS = 8_000_000
BITS = 9
LEADS = "leads.npy"


@torch.no_grad()
def encode_part(trainer: CodecTrainer, part: Part) -> Tensor:
    """Codes of every frame, utterance by utterance: int16 [frames, books]."""
    num_books = len(trainer.books.usage)
    codes = torch.zeros(part.num_frames, num_books, dtype=torch.int16, device=DEVICE)
    order = np.argsort(np.asarray(part.frames), kind="stable")
    begin = 0
    while begin < len(order):
        longest, end = 0, begin
        while end < len(order):
            longest = max(longest, part.frames[order[end]])
            if end > begin and (end + 1 - begin) * longest * FRAME > SAMPLES_PER_PASS:
                break
            end += 1
        chosen = order[begin:end]
        starts = torch.tensor([part.starts[i] for i in chosen], device=DEVICE)
        frames = torch.tensor([part.frames[i] for i in chosen], device=DEVICE)
        longest = int(frames.max())
        at = torch.arange(longest, device=DEVICE)
        inside = at < frames[:, None]
        rows = (starts[:, None] + at).clamp(max=part.num_frames - 1)
        samples = part.audio.view(-1, FRAME)[rows].float() / 32768 * inside[..., None]
        found = trainer.encode(samples.flatten(1))
        codes[rows[inside]] = found[inside].to(torch.int16)
        begin = end
    return codes


def pack(codes: np.ndarray) -> np.ndarray:
    """Rows of BITS-bit numbers to bytes."""
    bits = (codes.reshape(-1, 1).astype(np.uint16) >> np.arange(BITS, dtype=np.uint16)) & 1
    return np.packbits(bits.astype(np.uint8).ravel())


def unpack(packed: np.ndarray, count: int) -> np.ndarray:
    bits = np.unpackbits(packed)[: count * BITS].reshape(count, BITS)
    weights = (1 << np.arange(BITS)).astype(np.int16)
    out = np.zeros(count, np.int16)
    for index in range(BITS):
        out += bits[:, index] * weights[index]
    return out


@dataclass
class Codes:
    """The training data of the talker."""

    codes: np.ndarray  # int16 [frames, books]
    labels: np.ndarray  # uint8 [2 * frames]
    lines: np.ndarray  # of each utterance
    frames: np.ndarray
    num_dev: int  # the first utterances are held out
    leads: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """Frames of silence before speech, [leads, frames each], after those of all utterances."""

    @property
    def starts(self) -> np.ndarray:
        return np.concatenate(([0], np.cumsum(self.frames)[:-1]))

    def by_line(self) -> dict[int, np.ndarray]:
        ends = np.cumsum(self.frames)
        pieces = np.split(self.codes[: ends[-1]], ends[:-1])
        return dict(zip(self.lines.tolist(), pieces, strict=True))


def of_store(store: Store) -> Codes:
    parts = (store.dev, store.train)
    return Codes(
        torch.cat([part.codes for part in parts]).cpu().numpy(),
        np.concatenate([part.labels[: 2 * part.num_frames].cpu().numpy() for part in parts]),
        np.concatenate([np.asarray(part.lines, np.int32) for part in parts]),
        np.concatenate([np.asarray(part.frames, np.int64) for part in parts]),
        len(store.dev.lines),
    )


def write(found: Codes, out: Path) -> None:
    """Two files of packed codes and one of everything else."""
    num_books = found.codes.shape[1]
    middle = num_books // 2
    out.mkdir(parents=True, exist_ok=True)
    for name, books in (("codes_a", found.codes[:, :middle]), ("codes_b", found.codes[:, middle:])):
        pieces = [pack(books[i : i + 80_000]) for i in range(0, len(books), 80_000)]
        np.save(out / f"{name}.npy", np.concatenate(pieces))
    np.savez_compressed(
        out / "utterances.npz",
        lines=found.lines,
        frames=found.frames.astype(np.int16),
        labels=found.labels,
        num_dev=found.num_dev,
        num_books=num_books,
    )


def read(folder: Path) -> Codes:
    with np.load(folder / "utterances.npz") as data:
        lines, frames, labels = data["lines"], data["frames"].astype(np.int64), data["labels"]
        num_dev, num_books = int(data["num_dev"]), int(data["num_books"])
    total, middle = int(frames.sum()), num_books // 2
    first = unpack(np.load(folder / "codes_a.npy"), total * middle)
    second = unpack(np.load(folder / "codes_b.npy"), total * (num_books - middle))
    codes = np.concatenate((first.reshape(total, -1), second.reshape(total, -1)), axis=1)
    found = Codes(codes, labels, lines, frames, num_dev)
    return with_leads(found, np.load(path)) if (path := folder / LEADS).exists() else found


def with_leads(found: Codes, codes: np.ndarray) -> Codes:
    """Add leads with `codes` [leads, frames, books]. The label of a silent frame is 0."""
    count, size, num_books = codes.shape
    return replace(
        found,
        codes=np.concatenate((found.codes, codes.reshape(-1, num_books))),
        labels=np.concatenate((found.labels, np.zeros(2 * count * size, np.uint8))),
        leads=len(found.codes) + np.arange(count * size).reshape(count, size),
    )
