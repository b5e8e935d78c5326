"""Reads attention on the engine's thread: word timings, and the search of the head to watch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import ReadsAttention
from vivace.engine.engine import Engine
from vivace.engine.utterances.timings import AttentionPass, Found, OpenPass, TimedFrames
from vivace.prompt import Prompt
from vivace.timing.head_selector import MIN_IDS, HeadSelector
from vivace.timing.words import Samples, WordSpan, WordTimer

log = logging.getLogger(__name__)

MAX_TRIES = 3  # utterances whose attention is computed for all heads


class LocalPass(AttentionPass):
    """A pass on the thread of an engine in this process."""

    def __init__(self, engine: Engine, selector: HeadSelector, prompt: Prompt) -> None:
        self._engine = engine
        self._words = UtteranceWords(selector, prompt)

    def read(
        self, frames: TimedFrames, done: Callable[[Found], None], wake: Callable[[], None]
    ) -> None:
        self._engine.post(lambda: done(self._words.read(frames)), wake)


class UtteranceWords:
    """The words of one utterance. Until a head is selected, they come at the end.

    The engine's thread calls `read`.
    """

    def __init__(self, selector: HeadSelector, prompt: Prompt) -> None:
        self._selector, self._heads = selector, selector.heads
        self._attention = selector.attention(prompt, self._heads)
        self._words = WordTimer()
        self._kept: list[tuple[NDArray[np.float32], Samples]] = []  # until a head is selected
        self._has_words = True  # False: a pass failed, or no head follows the text

    def read(self, frames: TimedFrames) -> Found:
        try:
            if frames.new_ids or frames.is_text_complete:
                self._attention.extend(frames.new_ids, is_last=frames.is_text_complete)
            self._words.spans = [span for span in frames.spans if span.end <= frames.num_ids]
            found = self._time(frames)
            return found if self._has_words else None
        except Exception:
            self._has_words = False
            log.warning("the word timings of an utterance failed", exc_info=True)
            return None

    def _time(self, frames: TimedFrames) -> list[WordSpan]:
        words = list[WordSpan]()
        if len(frames.codes):
            weights = self._attention.read(frames.codes, frames.num_ids)
            if len(self._heads) == 1:
                words = self._words.feed(weights[0], frames.samples)
            else:
                self._kept.append((weights, frames.samples))
        if frames.is_last and self._kept:
            words += self._select_head(frames.num_ids)
        return words + (self._words.finish() if frames.is_last else [])

    def _select_head(self, num_ids: int) -> list[WordSpan]:
        kept, self._kept = self._kept, []
        whole = np.concatenate([_widen(weights, num_ids) for weights, _ in kept], axis=1)
        best = self._selector.choose(self._heads, whole)
        if best is None:
            self._has_words, self._words.spans = False, ()
            return []
        return self._words.feed(whole[best], np.concatenate([samples for _, samples in kept]))


def _widen(weights: NDArray[np.float32], num_ids: int) -> NDArray[np.float32]:
    return np.pad(weights, ((0, 0), (0, 0), (0, num_ids - weights.shape[2])))


class HeadFinder:
    """Searches the attention head to watch in a checkpoint whose config names none.

    Computes the attention of all heads for the first utterances, on the engine's thread. Later
    utterances are checked for missing words.
    """

    def __init__(self, engine: Engine, selector: HeadSelector) -> None:
        self._engine, self._selector = engine, selector
        self._num_tries = 0

    def offer(self, prompt: Prompt, num_ids: int, codes: NDArray[np.int64]) -> None:
        """Use an utterance that was spoken to its end, unless its text was live."""
        is_over = self._engine.follows_text or self._num_tries >= MAX_TRIES
        if is_over or num_ids < MIN_IDS or not prompt.is_complete or not len(codes):
            return
        self._num_tries += 1
        self._engine.post(lambda: self._read(prompt, num_ids, codes), lambda: None)

    def _read(self, prompt: Prompt, num_ids: int, codes: NDArray[np.int64]) -> None:
        if self._engine.follows_text:
            return
        backend = self._engine.backend
        reader = backend if isinstance(backend, ReadsAttention) else None
        read = self._selector.read_all if reader is None else reader.read_attention
        try:
            self._selector.find_head(read(prompt, codes, num_ids))
        except Exception:
            log.warning("reading the attention heads failed", exc_info=True)
            self._num_tries = MAX_TRIES


class Attention(NamedTuple):
    selector: HeadSelector
    finder: HeadFinder
    open_pass: OpenPass
