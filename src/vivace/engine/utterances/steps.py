"""Reads one utterance in steps: frames as they are made, live text as it is needed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from vivace.engine.utterances.frame_block import FrameBlock, join_blocks
from vivace.engine.utterances.reader import UtteranceReader
from vivace.engine.utterances.timings import UtteranceTimings
from vivace.script.script import Line
from vivace.voices.reference_leak import leaked_frames, may_leak


class Wait(Enum):
    """The event that a stream needs before its next step."""

    FRAMES = auto()  # the engine wakes the reader
    TEXT = auto()  # the next part of a live text


BlockSteps = Generator[FrameBlock | Wait, None, None]


def read_blocks(
    reader: UtteranceReader,
    line: Line,
    sizes: Iterator[int],  # frames of each block
    timings: UtteranceTimings | None,
    is_cancelled: Callable[[], bool],
) -> BlockSteps:
    for num_frames in sizes:
        while True:
            reader.request(num_frames)
            while not reader.is_ready:
                yield Wait.FRAMES
            if is_cancelled():
                return
            if reader.has_frames or not reader.needs_text:
                break
            while not line.has(1):
                yield Wait.TEXT
            ids = line.take()
            if timings is not None:
                timings.extend(ids, is_last=line.is_complete)
            reader.extend(ids, line.is_complete)
        block = reader.take(num_frames)
        if timings is not None:
            timings.follow(block)
            while not timings.is_ready and not is_cancelled():
                yield Wait.FRAMES
        yield block
        if block.finish_reason is not None:
            return


def drop_leak(steps: BlockSteps, ref_codes: NDArray[np.int64]) -> BlockSteps:
    """Remove frames of the voice's reference from the start.

    The first blocks are held while they may repeat the reference. Without a leak that is two
    frames, because two frames that differ from the reference are enough to decide.
    """
    held: list[FrameBlock] = []
    for block in steps:
        if isinstance(block, Wait):
            yield block
            continue
        held.append(block)
        codes = np.concatenate([one.codes for one in held])
        if block.finish_reason is not None or not may_leak(ref_codes, codes):
            yield join_blocks(held).without(leaked_frames(ref_codes, codes))
            break
    yield from steps
