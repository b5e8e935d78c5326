"""Tests of the text pipeline: events do not depend on the pieces of the text."""

from __future__ import annotations

import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.text_stages import cut, read_events
from vivace.errors import RequestError
from vivace.text.options import ScriptOptions
from vivace.text.packing import Cut
from vivace.text.pauses import Pause, parse_pauses
from vivace.text.pipeline import Event, TextPipeline

MAX_CHARS = 40
PROSE = (
    'Dr. Smith paid 3.50 dollars. He left at 5 p.m. and said: "Good night!" Nobody answered.\n\n'
    "他走了。没有人回答！「再见」と彼は言った。Then, e.g. later, it rained... And on it went, "
    "without a stop for very many words, one after the other, because the writer had forgotten "
    "how sentences end and nobody had the heart to tell her so until now. The end"
)


def read(pieces: list[str], max_chars: int | None = MAX_CHARS, clean: bool = False) -> list[Event]:
    return read_events(pieces, ScriptOptions(max_chars=max_chars, clean=clean))


def utterances(events: list[Event]) -> list[str]:
    return [event for event in events if isinstance(event, str)]


places = st.lists(st.integers(0, 10_000), max_size=30)


@given(places)
@examples(300)
def test_pipeline_in_any_pieces_gives_the_same_events(places: list[int]) -> None:
    assert read(cut(PROSE, places)) == read(list(PROSE))


@given(places)
@examples(200)
def test_pipeline_keeps_every_character_once(places: list[int]) -> None:
    found = utterances(read(cut(PROSE, places)))
    assert "".join("".join(found).split()) == "".join(PROSE.split())
    assert max(map(len, found)) <= 4 * MAX_CHARS


def test_text_within_the_limit_is_one_unchanged_utterance() -> None:
    text = "  One. Two!  Three?\n\nFour. \n"
    assert read(list(text)) == [text]
    assert read(list(PROSE), max_chars=None) == [PROSE]


def test_longer_text_is_cut_at_the_first_sentence_end_after_the_limit() -> None:
    text = "Mr. A. B. Long went to see the old town. It was there. So was he."
    assert read(list(text)) == [
        "Mr. A. B. Long went to see the old town.",
        Cut(is_inside=False),
        "It was there. So was he.",
    ]


def test_words_are_returned_before_their_sentence_ends() -> None:
    script = TextPipeline(ScriptOptions(max_chars=MAX_CHARS))
    assert script.feed("Hello wor") == ["Hello wor"]
    assert script.feed("ld. ") == ["ld"]
    assert script.feed("And") == [". And"]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("word, " * 40, "word, " * 13 + "word,"),  # at a clause after twice the limit
        ("word " * 60, "word " * 25),  # at a space after three times the limit
        ("字" * 400, "字" * 160),  # anywhere after four times the limit
    ],
)
def test_sentence_without_end_is_cut_at_a_clause_space_or_character(text: str, first: str) -> None:
    for pieces in (list(text), [text]):
        found = utterances(read(pieces))
        assert found[0].strip() == first.strip()
        assert "".join("".join(found).split()) == "".join(text.split())


@given(places)
@examples(200)
def test_pause_marks_in_any_pieces_are_found(places: list[int]) -> None:
    text = "One [p] [pause 0.5s]two[PAUSE 20 ms] [paused] three."
    expected = ["One [p] ", Pause(0.5), "two", Pause(0.02), " [paused] three."]
    assert read(cut(text, places), max_chars=300) == expected


WORDS_IN_BRACKETS = [
    "[pause]",
    "[Pause/Break]",
    "[pause for effect]",
    "[pause 3]",
    "[pause 3s",
    "[pause 1e3s]",
    "[pause -1s]",
    "[pause s]",
    "[pauses 1s]",
    "[[pause]](x)",
    "[pause\n1s]",
]


@pytest.mark.parametrize("mark", WORDS_IN_BRACKETS)
def test_brackets_that_are_no_pause_mark_stay_text(mark: str) -> None:
    text = f"Press {mark} now."
    assert read(list(text), max_chars=300) == read([text], max_chars=300) == [text]
    assert parse_pauses(text) == [text]


@pytest.mark.parametrize("mark", ["[pause 99s]", "[pause 0s]", "[pause 10001 ms]"])
def test_pause_of_invalid_length_is_left_out_and_reported(mark: str) -> None:
    script = TextPipeline(ScriptOptions())
    events = [e for c in f"One {mark} two, [pause 1s] three." for e in script.feed(c)]
    events += script.finish()
    assert "".join(e for e in events if isinstance(e, str)) == "One  two,  three."
    assert Pause(1.0) in events
    assert "pause lasts" in str(script.error)
    with pytest.raises(RequestError, match="pause lasts"):
        parse_pauses(f"One {mark} two")


def test_pause_marks_survive_cleaning() -> None:
    assert read(list("**One**[pause 1s] _two_"), clean=True) == ["One", Pause(1.0), " two"]


# -- linear time for any text ------------------------------------------------------------------

SIZE = 12_000
HOSTILE = {
    "sentences": "It is so. ",
    "no end": "word ",
    "commas": "word, ",
    "one word": "a",
    "stops": ".",
    "wide stops": "。と",
    "quoted stops": '。"',
    "spaces": " ",
    "lines": "\n",
    "open brackets": "[",
    "open bracket and words": "[word ",
    "open tags": "<",
    "open tag and words": "<b ",
    "open comments": "<!--",
    "open addresses": "](",
    "nested addresses": "[a](b(c)",
    "half pauses": "[pause 1",
    "pauses": "[pause 1s]",
    "emoji": "🙂 ",
    "bullets": "- a\n",
    "stars": "*",
    "marks": "\u0301",
}


def count_calls(text: str, num_pieces: int, *, clean: bool, plain_breaks: bool = False) -> int:
    """The number of Python calls and returns while a text is read."""
    size = -(-len(text) // num_pieces)
    script = TextPipeline(ScriptOptions(max_chars=120, clean=clean, plain_breaks=plain_breaks))
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        for start in range(0, len(text), size):
            script.feed(text[start : start + size])
        script.finish()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.default_cases(12)
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
def test_work_on_one_large_piece_grows_linearly(unit: str, clean: bool) -> None:
    small, large = ((unit * SIZE)[:size] for size in (SIZE // 4, SIZE))
    assert count_calls(large, 1, clean=clean) < 6 * count_calls(small, 1, clean=clean) + 500


@pytest.mark.parametrize("unit", ["- ", "|\n", "1. ", "> "])
def test_work_on_list_marks_in_pieces_grows_linearly(unit: str) -> None:
    small, large = (
        count_calls(unit * (size // 2), size // 8, clean=False, plain_breaks=True)
        for size in (1_000, 4_000)
    )
    assert large < 6 * small + 500


@pytest.mark.parametrize(
    "name", ["sentences", "one word", "spaces", "open bracket and words", "open tag and words"]
)
def test_300_000_characters_in_one_piece_take_seconds(name: str) -> None:
    """Quadratic work would take minutes; the limit allows for a busy machine."""
    text = (HOSTILE[name] * 300_000)[:300_000]
    began = time.process_time()
    script = TextPipeline(ScriptOptions(clean=True))
    script.feed(text)
    script.finish()
    assert time.process_time() - began < 20
