"""Consecutive frames of an utterance with their samples, as the engine publishes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import Samples
from vivace.speech import FinishReason

T = TypeVar("T", bound=np.generic)


class FrameBlock(NamedTuple):
    """Consecutive frames. Only the last block of an utterance may be empty.

    A tuple, because the engine makes one for every stream of a turn.
    """

    codes: NDArray[np.int64]  # [frames, codebooks]
    samples: Samples
    finish_reason: FinishReason | None = None  # set on the last block
    num_stalled: int = 0  # silent or repeated frames at the end of a stall

    @property
    def _frame_size(self) -> int:
        return len(self.samples) // len(self.codes)

    def first(self, num_frames: int) -> FrameBlock:
        """The first `num_frames` frames, without the end."""
        return FrameBlock(self.codes[:num_frames], self.samples[: num_frames * self._frame_size])

    def without(self, num_frames: int) -> FrameBlock:
        """The block without its first `num_frames` frames."""
        if not num_frames:
            return self
        samples = self.samples[num_frames * self._frame_size :]
        return self._replace(codes=self.codes[num_frames:], samples=samples)


NO_FRAMES = FrameBlock(np.empty((0, 0), np.int64), np.empty(0, np.float32))


def take_first(blocks: deque[FrameBlock], num_frames: int) -> list[FrameBlock]:
    """Remove and return the first `num_frames` frames, and empty blocks directly after them."""
    taken: list[FrameBlock] = []
    while blocks:
        block = blocks[0]
        if len(block.codes) > num_frames:
            if num_frames:
                taken.append(block.first(num_frames))
                blocks[0] = block.without(num_frames)
            break
        taken.append(blocks.popleft())
        num_frames -= len(block.codes)
    return taken


def join_blocks(blocks: Sequence[FrameBlock]) -> FrameBlock:
    """Copy consecutive blocks into one. The given blocks may be views of a whole batch."""
    last = blocks[-1]
    num_frames = sum([len(block.codes) for block in blocks])
    codes = _copy([block.codes for block in blocks])
    samples = _copy([block.samples for block in blocks])
    shape = num_frames, last.codes.shape[1]
    return FrameBlock(codes.reshape(shape), samples, last.finish_reason, last.num_stalled)


def _copy(arrays: Sequence[NDArray[T]]) -> NDArray[T]:
    """Concatenate flat copies. `np.concatenate` would release the GIL and wait to get it back."""
    data = bytearray().join([np.ascontiguousarray(array).data for array in arrays])
    return np.frombuffer(data, arrays[0].dtype)
