"""Takes the end of a reference off the start of the speech that goes on from it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vivace.engine.piece import Piece, join
from vivace.voices.reference_leak import leaked_frames, may_leak


def drop_leak(pieces: Iterator[Piece], ref_codes: NDArray[np.int64]) -> Iterator[Piece]:
    """The pieces without leaked frames; the first are held as long as they may be some.

    Where nothing leaks that is two frames, because two that differ settle it.
    """
    held: list[Piece] = []
    for piece in pieces:
        held.append(piece)
        codes = np.concatenate([one.codes for one in held])
        if piece.finish_reason is not None or not may_leak(ref_codes, codes):
            yield join(held).without(leaked_frames(ref_codes, codes))
            break
    yield from pieces
