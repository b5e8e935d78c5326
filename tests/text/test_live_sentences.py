"""Live text by sentences: each comes whole, when it has surely ended, however it is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.text.cutter import Cut
from vivace.text.events import Event, EventReader
from vivace.text.markup import Pause, ScriptOptions
from vivace.text.split import ends_sentence

MAX_CHARS = 60
PROSE = (
    'Dr. Smith paid 3.14 dollars, e.g. in coins. He left at 5 p.m. and said: "Good night!" Nobody '
    "answered.\n\nA heading\n\n他走了。没有人回答！「再见」と彼は言った。 Was it so? (It was.) And "
    "on it went, without a stop for very many words, one after the other, because the writer had "
    "forgotten how sentences end, and nobody told her [pause 0.5s] until now. **The end.** Bye"
)


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def reader(*, clean: bool = False, max_chars: int | None = MAX_CHARS) -> EventReader:
    return EventReader(ScriptOptions(max_chars=max_chars, clean=clean, by_sentence=True))


def read(pieces: list[str], *, clean: bool = False, max_chars: int | None = 60) -> list[Event]:
    script = reader(clean=clean, max_chars=max_chars)
    return [event for piece in pieces for event in script.feed(piece)] + script.finish()


def said(events: list[Event]) -> list[str]:
    return [event for event in events if isinstance(event, str)]


def test_sentences_are_told_from_abbreviations_numbers_and_quotations() -> None:
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
def test_the_sentences_do_not_depend_on_the_pieces(places: list[int], clean: bool) -> None:
    assert read(cut(PROSE, places), clean=clean) == read([PROSE], clean=clean)


@settings(max_examples=80, deadline=None)
@given(text=st.text(alphabet='aB3 .,!?"\n。)(*[', max_size=120), places=st.lists(st.integers(0)))
def test_any_text_comes_in_parts_with_a_cut_after_each_and_none_is_too_long(
    text: str, places: list[int]
) -> None:
    events = read(cut(text, places), max_chars=20)
    assert events == read([text], max_chars=20)
    assert all(len(part) <= 20 and part == part.strip() for part in said(events))
    assert [type(event) for event in events if not isinstance(event, Pause)] == [str, Cut] * len(
        said(events)
    )
    assert "".join("".join(said(events)).split()) == "".join(text.split())


def test_a_sentence_comes_with_the_first_character_of_the_next_and_never_in_part() -> None:
    script = reader()
    assert said([e for c in "I am here. " for e in script.feed(c)]) == []
    assert said(script.feed("Y")) == ["I am here."]


def test_a_text_without_an_end_is_given_at_clauses_within_the_limit() -> None:
    script, words = reader(), "and then, some more of it " * 8
    given_early = said([event for c in words for event in script.feed(c)])
    assert len(given_early) >= 2
    assert all(part.endswith(",") and len(part) <= MAX_CHARS for part in given_early)


def test_a_part_of_a_sentence_is_marked_as_inside_and_a_heading_is_not() -> None:
    events = read([f"A heading\n\n{'one, ' * 30}two. Three."], max_chars=MAX_CHARS)
    inside = [event.is_inside for event in events if isinstance(event, Cut)]
    assert inside == [False, True, True, False, False]


@pytest.mark.parametrize(
    "text", ["Yes.", "Really?!", "He said so.”", "**Done.**", "好。", "Wait...", "No. "]
)
def test_what_surely_ends_a_sentence(text: str) -> None:
    assert ends_sentence(text)


@pytest.mark.parametrize(
    "text", ["", "Yes", "Pi is 3.", "Dear Dr.", "fruit, e.g.", "J. R.", "one, two,", "a) "]
)
def test_what_may_go_on(text: str) -> None:
    assert not ends_sentence(text)


def test_a_pause_of_the_writer_gives_a_sentence_that_has_ended_and_no_other() -> None:
    script = reader()
    assert script.feed("One moment") == []
    assert script.settle() == []
    assert script.feed(", please.") == []
    assert script.settle() == ["One moment, please.", Cut()]
    assert script.settle() == []
    assert said([*script.feed(" Here it is."), *script.finish()]) == ["Here it is."]


@pytest.mark.parametrize("text", ["See [this link.", "- a point.", "Half a [pause"])
def test_a_pause_inside_markup_gives_nothing(text: str) -> None:
    script = reader(clean=True)
    script.feed(text)
    assert script.settle() == []


def test_normalized_words_that_were_held_come_with_the_pause() -> None:
    script = EventReader(ScriptOptions(normalize=True, by_sentence=True))
    assert script.feed("It costs $5 in the USA.") == []
    assert said(script.settle()) == ["It costs five dollars in the U S A."]
