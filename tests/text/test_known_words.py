"""Tests of the word cache of the tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from vivace.checkpoint import EMBEDDED
from vivace.text import tokenizer as tokenizer_module
from vivace.text.tokenizer import KnownWords, TextTokenizer

ASCII = st.text(st.characters(max_codepoint=127), max_size=40)
# Many boundaries of the pattern: contractions, single digits, spaces and line ends.
TRICKY = st.text(st.sampled_from(" \n\r\t'sStTmMdDrReEvVlL12aZ,.!\x0b\x1c\x7f"), max_size=40)


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.from_folder(EMBEDDED)


def plain_ids(tokenizer: TextTokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer._bpe.encode(text, add_special_tokens=False).ids
    return ids


@examples(1_000)
@given(texts=st.lists(ASCII | TRICKY, max_size=4))
def test_cached_words_get_their_ids_in_any_text(tokenizer: TextTokenizer, texts: list[str]) -> None:
    for text in (*texts, "".join(texts), " ".join(texts)):
        assert tokenizer.encode(text) == plain_ids(tokenizer, text)
        assert tokenizer.encode(text) == plain_ids(tokenizer, text)  # from the cache


def test_text_is_cached_when_all_its_words_are(tokenizer: TextTokenizer) -> None:
    words = KnownWords()
    assert words.encode("It's nine.") is None
    encoding = tokenizer._bpe.encode("It's nine. It's late.", add_special_tokens=False)
    words.learn("It's nine. It's late.", encoding.ids, encoding.word_ids)
    assert words.encode("It's late.") == plain_ids(tokenizer, "It's late.")
    assert words.encode("It's ten.") is None
    assert words.encode("It\u2019s late.") is None


def test_cache_holds_at_most_max_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "MAX_KNOWN_WORDS", 8)
    words = KnownWords()
    for number in range(20):
        words.learn("a" * (number + 1), [number], [0])
        assert len(words) <= 8
    words.learn("1" * 100, range(100), range(100))
    assert len(words) <= 8
    words.learn("b" * (tokenizer_module.MAX_KNOWN_CHARS + 1), [1], [0])
    assert words.encode("b" * (tokenizer_module.MAX_KNOWN_CHARS + 1)) is None
