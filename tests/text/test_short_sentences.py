"""Commas between very short sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.text_stages import cut, plan_utterances, written_words
from vivace.text.options import ScriptOptions
from vivace.text.pipeline import Stage, TextPipeline
from vivace.text.short_sentences import ShortSentences

OPTIONS = ScriptOptions(normalize=True, min_chars=8, packing="whole", plain_breaks=True)


def read(stage: Stage, text: str) -> str:
    return stage.feed(text) + stage.finish()


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("I. Am. Here. Now.", "I, Am, Here, Now."),
        ("No! No! No!", "No, No, No!"),
        ("Go! Now… Yes…", "Go, Now, Yes…"),
        ("five. four. three", "five, four, three"),
        ("“Yes.” “No.” he said.", "“Yes,” “No.” he said."),
        ("(Go.) Stop.", "(Go,) Stop."),
        (
            "one. Eggs\n\ntwo. Milk\n\n\nthree. Rye bread.",
            "one, Eggs\n\ntwo, Milk\n\n\nthree. Rye bread.",
        ),
        ("Go. Stop. Then we went home. Yes. No.", "Go, Stop. Then we went home. Yes, No."),
        # Left as it is
        ("Yes. We went home.", "Yes. We went home."),
        ("We went home. Yes.", "We went home. Yes."),
        ("Repeat! Repeat!", "Repeat, Repeat!"),
        ("Repeats! Repeats!", "Repeats! Repeats!"),
        ("Who? You. Me?! Yes.", "Who? You, Me?! Yes."),
        ("Yes.\nNo.", "Yes.\nNo."),
        ("Yes. - No.", "Yes. - No."),
        ("J. R. Roe. Go.", "J. R. Roe. Go."),
        ("Go. Mr. Wu left.", "Go. Mr. Wu left."),
        ("Pi is 3.1. Ok.", "Pi is 3.1. Ok."),
        ("... Go. ! Stop.", "... Go. ! Stop."),
        ("", ""),
        (" Yes. ", " Yes. "),
    ],
)
def test_short_sentences_in_a_row_are_joined_by_commas(text: str, joined: str) -> None:
    stage = ShortSentences(8)
    assert read(stage, text) == joined
    assert "".join(map(stage.feed, text)) + stage.finish() == joined


@given(st.text(alphabet="aAIJ .!?\n\"')(-…", max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_commas_in_any_pieces_are_the_same(text: str, places: list[int]) -> None:
    stage = ShortSentences(8)
    whole = read(stage, text)
    assert "".join(map(stage.feed, cut(text, places))) + stage.finish() == whole
    assert [one for one in whole if one.isalnum()] == [one for one in text if one.isalnum()]


def test_long_sentence_is_not_held_back() -> None:
    stage = ShortSentences(8)
    assert stage.feed("Yes. ") == ""
    assert stage.feed("We went ho") == "Yes. We went ho"
    assert stage.feed("me") == "me"


def test_short_sentences_are_one_utterance_whose_words_keep_their_places() -> None:
    text = "I. Am. Here. Now. 3. 2. 1. Go!"
    assert plan_utterances(text, OPTIONS) == ["I, Am, Here, Now, three, two, one, Go!"]
    words = ["I.", "Am.", "Here.", "Now.", "3.", "2.", "1.", "Go!"]
    assert written_words(text, OPTIONS) == words


def test_checkpoints_without_a_minimum_get_the_sentences_as_they_are() -> None:
    assert plan_utterances("Go. Stop. No.", ScriptOptions(normalize=True)) == ["Go. Stop. No."]


def test_live_sentence_is_spoken_before_the_next_one_is_complete() -> None:
    pipeline = TextPipeline(replace(OPTIONS, packing="sentences"))
    events = [event for event in pipeline.feed("One. Two. Three. ") if isinstance(event, str)]
    assert events[0] == "One."
