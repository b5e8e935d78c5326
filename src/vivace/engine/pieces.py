"""The pieces of one utterance in steps: frames as they are made, live text as it is needed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from vivace.engine.engine import Engine
from vivace.engine.timings import UtteranceTimings
from vivace.engine.utterance import Piece, Utterance, join
from vivace.script.script import Line
from vivace.voices.reference_leak import leaked_frames, may_leak


class Wait(Enum):
    """What a stream needs before its next step."""

    FRAMES = auto()  # the engine wakes its reader
    TEXT = auto()  # of the writer of a live text


Pieces = Generator[Piece | Wait, None, None]


def read_pieces(
    engine: Engine,
    utterance: Utterance,
    line: Line,
    sizes: Iterator[int],  # frames of each piece
    timings: UtteranceTimings | None,
    is_cancelled: Callable[[], bool],
) -> Pieces:
    for num_frames in sizes:
        while True:
            engine.request(utterance, num_frames)
            while not utterance.is_ready:
                yield Wait.FRAMES
            utterance.num_wanted = 0
            if is_cancelled():
                return
            if utterance.has_frames or not utterance.needs_text:
                break
            while not line.has(1):
                yield Wait.TEXT
            ids = line.take()
            if timings is not None:
                timings.extend(ids, is_last=line.is_complete)
            engine.extend(utterance, ids, line.is_complete)
        piece = utterance.take(num_frames)
        if timings is not None:
            timings.follow(piece)
            while not timings.is_ready and not is_cancelled():
                yield Wait.FRAMES
        yield piece
        if piece.finish_reason is not None:
            return


def drop_leak(pieces: Pieces, ref_codes: NDArray[np.int64]) -> Pieces:
    """The pieces without frames of the reference; the first are held while they may be some.

    Without a leak that is two frames, because two that differ are enough to tell.
    """
    held: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Wait):
            yield piece
            continue
        held.append(piece)
        codes = np.concatenate([one.codes for one in held])
        if piece.finish_reason is not None or not may_leak(ref_codes, codes):
            yield join(held).without(leaked_frames(ref_codes, codes))
            break
    yield from pieces
