"""Divide the last codebook between the speakers before a second one is trained (CPU, one minute).

The first speaker keeps the half of the codes whose loss would cost most. The other speakers share
the rest, shifted by an offset per speaker that the decoder can recognise. The first speaker's codes
of the last codebook change to the nearest kept code. Reads encoder, decoder, codes and leads from
`--resume` and writes them to `--out`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recipes.mini_voice import encode, train_codec
from recipes.mini_voice.codec_model import Codebooks
from recipes.mini_voice.more_codes import join
from recipes.mini_voice.settings import load_settings, parser

MARK = 1.0  # length of the offset relative to the RMS of the acoustic vectors


def divide(vectors: Tensor, counts: Tensor, num_speakers: int) -> Tensor:
    """The owner of each code [size]. Half stay with the first speaker, with the least loss.

    Codes are removed one by one: always the code whose frames lose least with the next nearest.
    """
    distances = torch.cdist(vectors, vectors).square().fill_diagonal_(torch.inf)
    size = len(vectors)
    owner, load = torch.zeros(size, dtype=torch.int64), counts.double() + 1e-3
    for given in range(size // 2):
        kept = owner == 0
        nearest = distances.masked_fill(~kept[None], torch.inf).min(1)
        cost = (nearest.values * load).masked_fill(~kept, torch.inf)
        gone = int(cost.argmin())
        owner[gone] = 1 + given % (num_speakers - 1)
        load[nearest.indices[gone]] += load[gone]
    return owner


def moves(vectors: Tensor, owner: Tensor) -> Tensor:
    """The replacement code of the first speaker for each code [size]."""
    distances = torch.cdist(vectors, vectors).masked_fill((owner != 0)[None], torch.inf)
    return distances.argmin(1)


def set_marks(books: Codebooks, owner: Tensor, level: float) -> None:
    """Shift the codes of the other speakers by offsets of length `level`."""
    drawn = torch.randn(books.marks.shape, generator=torch.Generator().manual_seed(3))
    marks = level * drawn / drawn.norm(dim=-1, keepdim=True)
    marks[0] = 0
    books.owner.copy_(owner)
    books.marks.copy_(marks)
    books.vectors[-1] += marks[owner]


def level_of(books: Codebooks, codes: np.ndarray) -> float:
    """The root mean square length of the sum of the acoustic books' vectors."""
    chosen = torch.from_numpy(codes[:: max(1, len(codes) // 50_000), 1:]).long()
    vectors = [books.vectors[1 + i][chosen[:, i]] for i in range(chosen.shape[1])]
    total = torch.stack(vectors).sum(0)
    return float(total.square().sum(-1).mean().sqrt())


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(resume=Path("build/checkpoints"))
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set)
    trainer = train_codec.build(settings).cpu()
    train_codec.restore(trainer, args.resume)
    books, known = trainer.books, encode.read(args.resume)
    if len(settings.data.speakers) < 2 or books.owner.any():
        raise SystemExit("data.speakers names one speaker alone, or the last book is divided")
    last, spoken = books.vectors[-1].clone(), known.codes[: known.frames.sum()]  # no leads
    counts = torch.from_numpy(np.bincount(spoken[:, -1], minlength=len(last)))
    owner = divide(last, counts, len(settings.data.speakers))
    table = moves(last, owner)
    error = (counts * (last - last[table]).square().sum(-1)).sum() / counts.sum()
    level = level_of(books, spoken)
    set_marks(books, owner, MARK * level)
    known.codes[:, -1] = table.numpy()[known.codes[:, -1]]
    train_codec.save(trainer, args.out)
    encode.write(join([known]), args.out)
    if len(known.leads):
        np.save(args.out / encode.LEADS, known.codes[known.leads])
    print(f"lost by the first speaker: {float(error) / level**2:.4%} of the vectors' energy")


if __name__ == "__main__":
    main()
