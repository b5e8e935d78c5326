"""Word timings of a stream: follows its utterances and places their words in time.

The passes over the model run on the engine's thread, between two turns. A stream waits for them as
for frames, except for the first block of an utterance, so that first audio is not delayed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from vivace.engine.engine import Engine
from vivace.engine.frame_block import NO_FRAMES, FrameBlock, join_blocks
from vivace.engine.utterance import Utterance
from vivace.script.script import Line
from vivace.speech import Word
from vivace.text.tokenizer import TextTokenizer
from vivace.text.written_words import WrittenWords
from vivace.timing.attention import TextAttention
from vivace.timing.timer import Timer
from vivace.timing.words import IdSpan, Samples, WordSpan, WordTimer, find_spans

log = logging.getLogger(__name__)


class StreamTimings:
    """The word timings of one text, which may be several utterances."""

    def __init__(self, engine: Engine, timer: Timer, tokenizer: TextTokenizer) -> None:
        self.engine, self.timer, self.tokenizer = engine, timer, tokenizer
        self.words = WrittenWords()  # of the caller's text
        self._last = -1  # the number of the last word returned

    def place(
        self, found: Sequence[WordSpan] | None, second_of: Callable[[float], float]
    ) -> tuple[Word, ...] | None:
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
    """The words of one utterance. Until a head is selected, they come at the end."""

    def __init__(self, stream: StreamTimings, utterance: Utterance, line: Line) -> None:
        self._stream, self._utterance, self._line = stream, utterance, line
        self._heads = stream.timer.heads
        self._attention = TextAttention(stream.timer.model, utterance.prompt, self._heads)
        self._words = WordTimer()
        self._kept: list[tuple[NDArray[np.float32], Samples]] = []  # until a head is selected
        self._num_ids = utterance.num_text_ids
        self._num_chars = 0  # of the line, read so far
        self._spans: list[IdSpan] = []
        self._held = [NO_FRAMES]
        self._found: list[WordSpan] = []
        self._has_begun = False
        self._has_words = True  # False: a pass failed, or no head follows the text
        self.is_ready = True

    def extend(self, text_ids: Sequence[int], *, is_last: bool) -> None:
        """Append ids of a live text."""
        self._attention.extend(text_ids, is_last=is_last)
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
        self.is_ready = False
        self._stream.engine.post(lambda: self._read(held, is_last), self._utterance.wake)

    def take(self) -> list[WordSpan] | None:
        """Return the finished words; None if the checkpoint's attention gives no timings."""
        found, self._found = self._found, []
        return found if self._has_words else None

    def _read_line(self) -> None:
        text = self._line.text
        if self._num_chars < len(text):
            self._num_chars = len(text)
            ids = self._stream.tokenizer.spans(text)
            self._spans = find_spans(text, self._stream.words.numbers(text), ids)

    def _read(self, block: FrameBlock, is_last: bool) -> None:
        """Runs on the engine's thread."""
        try:
            self._words.spans = [span for span in self._spans if span.end <= self._num_ids]
            self._found += self._time(block, is_last)
        except Exception:
            self._has_words = False
            log.warning("the word timings of an utterance failed", exc_info=True)
        self.is_ready = True

    def _time(self, block: FrameBlock, is_last: bool) -> list[WordSpan]:
        words = list[WordSpan]()
        if len(block.codes):
            weights = self._attention.read(block.codes, self._num_ids)
            if len(self._heads) == 1:
                words = self._words.feed(weights[0], block.samples)
            else:
                self._kept.append((weights, block.samples))
        if is_last and self._kept:
            words += self._select_head()
        return words + (self._words.finish() if is_last else [])

    def _select_head(self) -> list[WordSpan]:
        kept, self._kept = self._kept, []
        whole = np.concatenate([_widen(weights, self._num_ids) for weights, _ in kept], axis=1)
        best = self._stream.timer.choose(self._heads, whole)
        if best is None:
            self._has_words, self._words.spans = False, ()
            return []
        return self._words.feed(whole[best], np.concatenate([samples for _, samples in kept]))


def _widen(weights: NDArray[np.float32], num_ids: int) -> NDArray[np.float32]:
    return np.pad(weights, ((0, 0), (0, 0), (0, num_ids - weights.shape[2])))
