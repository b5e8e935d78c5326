"""English as it is written is read as it is said, whole or while it is written."""

from __future__ import annotations

import itertools
import random
import re
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.normalize_cases import ALL
from vivace.text.events import EventReader
from vivace.text.markup import Pause, ScriptOptions
from vivace.text.normalize import normalize_text
from vivace.text.normalize.normalizer import LiveNormalizer
from vivace.text.normalize.numbers import cardinal, ordinal, roman, to_roman, year

SAID = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,;:!?'\"-\n")


@pytest.mark.parametrize(("text", "said"), ALL, ids=[text for text, _ in ALL])
def test_a_text_is_read_as_it_is_said(text: str, said: str) -> None:
    assert normalize_text(text) == said


@pytest.mark.parametrize(("text", "said"), ALL, ids=[text for text, _ in ALL])
def test_what_is_said_is_plain_and_reads_the_same_again(text: str, said: str) -> None:
    assert set(said) <= SAID
    letters = re.sub(r"[^a-z]", "", said.lower())
    assert re.sub(r"[^a-z]", "", normalize_text(said).lower()) == letters


def live(pieces: list[str]) -> str:
    normalizer = LiveNormalizer()
    return "".join(map(normalizer.feed, pieces)) + normalizer.finish()


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


TOKENS = [text for text, _ in ALL] + [
    *"abIVX.,-–/:$%#@()'\"+~°",
    "1",
    "12",
    "2024",
    "Dr.",
    "May",
    "km",
]


@given(
    st.lists(st.sampled_from(TOKENS), max_size=8),
    st.lists(st.sampled_from([" ", " ", "", "\n", "\n\n", "  "]), min_size=8, max_size=8),
    st.lists(st.integers(0, 10_000), max_size=12),
)
@settings(deadline=None, max_examples=400)
def test_any_split_gives_the_words_of_the_whole(
    tokens: list[str], spaces: list[str], places: list[int]
) -> None:
    text = "".join(token + space for token, space in zip(tokens, spaces, strict=False))
    whole = normalize_text(text)
    assert live(cut(text, places)) == whole
    assert live(list(text)) == whole


@given(st.text(max_size=60), st.lists(st.integers(0, 100), max_size=6))
@settings(deadline=None, max_examples=400)
def test_any_text_at_all_is_read_alike_in_any_pieces(text: str, places: list[int]) -> None:
    assert live(cut(text, places)) == normalize_text(text)


@given(st.text(alphabet="aBc19.,:;/-–—$%#@()[]'\"+~°_*&= \n\tI²½é", max_size=40))
@settings(deadline=None, max_examples=600)
def test_signs_in_any_order_are_read_and_digits_are_gone(text: str) -> None:
    said = normalize_text(text)
    assert set(said) <= SAID | {"\t"}


@given(
    st.lists(
        st.sampled_from(["the", "quick", "well-known", "O'Brien's", "I'm", "Paris", "said"]),
        max_size=12,
    )
)
def test_plain_words_stay_letter_for_letter(words: list[str]) -> None:
    text = ", ".join(words) + ".\n\n " + " ".join(words)
    assert normalize_text(text) == text


def test_words_are_out_as_soon_as_they_are_certain() -> None:
    normalizer = LiveNormalizer()
    assert normalizer.feed("Hello ther") == "Hello"
    assert normalizer.feed("e, I paid ") == " there, I paid"
    assert normalizer.feed("$5") == ""
    assert normalizer.feed(" ") == ""  # million?
    assert normalizer.feed("on ") == " five dollars on"
    assert normalizer.feed("Dec. 2") == ""
    assert normalizer.feed("5, 2024. ") == " December twenty-fifth, twenty twenty-four."


def test_fewer_than_80_characters_are_held_back() -> None:
    text = " ".join(text for text, _ in ALL) * 3
    normalizer, num_fed, num_held = LiveNormalizer(), 0, 0
    for place, letter in enumerate(text):
        num_fed = num_fed if not normalizer.feed(letter) else place
        num_held = max(num_held, place - num_fed)
    assert num_held < 80


def test_pauses_stay_and_part_what_is_read() -> None:
    script = EventReader(ScriptOptions(normalize=True, clean=True))
    events = [e for c in "Dec.[pause 1s]25 **USA** [pause 500ms] $5" for e in script.feed(c)]
    events += script.finish()
    said = "".join(e if isinstance(e, str) else f"<{getattr(e, 'seconds', '')}>" for e in events)
    assert said == "Dec.<1.0>twenty-five U S A <0.5> five dollars"
    assert Pause(1.0) in events


@pytest.mark.parametrize(
    "unit", ["a", "1", "1 ", "A", "A ", "$", "(", "1/", "1-", ".", "a.", "x@", "Dr. ", "+1 ", "VI "]
)
def test_work_grows_with_the_length_of_the_text_and_no_faster(unit: str) -> None:
    def count(size: int) -> int:
        calls = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += 1

        text = (unit * size)[:size]
        sys.setprofile(note)
        try:
            normalize_text(text)
        finally:
            sys.setprofile(None)
        return calls

    assert count(8_000) < 6 * count(2_000) + 500


def test_a_book_of_hostile_words_is_read_in_moments() -> None:
    """Quadratic work takes minutes; the bound leaves a busy machine much room."""
    rng = random.Random(7)
    text = "".join(rng.choice("aA1.,:/-@$%() ") for _ in range(100_000)) + "1" * 50_000
    began = time.process_time()
    normalize_text(text)
    assert time.process_time() - began < 30


# -- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (19, "nineteen"),
        (80, "eighty"),
        (101, "one hundred one"),
        (1_000_001, "one million one"),
        (10**12, "one trillion"),
        (10**18, "one" + " zero" * 18),
    ],
)
def test_numbers_have_names(number: int, words: str) -> None:
    assert cardinal(number) == words


def test_ordinals_years_and_numerals() -> None:
    ordinals = ["first", "twelfth", "twentieth", "twenty-third", "one hundredth"]
    assert [ordinal(n) for n in (1, 12, 20, 23, 100)] == ordinals
    assert year(1066) == "ten sixty-six"
    assert year(2000) == "two thousand"
    assert year(1999) == "nineteen ninety-nine"
    assert year(2010) == "twenty ten"
    assert [roman(to_roman(n)) for n in range(1, 40)] == list(range(1, 40))
    assert [roman(word) for word in ("IIII", "VX", "IC", "", "ABC")] == [None] * 5
