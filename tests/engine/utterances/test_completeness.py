"""Missing words of a text, and the classification of text ids as words or punctuation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from tests.support.scripted_backend import script
from vivace.checkpoint import Checkpoint
from vivace.engine.checkpoints.attention import MAX_TRIES, HeadFinder
from vivace.engine.engine import Engine
from vivace.engine.utterances.completeness import IdMarker, SpokenWords
from vivace.engine.utterances.follower import TextFollower
from vivace.text.tokenizer import TextTokenizer
from vivace.timing.head_selector import MIN_IDS, HeadSelector

TEXT = "Don't stop, old friend: 42 herons!"
WORDS = ["Don't", "stop,", "old", "friend:", "42", "herons!"]


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> TextTokenizer:
    return Checkpoint.open(tiny_folder / "base").load_tokenizer()


def follow(tokenizer: TextTokenizer, text: str, num_ids: int | None = None) -> TextFollower:
    """A follower that reached the first ids, or all ids."""
    ids = tokenizer.encode(text)
    follower = TextFollower(IdMarker(tokenizer).mark(ids))
    reached = range(len(ids) if num_ids is None else num_ids)
    assert follower.observe(iter([(place, 1.0) for place in reached for _ in range(2)])) is None
    return follower


def report(tokenizer: TextTokenizer, text: str, follower: TextFollower | None) -> SpokenWords:
    words = SpokenWords(tokenizer)
    words.add(text, follower)
    return words


def test_marker_distinguishes_words_from_punctuation(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    parts = [TEXT[first:end] for first, end in tokenizer.spans(TEXT)]
    begun = []
    for mark, part in zip(IdMarker(tokenizer).mark(ids), parts, strict=True):
        assert mark.is_word == any(map(str.isalnum, part))
        begun += [part] if mark.begins_word else []
    assert len(begun) >= len(WORDS)
    assert all(any(map(str.isalnum, part)) for part in begun)


def test_every_word_reached_is_complete(tokenizer: TextTokenizer) -> None:
    words = report(tokenizer, TEXT, follow(tokenizer, TEXT))
    assert (words.completeness, words.missing, words.num_words) == (1.0, (), len(WORDS))


@pytest.mark.parametrize("num_words", [1, 2, 3, 5])
def test_words_behind_the_last_reached_id_are_missing(
    tokenizer: TextTokenizer, num_words: int
) -> None:
    end = len(" ".join(WORDS[:num_words]))
    num_ids = sum(last <= end for _, last in tokenizer.spans(TEXT))
    words = report(tokenizer, TEXT, follow(tokenizer, TEXT, num_ids))
    assert list(words.missing) == WORDS[num_words:]
    assert words.completeness == pytest.approx(num_words / len(WORDS))


def test_accepted_early_end_counts_each_word_once(tokenizer: TextTokenizer) -> None:
    follower = follow(tokenizer, TEXT, 2)
    fault = follower.end()
    assert fault is not None
    follower.accept(fault)
    words = report(tokenizer, TEXT, follower)
    assert len(words.missing) == len(set(words.missing))
    assert words.missing[-1] == "herons!"


def test_doubtful_words_lower_completeness_and_are_not_missing(tokenizer: TextTokenizer) -> None:
    follower = follow(tokenizer, TEXT)
    follower.doubtful.add(0)
    words = report(tokenizer, TEXT, follower)
    assert words.missing == ()
    assert words.completeness == pytest.approx(1 - 1 / len(WORDS))


def test_several_utterances_add_up_in_order(tokenizer: TextTokenizer) -> None:
    words = SpokenWords(tokenizer)
    for text, num_ids in (("One two.", None), ("Three four.", 1), ("Five.", None)):
        words.add(text, follow(tokenizer, text, num_ids))
    assert words.num_words == 5
    assert words.missing[-1] == "four."
    assert words.completeness is not None
    assert words.completeness < 1


def test_completeness_is_unknown_where_one_utterance_was_not_followed(
    tokenizer: TextTokenizer,
) -> None:
    words = report(tokenizer, TEXT, follow(tokenizer, TEXT))
    words.add("More words.", None)
    assert words.completeness is None
    assert report(tokenizer, TEXT, TextFollower([])).completeness is None


def test_chinese_text_counts_characters(tokenizer: TextTokenizer) -> None:
    words = report(tokenizer, "你好，世界。", follow(tokenizer, "你好，世界。"))
    assert (words.num_words, words.completeness) == (4, 1.0)


# -- the search for a head -----------------------------------------------------------------------


class CountingEngine:
    """Counts the utterances whose attention would be read. No head is found in them."""

    follows_text = False
    num_posted = 0

    def post(self, work: Callable[[], None], abort: Callable[[], None]) -> None:
        self.num_posted += 1


def num_read(num_ids: int, num_utterances: int) -> int:
    """Offer utterances of `num_ids` text ids. Returns how many of them are read."""
    engine = CountingEngine()
    finder = HeadFinder(cast(Engine, engine), cast(HeadSelector, None))
    for _ in range(num_utterances):
        finder.offer(script(1), num_ids, np.zeros((9, 4), np.int64))
    return engine.num_posted


def test_head_is_searched_in_few_utterances_of_enough_text() -> None:
    assert num_read(MIN_IDS - 1, 9) == 0
    assert num_read(MIN_IDS, 1) == 1
    assert num_read(MIN_IDS, MAX_TRIES + 5) == MAX_TRIES
