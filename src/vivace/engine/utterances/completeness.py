"""The check that every word is spoken: marks of text ids, and missing words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from vivace.engine.utterances.follower import TextId, WordCheck
from vivace.prompt import Prompt
from vivace.text.tokenizer import TextTokenizer
from vivace.text.written_words import find_words

WORD_START = TextId(is_word=True, begins_word=True)
WORD_PART = TextId(is_word=True, begins_word=False)
PUNCTUATION = TextId(is_word=False, begins_word=False)

OfferUtterance = Callable[[Prompt, int, NDArray[np.int64]], None]
"""Called with the prompt, the number of text ids and the codes of an utterance."""


class IdMarker:
    """Distinguishes words from punctuation in text ids; threads may share it."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[TextId, TextId]] = {}  # after no word, and after a word

    def mark(self, ids: Sequence[int]) -> Iterator[TextId]:
        is_inside = False
        for token_id in ids:
            found = (self._known.get(token_id) or self._look_up(token_id))[is_inside]
            yield found
            is_inside = found.is_word

    def _look_up(self, token_id: int) -> tuple[TextId, TextId]:
        if not self._tokenizer.has_letters(token_id):
            known = PUNCTUATION, PUNCTUATION
        elif self._tokenizer.decode([token_id])[:1].isspace():
            known = WORD_START, WORD_START
        else:
            known = WORD_START, WORD_PART
        self._known[token_id] = known
        return known


class SpokenWords:
    """Counts the words of a text, and those that are missing, repeated or stalled."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self.num_words = self._num_wrong = 0
        self._missing: list[str] = []
        self._is_known = True

    @property
    def completeness(self) -> float | None:
        """Share of words with a plausible duration; None if the attention does not show it."""
        if not self._is_known or not self.num_words:
            return None
        return 1.0 - self._num_wrong / self.num_words

    @property
    def missing(self) -> tuple[str, ...]:
        """Words that were not spoken, in order."""
        return tuple(self._missing)

    def add(self, text: str, follower: WordCheck | None) -> None:
        """Add the words of an utterance that has ended."""
        if follower is None or not follower.is_useful:
            self._is_known = False
            return
        words = find_words(text)
        self.num_words += len(words)
        lost = follower.lost | set(follower.unreached)  # a limit or a stall may end it
        if wrong := lost | follower.doubtful:
            spans = self._tokenizer.spans(text)
            if lost:
                self._missing += self._touched(text, words, spans, lost)
            self._num_wrong += len(self._touched(text, words, spans, wrong))

    @staticmethod
    def _touched(
        text: str,
        words: Sequence[tuple[int, int]],
        spans: Sequence[tuple[int, int]],
        ids: set[int],
    ) -> list[str]:
        """The words that have a letter or a digit of these ids."""
        places = {place for i in ids if i < len(spans) for place in range(*spans[i])}
        return [
            text[first:end]
            for first, end in words
            if any(place in places and text[place].isalnum() for place in range(first, end))
        ]
