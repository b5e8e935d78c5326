"""Tests of English normalization, and of the rules of another language."""

from __future__ import annotations

import random
import re
import sys
import time
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.text_stages import cut
from tests.text.normalize_cases import ALL
from vivace.text.normalize import LANGUAGES, normalize_text, open_normalizer
from vivace.text.normalize.english.numbers import cardinal, ordinal, roman, year
from vivace.text.normalize.normalizer import LiveNormalizer
from vivace.text.normalize.rules import LanguageRules, Reading, Token, TokenReader
from vivace.text.options import ScriptOptions
from vivace.text.pauses import Pause
from vivace.text.pipeline import TextPipeline
from vivace.text.spans import SpannedText

SAID = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,;:!?'\"-\n")


@pytest.mark.parametrize(("text", "said"), ALL, ids=[text for text, _ in ALL])
def test_normalize_writes_text_as_spoken(text: str, said: str) -> None:
    assert normalize_text(text) == said
    assert set(said) <= SAID
    assert letters(normalize_text(said)) == letters(said)


AROUND = {  # signs before and after a text, which do not change its words
    "brackets": ("(", ")"),
    "brackets inside": ("so (", "), and"),
    "square brackets": ("[", "]"),
    "bold": ("**", "**"),
    "quotation": ("“", "”"),
    "sentence before": ("“Well,” so: ", ""),
    "question": ("", "?"),
    "comma": ("", ", and"),
    "ellipsis": ("", "…"),
    "list": ("- ", ""),
}
# Texts that mean something else between these signs.
NOT_AROUND = {
    *("|−7| and log10(100)", "(i) red, (ii) blue", "Dial *67 or #31#", "== Title =="),
    *("Press 2 or *", "II. Methods", "Ask Dr. C. Hose", "INT. KITCHEN - DAY", "in *4821"),
    *("Ants > Bees", "Revenue > Cost means profit"),
}


def letters(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower())


@pytest.mark.parametrize("name", AROUND)
def test_signs_around_a_text_do_not_change_its_words(name: str) -> None:
    before, after = AROUND[name]
    changed = {}
    for text, _ in ALL:
        core = re.sub(r"(?<!\.)[.!?]\Z", "", text)
        is_measure = name == "quotation" and re.search(r'\d"', core)  # inches end a quotation
        if core in NOT_AROUND or "\n" in core or is_measure:
            continue
        found = normalize_text(before + core + after)
        if letters(found) != letters(before) + letters(normalize_text(core)) + letters(after):
            changed[core] = found
    assert changed == {}


def live(pieces: list[str]) -> str:
    normalizer = open_normalizer("english")
    return "".join(map(normalizer.feed, pieces)) + normalizer.finish()


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
@examples(400)
def test_normalizer_in_any_pieces_matches_the_whole_text(
    tokens: list[str], spaces: list[str], places: list[int]
) -> None:
    text = "".join(token + space for token, space in zip(tokens, spaces, strict=False))
    whole = normalize_text(text)
    assert live(cut(text, places)) == whole
    assert live(list(text)) == whole


@given(st.text(max_size=60), st.lists(st.integers(0, 100), max_size=6))
@examples(400)
def test_normalizer_in_any_pieces_of_any_text_matches_the_whole_text(
    text: str, places: list[int]
) -> None:
    assert live(cut(text, places)) == normalize_text(text)


@given(st.text(alphabet="aBc19.,:;/-–—$%#@()[]'\"+~°_*&= \n\tI²½é", max_size=40))
@examples(600)
def test_normalized_signs_in_any_order_have_no_digits(text: str) -> None:
    said = normalize_text(text)
    assert set(said) <= SAID | {"\t"}


@given(
    st.lists(
        st.sampled_from(["the", "quick", "well-known", "O'Brien's", "I'm", "Paris", "said"]),
        max_size=12,
    )
)
def test_plain_words_are_unchanged(words: list[str]) -> None:
    text = ", ".join(words) + ".\n\n " + " ".join(words)
    assert normalize_text(text) == text


def test_words_are_returned_as_soon_as_they_are_certain() -> None:
    normalizer = open_normalizer("english")
    assert normalizer.feed("Hello ther") == "Hello"
    assert normalizer.feed("e, I paid ") == " there, I paid"
    assert normalizer.feed("$5") == ""
    assert normalizer.feed(" ") == ""  # "million" may follow
    assert normalizer.feed("on ") == " five dollars on"
    assert normalizer.feed("Dec. 2") == ""
    assert normalizer.feed("5, 2024. ") == " December twenty-fifth, twenty twenty-four."


def test_normalizer_holds_fewer_than_80_characters() -> None:
    text = " ".join(text for text, _ in ALL) * 3
    normalizer, num_fed, num_held = open_normalizer("english"), 0, 0
    for place, letter in enumerate(text):
        num_fed = num_fed if not normalizer.feed(letter) else place
        num_held = max(num_held, place - num_fed)
    assert num_held < 80


def test_pause_separates_normalized_words() -> None:
    script = TextPipeline(ScriptOptions(normalize=True, clean=True))
    events = [e for c in "Dec.[pause 1s]25 **USA** [pause 500ms] $5" for e in script.feed(c)]
    events += script.finish()
    said = "".join(e if isinstance(e, str) else f"<{getattr(e, 'seconds', '')}>" for e in events)
    assert said == "December.<1.0>twenty-five U S A <0.5> five dollars"
    assert Pause(1.0) in events


@pytest.mark.parametrize(
    "unit", ["a", "1", "1 ", "A", "A ", "$", "(", "1/", "1-", ".", "a.", "x@", "Dr. ", "+1 ", "VI "]
)
def test_work_grows_linearly_with_the_text(unit: str) -> None:
    def count(size: int) -> int:
        return count_calls((unit * size)[:size])

    assert count(4_000) < 6 * count(1_000) + 500


def count_calls(text: str) -> int:
    """The number of Python calls and returns while a text is normalized."""
    calls = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(note)
    try:
        normalize_text(text)
    finally:
        sys.setprofile(None)
    return calls


TYPESET = "I’m sure it’s Anna’s. Don’t go, I’ll say: the well-to-do’s dog’s here; rock’n’roll! "


def test_typeset_apostrophe_is_read_like_an_ascii_apostrophe() -> None:
    assert normalize_text(TYPESET) == TYPESET.replace("’", "'")
    spanned = SpannedText.read(TYPESET, 3)
    said = "".join(map(str, open_normalizer("english").finish(spanned)))
    assert said == TYPESET.replace("’", "'")


def test_typeset_apostrophe_needs_no_more_work_than_an_ascii_apostrophe() -> None:
    text = TYPESET * 20
    assert count_calls(text) < 1.2 * count_calls(text.replace("’", "'")) + 50


def test_long_adversarial_text_takes_seconds() -> None:
    """Quadratic work would take minutes; the limit allows for a busy machine."""
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
def test_cardinal_names_numbers(number: int, words: str) -> None:
    assert cardinal(number) == words


def test_ordinal_year_and_roman_numerals() -> None:
    ordinals = ["first", "twelfth", "twentieth", "twenty-third", "one hundredth"]
    assert [ordinal(n) for n in (1, 12, 20, 23, 100)] == ordinals
    assert year(1066) == "ten sixty-six"
    assert year(2000) == "two thousand"
    assert year(1999) == "nineteen ninety-nine"
    assert year(2010) == "twenty ten"
    numerals = {"I": 1, "IV": 4, "IX": 9, "XIV": 14, "XX": 20, "XXXVIII": 38, "XXXIX": 39}
    assert {word: roman(word) for word in numerals} == numerals
    assert [roman(word) for word in ("IIII", "VX", "IC", "XXL", "", "ABC")] == [None] * 6


def read_seven(reader: TokenReader, token: Token) -> Reading | None:
    following = reader.token(1)
    if token.core != "7" or following is None or following.core != "Uhr":
        return None
    return Reading("sieben Uhr", num_tokens=2)


GERMAN = LanguageRules(
    rules=lambda token: (read_seven,),
    plain_words=re.compile(r"[A-Za-z]+(?: [A-Za-z]+)*(?!\S)"),
    exceptions=frozenset(("Uhr",)),
    plain_signs=lambda text: text.replace("„", "").replace("“", ""),
    read_leftovers=lambda text: text,
)


@pytest.mark.parametrize("size", [1, 2, 100])
def test_normalizer_with_rules_of_another_language_applies_only_these_rules(size: int) -> None:
    text = "Er kam um „7 Uhr“, nicht 8 Uhr."
    normalizer = LiveNormalizer(GERMAN)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    normalized = "".join(map(normalizer.feed, pieces)) + normalizer.finish()
    assert normalized == "Er kam um sieben Uhr, nicht 8 Uhr."


def test_registered_language_is_normalized_by_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("german_rules")
    module.RULES = GERMAN  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "german_rules", module)
    monkeypatch.setitem(LANGUAGES, "german", "german_rules")
    assert normalize_text("um 7 Uhr", "german") == "um sieben Uhr"
    pipeline = TextPipeline(ScriptOptions(normalize=True, language="german"))
    assert "".join(map(str, [*pipeline.feed("um 7 Uhr"), *pipeline.finish()])) == "um sieben Uhr"


def test_language_without_rules_raises_key_error() -> None:
    with pytest.raises(KeyError, match="klingon"):
        normalize_text("7", "klingon")
