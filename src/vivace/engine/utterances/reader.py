"""The reader's half of an utterance: sends requests to the engine and takes frames.

The engine's half is `vivace.engine.utterances.utterance.Utterance`. The reader reads the fields
that the engine publishes there and writes none of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from vivace.engine.utterances.client import EngineClient
from vivace.engine.utterances.frame_block import NO_FRAMES, FrameBlock, join_blocks, take_first
from vivace.engine.utterances.utterance import Utterance


class UtteranceReader:
    """Written by the reader's thread only. `cancel` may be called from anywhere."""

    def __init__(self, engine: EngineClient, utterance: Utterance) -> None:
        self._engine, self.utterance = engine, utterance
        self.num_read = 0  # frames
        self._num_wanted = 0  # frames of the last request
        self._num_texts = 0  # parts of a live text that were sent
        self._is_end_read = False
        self._unread: deque[FrameBlock] = deque()  # taken from the engine; may be dropped

    @property
    def is_ready(self) -> bool:
        """Whether the requested frames can be taken, or will not come."""
        utterance = self.utterance
        num_there = utterance.num_final - self.num_read
        return num_there >= self._num_wanted or utterance.is_over or self.needs_text

    @property
    def needs_text(self) -> bool:
        """Whether the utterance makes no more frames before the next part of its live text."""
        utterance = self.utterance
        return utterance.needs_text and utterance.num_texts == self._num_texts

    @property
    def has_frames(self) -> bool:
        """Whether the reader can take frames, or the end."""
        utterance = self.utterance
        has_end = utterance.finish_reason is not None and not self._is_end_read
        return has_end or utterance.num_final > self.num_read

    def submit(self) -> None:
        """Queue the utterance. Raises QueueFullError."""
        self._engine.submit(self.utterance)

    def request(self, num_frames: int) -> None:
        """Ask for frames. The engine wakes the reader unless `is_ready` is already true."""
        self._num_wanted = num_frames
        num_wanted = 0 if self.is_ready else num_frames
        self._engine.request(self.utterance, self.num_read, num_wanted)

    def extend(self, text_ids: Sequence[int], is_last: bool) -> None:
        """Send the next part of a live text."""
        self._num_texts += 1
        self._engine.extend(self.utterance, text_ids, is_last)

    def cancel(self) -> None:
        self._engine.cancel(self.utterance)

    def take(self, num_frames: int) -> FrameBlock:
        """Up to `num_frames` final frames, and the end if it follows.

        Raises the utterance's error if there are none.
        """
        utterance = self.utterance
        num_left = utterance.num_final - self.num_read  # before the published blocks are taken
        published = utterance.published
        while published:
            if isinstance(block := published.popleft(), FrameBlock):
                self._unread.append(block)
            else:  # the number of the first dropped frame
                self._unread = deque(take_first(self._unread, block - self.num_read))
        if utterance.error is not None and not num_left and utterance.finish_reason is None:
            raise utterance.error
        num_taken = min(num_frames, num_left)
        taken = take_first(self._unread, num_taken) or [NO_FRAMES]
        self.num_read += num_taken
        self._is_end_read = taken[-1].finish_reason is not None
        return join_blocks(taken)
