"""Tests of sentence packing: sentences of a live text do not depend on its pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.text_stages import cut
from vivace.text.options import ScriptOptions
from vivace.text.packing import Cut
from vivace.text.pauses import Pause
from vivace.text.pipeline import Event, TextPipeline
from vivace.text.split import ends_sentence

MAX_CHARS = 60
PROSE = (
    'Dr. Smith paid 3.14 dollars, e.g. in coins. He left at 5 p.m. and said: "Good night!" Nobody '
    "answered.\n\nA heading\n\n他走了。没有人回答！「再见」と彼は言った。 Was it so? (It was.) And "
    "on it went, without a stop for very many words, one after the other, because the writer had "
    "forgotten how sentences end, and nobody told her [pause 0.5s] until now. **The end.** Bye"
)


def reader(*, clean: bool = False, max_chars: int | None = MAX_CHARS) -> TextPipeline:
    return TextPipeline(ScriptOptions(max_chars=max_chars, clean=clean, packing="sentences"))


def read(pieces: list[str], *, clean: bool = False, max_chars: int | None = 60) -> list[Event]:
    script = reader(clean=clean, max_chars=max_chars)
    return [event for piece in pieces for event in script.feed(piece)] + script.finish()


def said(events: list[Event]) -> list[str]:
    return [event for event in events if isinstance(event, str)]


def test_sentence_packing_recognizes_abbreviations_numbers_and_quotations() -> None:
    assert said(read(list(PROSE), clean=True, max_chars=None)) == [
        "Dr. Smith paid 3.14 dollars, e.g. in coins.",
        'He left at 5 p.m. and said: "Good night!"',
        "Nobody answered.",
        "A heading",
        "他走了。",
        "没有人回答！",
        "「再见」と彼は言った。",
        "Was it so?",
        "(It was.)",
        "And on it went, without a stop for very many words, one after the other, because the "
        "writer had forgotten how sentences end, and nobody told her",
        "until now.",
        "The end.",
        "Bye",
    ]


@settings(max_examples=60, deadline=None)
@given(places=st.lists(st.integers(0, 10_000), max_size=40), clean=st.booleans())
def test_sentences_in_any_pieces_are_the_same(places: list[int], clean: bool) -> None:
    assert read(cut(PROSE, places), clean=clean) == read([PROSE], clean=clean)


@settings(max_examples=80, deadline=None)
@given(text=st.text(alphabet='aB3 .,!?"\n。)(*[', max_size=120), places=st.lists(st.integers(0)))
def test_any_text_is_packed_within_the_limit_with_a_cut_after_each_part(
    text: str, places: list[int]
) -> None:
    events = read(cut(text, places), max_chars=20)
    assert events == read([text], max_chars=20)
    assert all(len(part) <= 20 and part == part.strip() for part in said(events))
    assert [type(event) for event in events if not isinstance(event, Pause)] == [str, Cut] * len(
        said(events)
    )
    assert "".join("".join(said(events)).split()) == "".join(text.split())


def test_sentence_is_returned_whole_with_the_next_first_character() -> None:
    script = reader()
    assert said([e for c in "I am here. " for e in script.feed(c)]) == []
    assert said(script.feed("Y")) == ["I am here."]


def test_sentence_without_end_is_packed_by_clauses_within_the_limit() -> None:
    script, words = reader(), "and then, some more of it " * 8
    given_early = said([event for c in words for event in script.feed(c)])
    assert len(given_early) >= 2
    assert all(part.endswith(",") and len(part) <= MAX_CHARS for part in given_early)


def test_cut_inside_a_sentence_is_marked_and_after_a_heading_is_not() -> None:
    events = read([f"A heading\n\n{'one, ' * 30}two. Three."], max_chars=MAX_CHARS)
    inside = [event.is_inside for event in events if isinstance(event, Cut)]
    assert inside == [False, True, True, False, False]


@pytest.mark.parametrize(
    "text", ["Yes.", "Really?!", "He said so.”", "**Done.**", "好。", "Wait...", "No. "]
)
def test_ends_sentence_accepts_certain_ends(text: str) -> None:
    assert ends_sentence(text)


@pytest.mark.parametrize(
    "text", ["", "Yes", "Pi is 3.", "Dear Dr.", "fruit, e.g.", "J. R.", "one, two,", "a) "]
)
def test_ends_sentence_rejects_text_that_may_continue(text: str) -> None:
    assert not ends_sentence(text)


def test_settle_returns_only_a_sentence_that_has_ended() -> None:
    script = reader()
    assert script.feed("One moment") == []
    assert script.settle() == []
    assert script.feed(", please.") == []
    assert script.settle() == ["One moment, please.", Cut()]
    assert script.settle() == []
    assert said([*script.feed(" Here it is."), *script.finish()]) == ["Here it is."]


@pytest.mark.parametrize("text", ["See [this link.", "- a point.", "Half a [pause"])
def test_settle_inside_markup_returns_nothing(text: str) -> None:
    script = reader(clean=True)
    script.feed(text)
    assert script.settle() == []


def test_settle_returns_held_normalized_words() -> None:
    script = TextPipeline(ScriptOptions(normalize=True, packing="sentences"))
    assert script.feed("It costs $5 in the USA.") == []
    assert said(script.settle()) == ["It costs five dollars in the U S A."]
