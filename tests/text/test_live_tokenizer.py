"""Tests of the live tokenizer: any pieces give the ids of the whole text."""

from __future__ import annotations

import random
import sys
import time
import unicodedata
from collections.abc import Iterable
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.real_vocabulary import symbols
from tests.text.test_tokenizer import SENTENCES
from vivace.text.live_tokenizer import LiveTokenizer
from vivace.text.tokenizer import TextTokenizer

# Characters that join their neighbours in a pattern or in normalization.
JOINTS = [
    *("'s", "'", "'LL", "'re", "’t", " ", "  ", "\n", "\r\n", " \n ", "\t", "\u3000", "\xa0", "/"),
    *(
        "a",
        "B",
        "Zoë",
        "iPhone",
        "漢",
        "ㅎ",
        "ᄒ",
        "ᅡ",
        "ᆫ",
        "한",
        "ª",
        "ʰ",
        "ǅ",
        "\u0958",
        "\ufb2a",
        "\u2adc",
    ),
    *("\u0301", "\u0323", "\u0338", "\u3099", "\u20e3", "\ufe0f", "\u200d", "\u0f73", "\U00016d63"),
    *("=", "<", "(", "((", "!", "...", "…", "。", "—", "🙂", "👍🏽", "9", "½", "٣", "\x00", "\x85"),
    *("\u1680", "\u2000", "\u2028", "\x1c", "\u037e", "\u212b", "\u0344", "\U00016d67", "\ufeff"),
]
PIECES = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(JOINTS)
TEXTS = st.lists(PIECES).map("".join)
CUTS = st.lists(st.integers(0, 60), max_size=20)
NUM_SPLITS = 250  # of the sentences of a language, for each tokenizer


@pytest.fixture(scope="session", params=[False, True], ids=["qwen2", "camel_case"])
def tokenizer(request: pytest.FixtureRequest, real_folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(real_folder, split_camel_case=request.param)


@pytest.fixture(scope="session", params=[False, True], ids=["qwen2", "camel_case"])
def small_tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    """A vocabulary of every byte, "assistant" and all pairs that a wrong cut would separate."""
    merges = [("assistant"[:end], "assistant"[end]) for end in range(1, len("assistant"))]
    doubled = "aABb1'tsé(.!/ \t\n\u0301\u093c漢"
    for left, right in ((a.encode(), b.encode()) for a in doubled for b in doubled):
        merges += list(pairwise(symbols(left)))[:1] if len(left) > 1 else []
        merges.append((symbols(left)[-1], symbols(right)[0]))
    merges = list(dict.fromkeys(merges))
    tokens = dict.fromkeys([*symbols(bytes(range(256))), *(a + b for a, b in merges)])
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    added = {"<|im_start|>": 100_000}
    return TextTokenizer(vocab, merges, added, split_camel_case=request.param)


def cut(text: str, places: Iterable[int]) -> list[str]:
    inside = sorted(place for place in places if place <= len(text))
    return [text[start:end] for start, end in pairwise([0, *inside, len(text)])]


def live_ids(
    tokenizer: TextTokenizer, pieces: Iterable[str], *, strip_end: bool = False
) -> list[int]:
    live = LiveTokenizer(tokenizer, strip_end=strip_end)
    ids = [token_id for piece in pieces for token_id in live.feed(piece)]
    return ids + live.finish()


def naive_ids(tokenizer: TextTokenizer, pieces: Iterable[str]) -> list[int]:
    return [token_id for piece in pieces for token_id in tokenizer.encode(piece)]


def said(tokenizer: TextTokenizer, pieces: Iterable[str]) -> list[str]:
    """The decoded ids after each piece."""
    live = LiveTokenizer(tokenizer)
    return [tokenizer.decode(live.feed(piece)) for piece in pieces]


@pytest.mark.parametrize("end", ["", " ", "  ", "\n", " \r\n\t", "\u00a0 ", "\u3000"])
@pytest.mark.parametrize("text", ["I am here.", "one 2", "wait,\nnow", "caf\u00e9", "!?", "3 "])
def test_strip_end_leaves_out_white_space_at_the_end(
    text: str, end: str, tokenizer: TextTokenizer
) -> None:
    written = text + end
    for places in ((), range(len(written)), (len(text),), (len(text) - 1,)):
        pieces = cut(written, places)
        assert live_ids(tokenizer, pieces, strip_end=True) == tokenizer.encode(written.rstrip())
        assert live_ids(tokenizer, pieces) == tokenizer.encode(written)


@pytest.mark.default_cases(6)
@pytest.mark.parametrize("language", SENTENCES)
def test_random_splits_give_the_ids_of_the_whole(language: str, tokenizer: TextTokenizer) -> None:
    rng = random.Random(language)
    whole = {sentence: tokenizer.encode(sentence) for sentence in SENTENCES[language]}
    num_naive_matches = 0
    for _ in range(NUM_SPLITS):
        text = rng.choice(SENTENCES[language])
        pieces = cut(text, rng.choices(range(len(text) + 1), k=rng.randrange(1, 20)))
        assert live_ids(tokenizer, pieces) == whole[text], pieces
        num_naive_matches += naive_ids(tokenizer, pieces) == whole[text]
    assert num_naive_matches < NUM_SPLITS / 2  # control: encoding each piece separately must fail


@pytest.mark.parametrize("language", SENTENCES)
def test_sentences_fed_by_the_character_give_the_ids_of_the_whole(
    language: str, tokenizer: TextTokenizer
) -> None:
    text = " ".join(SENTENCES[language])
    assert live_ids(tokenizer, text) == tokenizer.encode(text)


@examples(500)
@given(text=TEXTS, places=CUTS)
def test_any_split_of_any_text_gives_the_ids_of_the_whole(
    small_tokenizer: TextTokenizer, text: str, places: list[int]
) -> None:
    whole = small_tokenizer.encode(text)
    assert live_ids(small_tokenizer, cut(text, places)) == whole
    assert live_ids(small_tokenizer, text) == whole


def test_character_classes_in_every_order_give_the_ids_of_the_whole(
    small_tokenizer: TextTokenizer,
) -> None:
    for characters in product("aB1!/ \n\u0301\u0958", repeat=4):
        text = "".join(characters)
        assert live_ids(small_tokenizer, text) == small_tokenizer.encode(text), text


def test_joints_in_every_order_give_the_ids_of_the_whole(small_tokenizer: TextTokenizer) -> None:
    for first in JOINTS:
        for second in JOINTS:
            text = f"x{first}{second}!a {second}{first}'s"
            assert live_ids(small_tokenizer, text) == small_tokenizer.encode(text), text


def test_piece_may_end_with_any_mark_sign_number_or_space(small_tokenizer: TextTokenizer) -> None:
    characters = map(chr, range(sys.maxunicode))
    for character in (c for c in characters if unicodedata.category(c)[0] in "MPZN"):
        text = f"e{character}\u0301({character}a"
        assert live_ids(small_tokenizer, text) == small_tokenizer.encode(text), hex(ord(character))


def test_control_pieces_encoded_separately_give_other_ids(tokenizer: TextTokenizer) -> None:
    pieces = ["Hel", "lo wor", "ld"]
    assert naive_ids(tokenizer, pieces) != tokenizer.encode("Hello world")
    assert live_ids(tokenizer, pieces) == tokenizer.encode("Hello world")


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["Hello wor"], ["Hello"]),
        (["Hello world "], ["Hello world"]),
        (["Hello", " world", "!"], ["", "Hello", " world"]),
        (["H", "i", ",", " ", "you"], ["", "", "Hi", ",", ""]),
        (["don", "'", "t", " "], ["", "don", "", "'t"]),
        (["it's", " "], ["it", "'s"]),
        (["in 19", "84", ","], ["in 1", "98", "4"]),
        (["你好", "，世界", "。"], ["", "你好", "，世界"]),
        (["안녕", "하세요 ", "여러분."], ["", "안녕하세요", " 여러분"]),
        (["cafe", "\u0301", " "], ["", "", "café"]),
        (["end.\n", "\n", "“", "Go"], ["end", "", ".\n\n", ""]),
        (["x ", " ", " y", " "], ["x", "", "", "   y"]),
        (["", " ", ""], ["", "", ""]),
    ],
)
def test_word_is_returned_with_the_character_after_it(
    pieces: list[str], expected: list[str], tokenizer: TextTokenizer
) -> None:
    assert said(tokenizer, pieces) == expected


def test_finished_tokenizer_begins_another_text(tokenizer: TextTokenizer) -> None:
    live = LiveTokenizer(tokenizer)
    live.feed("one")
    assert live.finish() == tokenizer.encode("one")
    assert live.finish() == []
    assert live.feed("two ") + live.finish() == tokenizer.encode("two ")


@pytest.mark.default_cases(6)
@pytest.mark.parametrize("unit", ["a", " ", "\n", "!", "\u0301", "a ", "'s", "漢", "1", "e\u0301"])
def test_20_000_characters_fed_one_by_one_take_linear_time(
    unit: str, small_tokenizer: TextTokenizer
) -> None:
    """Quadratic work would take 25 times as long for five times the text."""
    text = (unit * 20_000)[:20_000]
    expected = small_tokenizer.encode(text)

    def spent_s(length: int) -> float:
        start = time.process_time()
        ids = live_ids(small_tokenizer, text[:length])
        spent = time.process_time() - start
        assert length < len(text) or ids == expected
        return spent

    control_s = min(spent_s(4_000) for _ in range(2))
    assert any(spent_s(20_000) < 12 * control_s for _ in range(3))
