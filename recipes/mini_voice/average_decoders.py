"""The mean of the decoders of several folders: `average_decoders FOLDER ... --out FOLDER`.

Decoders that went on from one another against the same codes sound alike, and each has roughness of
its own: their mean is smoother than any of them.
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
BOOKS = "_codebook."  # in the name of a table of codes
ROUNDING = 2e-3  # of 16 bits, against the largest number of a table


def average(decoders: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    first, *others = decoders
    for other in others:
        if other.keys() != first.keys():
            raise SystemExit("the decoders are of different models")
        for name in (name for name in first if BOOKS in name):
            if not _is_same(first[name], other[name]):
                raise SystemExit(f"the decoders are of different codes: {name} is not the same")
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
