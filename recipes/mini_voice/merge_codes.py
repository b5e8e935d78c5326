"""Merge folders of codes, every utterance once: `merge_codes FOLDER ... --out FOLDER`.

The held-out utterances and the leads come from the first folder.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from recipes.mini_voice import encode
from recipes.mini_voice.encode import Codes
from recipes.mini_voice.more_codes import join
from recipes.mini_voice.settings import parser


def without(codes: Codes, known: set[int]) -> Codes:
    """The utterances of `codes` whose lines are not in `known`."""
    is_new = np.asarray([line not in known for line in codes.lines.tolist()], bool)
    size = int(codes.frames.sum())
    kept = np.repeat(is_new, codes.frames)
    return replace(
        codes,
        codes=codes.codes[:size][kept],
        labels=codes.labels[: 2 * size][np.repeat(kept, 2)],
        lines=codes.lines[is_new],
        frames=codes.frames[is_new],
        num_dev=0,
        leads=codes.leads[:0],
    )


def merge(parts: list[Codes]) -> Codes:
    found = parts[0]
    for part in parts[1:]:
        found = join([found, without(part, set(found.lines.tolist()))])
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("folders", nargs="+", type=Path)
    args = options.parse_args()
    found = merge([encode.read(folder) for folder in args.folders])
    encode.write(found, args.out)
    if (leads := args.folders[0] / encode.LEADS).exists():
        shutil.copy(leads, args.out)
    print(f"{len(found.lines)} utterances, {found.num_dev} of them held out")


if __name__ == "__main__":
    main()
