"""Word timings of a stream: follows its utterances and places their words in time.

The passes over the model run on the engine's thread, between two turns. A stream waits for them as
for frames, except for the first block of an utterance, so that first audio is not delayed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivace.engine.utterances.frame_block import NO_FRAMES, FrameBlock, join_blocks
from vivace.engine.utterances.utterance import Utterance
from vivace.prompt import Prompt
from vivace.script.script import Line
from vivace.speech import Word
from vivace.text.tokenizer import TextTokenizer
from vivace.text.written_words import WrittenWords
from vivace.timing.words import IdSpan, Samples, WordSpan, find_spans

Found = Sequence[WordSpan] | None
"""Words that have ended. None: the checkpoint's attention gives no timings."""


@dataclass(frozen=True, slots=True, eq=False)
class TimedFrames:
    """The input of one pass: new frames, and the text that was known when they were read."""

    codes: NDArray[np.int64]  # [frames, codebooks]
    samples: Samples
    spans: Sequence[IdSpan]  # of all words so far
    num_ids: int
    new_ids: Sequence[int]  # of a live text, appended since the last pass
    is_text_complete: bool  # the end of a live text is among `new_ids`
    is_last: bool


class AttentionPass(ABC):
    """Reads the words of one utterance from the attention of the model."""

    @abstractmethod
    def read(
        self, frames: TimedFrames, done: Callable[[Found], None], wake: Callable[[], None]
    ) -> None:
        """Start a pass. Calls `done`, then `wake`, from another thread."""


OpenPass = Callable[[Prompt], AttentionPass]


class StreamTimings:
    """The word timings of one text, which may be several utterances."""

    def __init__(self, open_pass: OpenPass, tokenizer: TextTokenizer) -> None:
        self.open_pass, self.tokenizer = open_pass, tokenizer
        self.words = WrittenWords()  # of the caller's text
        self._last = -1  # the number of the last word returned

    def place(self, found: Found, second_of: Callable[[float], float]) -> tuple[Word, ...] | None:
        """Words of the caller's text. `second_of` is the time of a frame of the utterance."""
        if found is None:
            return None
        words = []
        for one in found:
            if one.word <= self._last:  # its first part is in the previous utterance
                continue
            self._last, written = one.word, self.words[one.word]
            words.append(
                Word(
                    text=written.text,
                    start_s=second_of(one.start),
                    end_s=second_of(one.end),
                    start_char=written.start,
                    end_char=written.end,
                )
            )
        return tuple(words)


class UtteranceTimings:
    """The reader's half of the timings of one utterance: text, held frames and finished words."""

    def __init__(self, stream: StreamTimings, utterance: Utterance, line: Line) -> None:
        self._stream, self._utterance, self._line = stream, utterance, line
        self._pass = stream.open_pass(utterance.prompt)
        self._num_ids = utterance.num_text_ids
        self._new_ids: list[int] = []
        self._is_text_complete = False
        self._num_chars = 0  # of the line, read so far
        self._spans: list[IdSpan] = []
        self._held = [NO_FRAMES]
        self._found: list[WordSpan] = []
        self._has_begun = False
        self._has_words = True
        self.is_ready = True

    def extend(self, text_ids: Sequence[int], *, is_last: bool) -> None:
        """Append ids of a live text."""
        self._new_ids += text_ids
        self._is_text_complete |= is_last
        self._num_ids += len(text_ids)

    def follow(self, block: FrameBlock) -> None:
        """Time the words of the next frames. The caller waits for `is_ready`."""
        self._held.append(block)
        is_last = block.finish_reason is not None
        if not self._has_begun and not is_last:
            self._has_begun = True
            return
        held, self._held, self._has_begun = join_blocks(self._held[1:]), [NO_FRAMES], True
        self._read_line()
        new_ids, self._new_ids = self._new_ids, []
        is_complete, self._is_text_complete = self._is_text_complete, False
        frames = TimedFrames(
            held.codes, held.samples, self._spans, self._num_ids, new_ids, is_complete, is_last
        )
        self.is_ready = False
        self._pass.read(frames, self._finish, self._utterance.wake)

    def take(self) -> Found:
        """Return the finished words; None if the checkpoint's attention gives no timings."""
        found, self._found = self._found, []
        return found if self._has_words else None

    def _finish(self, found: Found) -> None:
        """Called from another thread, while the reader waits for `is_ready`."""
        if found is None:
            self._has_words = False
        else:
            self._found += found
        self.is_ready = True

    def _read_line(self) -> None:
        text = self._line.text
        if self._num_chars < len(text):
            self._num_chars = len(text)
            ids = self._stream.tokenizer.spans(text)
            self._spans = find_spans(text, self._stream.words.numbers(text), ids)
