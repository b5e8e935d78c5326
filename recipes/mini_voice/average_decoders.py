"""Average the decoders of several folders: `average_decoders FOLDER ... --out FOLDER`.

The decoders must come from successive runs on the same codes. Their mean has less training noise
than each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from recipes.mini_voice.common import save_half
from recipes.mini_voice.settings import parser

NAME = "decoder.safetensors"
BOOKS = "_codebook."  # part of the names of codebook tensors
ROUNDING = 2e-3  # of 16-bit weights, relative to the largest value of a tensor


def average(decoders: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    first, *others = decoders
    for other in others:
        if other.keys() != first.keys():
            raise SystemExit("the decoders belong to different models")
        for name in (name for name in first if BOOKS in name):
            if not _is_same(first[name], other[name]):
                raise SystemExit(f"the decoders belong to different codes: {name} differs")
    return {
        name: torch.stack([decoder[name].float() for decoder in decoders]).mean(0) for name in first
    }


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    distance = (one.float() - other.float()).abs().max()
    return bool(distance <= ROUNDING * one.float().abs().max())


def main() -> None:
    options = parser(__doc__)
    options.add_argument("folders", nargs="+", type=Path)
    args = options.parse_args()
    found = average([load_file(folder / NAME) for folder in args.folders])
    save_half(args.out / NAME, found)


if __name__ == "__main__":
    main()
