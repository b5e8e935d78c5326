"""Text being written: utterances and pauses come out the same however it is cut into pieces."""

from __future__ import annotations

import itertools
import re
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.errors import RequestError
from vivace.text.cutter import Cut
from vivace.text.events import Event, EventReader
from vivace.text.live_clean import LiveCleaner
from vivace.text.markup import Pause, ScriptOptions, clean_text, parse_pauses

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
    script = EventReader(ScriptOptions(max_chars=max_chars, clean=clean))
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
def test_any_pieces_give_the_same_result(places: list[int]) -> None:
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
        Cut(is_inside=False),
        "It was there. So was he.",
    ]


def test_words_are_given_out_before_their_sentence_ends() -> None:
    script = EventReader(ScriptOptions(max_chars=MAX_CHARS))
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
def test_an_endless_sentence_is_cut_at_the_best_place(text: str, first: str) -> None:
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
def test_what_is_no_pause_is_text(mark: str) -> None:
    text = f"Press {mark} now."
    assert read(list(text), max_chars=300) == read([text], max_chars=300) == [text]
    assert parse_pauses(text) == [text]


@pytest.mark.parametrize("mark", ["[pause 99s]", "[pause 0s]", "[pause 10001 ms]"])
def test_a_pause_of_a_bad_length_is_left_out_and_remembered(mark: str) -> None:
    script = EventReader(ScriptOptions())
    events = [e for c in f"One {mark} two, [pause 1s] three." for e in script.feed(c)]
    events += script.finish()
    assert "".join(e for e in events if isinstance(e, str)) == "One  two,  three."
    assert Pause(1.0) in events
    assert "pause lasts" in str(script.error)
    with pytest.raises(RequestError, match="pause lasts"):
        parse_pauses(f"One {mark} two")


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


# -- linear, whatever the text ---------------------------------------------------------------------

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
    "open addresses": "](",
    "nested addresses": "[a](b(c)",
    "half pauses": "[pause 1",
    "pauses": "[pause 1s]",
    "emoji": "🙂 ",
    "bullets": "- a\n",
    "stars": "*",
    "marks": "\u0301",
}


def count_calls(text: str, num_pieces: int, *, clean: bool) -> int:
    """Python function calls and returns that reading a text takes."""
    size = -(-len(text) // num_pieces)
    script = EventReader(ScriptOptions(max_chars=120, clean=clean))
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


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
def test_work_grows_with_the_length_of_one_large_piece_and_no_faster(
    unit: str, clean: bool
) -> None:
    small, large = ((unit * SIZE)[:size] for size in (SIZE // 4, SIZE))
    assert count_calls(large, 1, clean=clean) < 6 * count_calls(small, 1, clean=clean) + 500


@pytest.mark.parametrize(
    "name", ["sentences", "one word", "spaces", "open bracket and words", "open tag and words"]
)
def test_300_000_characters_in_one_piece_are_read_in_moments(name: str) -> None:
    """Quadratic work takes minutes; the bound leaves a busy machine much room."""
    text = (HOSTILE[name] * 300_000)[:300_000]
    began = time.process_time()
    script = EventReader(ScriptOptions(clean=True))
    script.feed(text)
    script.finish()
    assert time.process_time() - began < 20
