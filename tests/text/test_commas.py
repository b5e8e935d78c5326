"""Commas between very short sentences and between repeated words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.text_stages import cut, plan_utterances, written_words
from vivace.text.commas import RepeatedWords, ShortSentences
from vivace.text.options import ScriptOptions
from vivace.text.pipeline import Stage, TextPipeline

OPTIONS = ScriptOptions(normalize=True, min_chars=8, packing="whole", plain_breaks=True)


def read(stage: Stage, text: str) -> str:
    return stage.feed(text) + stage.finish()


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("I. Am. Here. Now.", "I, Am, Here, Now."),
        ("No! No! No!", "No, No, No!"),
        ("Who? Me?! Yes…", "Who, Me, Yes…"),
        ("five. four. three", "five, four, three"),
        ("“Yes.” “No.” he said.", "“Yes,” “No.” he said."),
        ("(Go.) Stop.", "(Go,) Stop."),
        ("Go. Stop. Then we went home. Yes. No.", "Go, Stop. Then we went home. Yes, No."),
        # Left as it is
        ("Yes. We went home.", "Yes. We went home."),
        ("We went home. Yes.", "We went home. Yes."),
        ("Repeat! Repeat!", "Repeat, Repeat!"),
        ("Repeats! Repeats!", "Repeats! Repeats!"),
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


@pytest.mark.parametrize(
    ("text", "parted"),
    [
        ("Yes yes yes yes.", "Yes, yes, yes, yes."),
        ("Very very very very good.", "Very, very, very, very good."),
        ("No no no.", "No no no."),
        ("That that is, is. No no.", "That that is, is. No no."),
        ("Had had had had, had.", "Had, had, had, had, had."),
        ("ha  ha ha ha\nha ha ha ha", "ha, ha, ha, ha\nha, ha, ha, ha"),
        ("I'm I'm I'm I'm ok", "I'm, I'm, I'm, I'm ok"),
        ("go go-go go", "go go-go go"),
        ("  a a a a", "  a, a, a, a"),
    ],
)
def test_four_equal_words_are_parted_by_commas(text: str, parted: str) -> None:
    stage = RepeatedWords()
    assert read(stage, text) == parted
    assert "".join(map(stage.feed, text)) + stage.finish() == parted


@given(st.text(alphabet="aAIJ .!?\n\"')(-…", max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_commas_in_any_pieces_are_the_same(text: str, places: list[int]) -> None:
    for stage in (ShortSentences(8), RepeatedWords()):
        whole = read(stage, text)
        assert "".join(map(stage.feed, cut(text, places))) + stage.finish() == whole
        assert [one for one in whole if one.isalnum()] == [one for one in text if one.isalnum()]


def test_long_sentence_is_not_held_back() -> None:
    stage = ShortSentences(8)
    assert stage.feed("Yes. ") == ""
    assert stage.feed("We went ho") == "Yes. We went ho"
    assert stage.feed("me") == "me"


def test_short_sentences_are_one_utterance_whose_words_keep_their_places() -> None:
    text = "I. Am. Here. Now. 3. 2. 1. Go go go go!"
    assert plan_utterances(text, OPTIONS) == ["I, Am, Here, Now, three, two, one. Go, go, go, go!"]
    words = ["I.", "Am.", "Here.", "Now.", "3.", "2.", "1.", "Go", "go", "go", "go!"]
    assert written_words(text, OPTIONS) == words


def test_checkpoints_without_a_minimum_get_the_sentences_as_they_are() -> None:
    assert plan_utterances("Go. Stop. No no no no.", ScriptOptions(normalize=True)) == [
        "Go. Stop. No no no no."
    ]


def test_live_sentence_is_spoken_before_the_next_one_is_complete() -> None:
    pipeline = TextPipeline(replace(OPTIONS, packing="sentences"))
    events = [event for event in pipeline.feed("One. Two. Three. ") if isinstance(event, str)]
    assert events[0] == "One."
