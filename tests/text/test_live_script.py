"""Text being written: utterances and pauses come out the same however it is cut into pieces."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.errors import RequestError
from vivace.text.live_clean import LiveCleaner
from vivace.text.live_script import Cut, Event, LiveScript
from vivace.text.script import Pause, clean_text

MAX_CHARS = 40
PROSE = (
    'Dr. Smith paid 3.50 dollars. He left at 5 p.m. and said: "Good night!" Nobody answered.\n\n'
    "他走了。没有人回答！「再见」と彼は言った。Then, e.g. later, it rained... And on it went, "
    "without a stop for very many words, one after the other, because the writer had forgotten "
    "how sentences end and nobody had the heart to tell her so until now. The end"
)
MARKDOWN = """# A heading

Hello **world**, this is [a link](https://a.b/c_(d) "t") and `code here`. See https://www.x.org/y?z.

- one item with **bold**
- [ ] two 😀 items
* three

> quoted *text* here

| a | b |
|---|---|
| 1 | 2 |

```python
x = a_b * 3
```
**Sure!** It is 2*3 and snake_case, a [ref][1] and a note[^1]. <br> New <b>line</b> here 🎉 ok
1. first
2. second ~~gone~~ __under__ _it_

***
The end [pause 0.5s] now. An open [bracket never closed
next line."""


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def read(pieces: list[str], max_chars: int | None = MAX_CHARS, clean: bool = False) -> list[Event]:
    """All events, with neighbouring texts joined."""
    script = LiveScript(max_chars, clean=clean)
    events = [event for piece in pieces for event in script.feed(piece)] + script.finish()
    joined: list[Event] = []
    for event in events:
        if isinstance(event, str) and joined and isinstance(joined[-1], str):
            joined[-1] += event
        else:
            joined.append(event)
    return joined


def utterances(events: list[Event]) -> list[str]:
    return [event for event in events if isinstance(event, str)]


places = st.lists(st.integers(0, 10_000), max_size=30)


@given(places)
@settings(deadline=None, max_examples=300)
def test_pieces_change_nothing(places: list[int]) -> None:
    assert read(cut(PROSE, places)) == read(list(PROSE))


@given(places)
@settings(deadline=None, max_examples=200)
def test_nothing_is_lost_and_nothing_repeated(places: list[int]) -> None:
    found = utterances(read(cut(PROSE, places)))
    assert "".join("".join(found).split()) == "".join(PROSE.split())
    assert max(map(len, found)) <= 4 * MAX_CHARS


def test_a_text_within_the_limit_is_one_utterance_letter_for_letter() -> None:
    text = "  One. Two!  Three?\n\nFour. \n"
    assert read(list(text)) == [text]
    assert read(list(PROSE), max_chars=None) == [PROSE]


def test_a_longer_text_is_cut_at_the_first_sentence_end_after_the_limit() -> None:
    text = "Mr. A. B. Long went to see the old town. It was there. So was he."
    assert read(list(text)) == [
        "Mr. A. B. Long went to see the old town.",
        Cut(),
        "It was there. So was he.",
    ]


def test_words_are_given_out_before_their_sentence_ends() -> None:
    script = LiveScript(MAX_CHARS)
    assert script.feed("Hello wor") == ["Hello wor"]
    assert script.feed("ld. ") == ["ld"]
    assert script.feed("And") == [". And"]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("word, " * 40, "word, " * 13 + "word,"),  # a clause, after twice the limit
        ("word " * 60, "word " * 25),  # a space, after three times
        ("字" * 400, "字" * 160),  # anywhere, after four times
    ],
)
def test_a_sentence_without_end_is_cut_where_it_hurts_least(text: str, first: str) -> None:
    for pieces in (list(text), [text]):
        found = utterances(read(pieces))
        assert found[0].strip() == first.strip()
        assert "".join("".join(found).split()) == "".join(text.split())


@given(places)
@settings(deadline=None, max_examples=200)
def test_pauses_are_found_in_any_pieces(places: list[int]) -> None:
    text = "One [p] [pause 0.5s]two[PAUSE 20 ms] [paused] three."
    expected = ["One [p] ", Pause(0.5), "two", Pause(0.02), " [paused] three."]
    assert read(cut(text, places), max_chars=300) == expected


@pytest.mark.parametrize("text", ["a [pause forever] b", "a [pause 3s", "a [pause 99s] b"])
def test_a_bad_pause_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="pause"):
        read(list(text))


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


@given(places)
@settings(deadline=None, max_examples=300)
def test_cleaning_pieces_gives_the_words_of_cleaning_the_whole(places: list[int]) -> None:
    cleaner = LiveCleaner()
    cleaned = "".join(map(cleaner.feed, cut(MARKDOWN, places))) + cleaner.finish()
    assert words(cleaned) == words(clean_text(MARKDOWN))


@given(st.text(alphabet="ab *_`[]()#-|<>.\n!~😀:/w", max_size=80), places)
@settings(deadline=None, max_examples=300)
def test_cleaned_pieces_of_anything_keep_its_letters(text: str, places: list[int]) -> None:
    cleaner = LiveCleaner()
    cleaned = "".join(map(cleaner.feed, cut(text, places))) + cleaner.finish()
    whole_cleaner = LiveCleaner()
    assert words(cleaned) == words(whole_cleaner.feed(text) + whole_cleaner.finish())


def test_plain_words_are_cleaned_as_they_come() -> None:
    cleaner = LiveCleaner()
    assert cleaner.feed("Hello there ") == "Hello there"
    assert cleaner.feed("**my** ") == " my"
    assert cleaner.feed("[long link") == ""
    assert cleaner.feed(" text](http://a.b/c) friend ") == " long link text friend"
    assert cleaner.feed("\n- item\n") == "\n\nitem"


def test_what_stays_open_for_too_long_is_said_as_it_is() -> None:
    cleaner = LiveCleaner()
    said = cleaner.feed("[" + "word " * 500)
    assert said.count("word") == 500


def test_pauses_survive_cleaning() -> None:
    assert read(list("**One**[pause 1s] _two_"), clean=True) == ["One", Pause(1.0), " two"]
