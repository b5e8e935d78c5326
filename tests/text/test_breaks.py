"""Tests of line breaks: paragraphs and items end utterances, wrapped lines do not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.text_stages import cut, plain_text, plan_utterances, read_breaks, written_words
from vivace.text.breaks import BreakReader
from vivace.text.options import Packing, ScriptOptions
from vivace.text.packing import Cut
from vivace.text.pauses import Pause
from vivace.text.pipeline import Event, TextPipeline
from vivace.text.plain import PlainRules, PlainText

PLAIN = ScriptOptions(
    max_chars=120, strip_end=True, plain_breaks=True, seam_s=0.5, paragraph_s=0.9, normalize=True
)
RAW = ScriptOptions(max_chars=300, paragraph_s=0.5)
ITEM = "\n\n"
PLAINEST = PlainRules(drops_ellipsis=True, drops_quotes=True, end_stop=True)
LINE_ENDS = ("\n", "\r\n", "\r", "\v", "\f", "\x85", "\u2028")

WRAPPED = (
    "The committee met for the third time in the spring and agreed that the\n"
    "bridge over the river had to be repaired before the autumn. The mayor of\n"
    "Springfield asked the engineers of the county for a plan, which they sent to\n"
    "Albany within a week."
)


def breaks(text: str) -> list[str]:
    """The marks in a text after `read_breaks`, without single spaces."""
    return re.findall(r"\s{2,}|\t", read_breaks(text))


@pytest.mark.parametrize("end", LINE_ENDS)
def test_blank_line_of_any_line_end_is_a_paragraph(end: str) -> None:
    assert read_breaks(f"One is here.{end}{end}Two is there.") == "One is here.\n\n\nTwo is there."
    assert read_breaks(f"One is here. {end} \t{end}  Two") == "One is here.\n\n\nTwo"


def test_paragraph_separator_alone_is_a_paragraph() -> None:
    assert read_breaks("One.\u2029Two.") == "One.\n\n\nTwo."


def test_hard_wrapped_prose_has_no_breaks() -> None:
    assert read_breaks(WRAPPED) == WRAPPED.replace("\n", " ")


@pytest.mark.parametrize(
    "text",
    [
        "What they packed\nthree apples\ntwo pears",
        "Monday\nTuesday\nWednesday",
        "Room 12\n3 chairs\n2 tables",
        "Install the package with the command line tool\nRun the server\nOpen the page",
        "Buy:\n- milk\n* eggs",
        "Steps\n1. Open it.\n2. Close it.",
        "Steps.\n(a) Open it.\n(b) Close it.",
    ],
)
def test_line_of_a_list_or_heading_is_an_item(text: str) -> None:
    assert breaks(text) == [ITEM, ITEM]


@pytest.mark.parametrize(
    "text",
    [
        "I went to the\nstore and bought milk",
        "We walked slowly\nthrough the rain",
        "He wrote to\nMary",
        "First,\nwe rest",
        "One sentence.\nAnother sentence.",
        "A wise man once said:\nnothing",
        "We looked for a long time at the letter that\nI had found",
    ],
)
def test_line_that_continues_or_ends_a_sentence_is_followed_by_a_space(text: str) -> None:
    assert breaks(text) == []


@pytest.mark.parametrize("rule", ["---", "* * *", "=====", "-", "~~~~", "- - -"])
def test_rule_between_lines_is_dropped_and_ends_a_paragraph(rule: str) -> None:
    assert read_breaks(f"One is here\n{rule}\nTwo") == "One is here\n\n\nTwo"


@pytest.mark.parametrize("mark", ["- ", "* ", "• ", "> ", "# ", "- [x] ", "– "])
def test_list_mark_is_dropped_at_the_start_of_the_text_and_of_a_line(mark: str) -> None:
    assert read_breaks(f"{mark}milk\n{mark}eggs") == "milk\n\neggs"


@pytest.mark.parametrize("text", ["-5 degrees", "2 + 3\n= 5", "a - b", "#tag\n@ada"])
def test_sign_with_a_spoken_name_is_kept(text: str) -> None:
    assert "".join(read_breaks(text).split()) == "".join(text.split())


def test_tab_between_words_separates_cells() -> None:
    assert plain_text(read_breaks("Ann\t3\n\tBob\t4"), PlainRules()) == "Ann, 3. Bob, 4"


def test_white_space_of_every_kind_becomes_one_space() -> None:
    spaces = "\u00a0\u2003\u202f\u3000 "
    assert read_breaks(f"{spaces}One{spaces}two{spaces}") == "One two"
    assert read_breaks("One" + " " * 40 + "two") == "One\n\ntwo"


def test_plain_text_ends_an_item_without_punctuation_with_a_full_stop() -> None:
    assert (
        plain_text("A list\n\nmilk,\n\neggs!\n\n\nEnd", PlainRules()) == "A list. milk, eggs! End"
    )
    assert plain_text(" \n\nOne\n\n", PlainRules()) == "One"


ALPHABET = "aB3.,:-'\" \n\r\t\u2028\u00a0*#("


@given(st.text(ALPHABET, max_size=80), st.lists(st.integers(0, 999), max_size=12))
@examples(300)
def test_breaks_in_any_pieces_are_those_of_the_whole_text(text: str, places: list[int]) -> None:
    for reader, whole in (
        (BreakReader(), read_breaks(text)),
        (PlainText(PlainRules()), plain_text(text, PlainRules())),
        (PlainText(PLAINEST), plain_text(text, PLAINEST)),
    ):
        parts = [*map(reader.feed, cut(text, places)), reader.finish()]
        assert "".join(parts) == whole


@given(st.text(ALPHABET, max_size=80))
@examples(300)
def test_no_letter_or_digit_is_lost_and_only_single_spaces_are_left(text: str) -> None:
    plain = plain_text(read_breaks(text), PlainRules())
    assert re.findall(r"\w", plain) == re.findall(r"\w", text)
    assert not re.search(r"[^\S ]|  |\A | \Z", plain)


def said(events: list[Event]) -> list[str | float]:
    """Utterances and the seconds of silence between them."""
    found: list[str | float] = []
    pause = 0.0
    for event in events:
        if isinstance(event, Cut):
            pause = max(pause, 0.9 if event.is_paragraph else 0.5)
        elif isinstance(event, str) and found and not pause:
            found[-1] = str(found[-1]) + event
        elif isinstance(event, str):
            found += [pause, event] if found else [event]
            pause = 0.0
    return found


def read_live(text: str, options: ScriptOptions, places: list[int]) -> list[Event]:
    reader = TextPipeline(options)
    return [event for piece in cut(text, places) for event in reader.feed(piece)] + reader.finish()


def planned(text: str, options: ScriptOptions) -> list[str | float]:
    plan = plan_utterances(text, options)
    return [part.seconds if isinstance(part, Pause) else part for part in plan]


LETTER = (
    "# What they packed\n\n- three apples\n- two pears\n\nThen they left. It was\nlate.\n\n"
    "| Name | Age |\n|---|---|\n| Ann | 3 |\n"
)


def test_known_text_pauses_longer_after_a_paragraph_than_after_an_item() -> None:
    assert planned(LETTER, replace(PLAIN, clean=True)) == [
        *("What they packed", 0.9, "three apples", 0.5, "two pears", 0.9),
        *("Then they left. It was late.", 0.9, "Name, Age", 0.5, "Ann, three"),
    ]


@given(st.lists(st.integers(0, 999), max_size=12), st.booleans())
@settings(deadline=None, max_examples=60)
def test_live_words_are_cut_like_the_known_text(places: list[int], clean: bool) -> None:
    options = replace(PLAIN, clean=clean)
    assert said(read_live(LETTER, options, places)) == planned(LETTER, options)


def test_live_sentences_have_the_pauses_of_their_paragraphs() -> None:
    options = replace(PLAIN, clean=True, packing="sentences")
    assert said(read_live(LETTER, options, [])) == [
        *("What they packed", 0.9, "three apples", 0.5, "two pears", 0.9),
        *("Then they left.", 0.5, "It was late.", 0.9, "Name, Age", 0.5, "Ann, three"),
    ]


@pytest.mark.parametrize("packing", ["words", "sentences"])
def test_text_that_is_not_split_has_no_line_breaks(packing: Packing) -> None:
    options = replace(PLAIN, max_chars=None, paragraph_s=None)
    text = "A title\n\nOne is here.\nTwo\tthree\u00a0four"
    assert planned(text, options) == ["A title. One is here. Two, three four"]
    live = read_live(text, replace(options, packing=packing), [3, 9, 20])
    assert not any(re.search(r"[^\S ]", event) for event in live if isinstance(event, str))


@pytest.mark.parametrize("gap", ["\n\n", "\r\n \r\n", "\u2029", "\n\n\n\n"])
def test_checkpoint_without_plain_breaks_keeps_lines_and_splits_paragraphs(gap: str) -> None:
    text = f"One line\nand two.{gap}Three."
    assert planned(text, RAW) == ["One line\nand two.", 0.5, "Three."]
    assert said(read_live(text, RAW, list(range(len(text))))) == [
        "One line\nand two.",
        0.9,
        "Three.",
    ]
    assert planned(text, replace(RAW, paragraph_s=None)) == [text]


@pytest.mark.parametrize("paragraph_s", [None, 0.9])
def test_words_keep_their_places_when_full_stops_are_added(paragraph_s: float | None) -> None:
    text = "A title\n\n- one apple\n- two. And\nmore"
    words = written_words(text, replace(PLAIN, paragraph_s=paragraph_s))
    assert words == ["A", "title", "one", "apple", "two.", "And", "more"]


def test_blank_text_between_two_pauses_is_not_an_utterance() -> None:
    plan = plan_utterances("One.[pause 0.5s] \n [pause 0.5s]Two.", ScriptOptions())
    assert [part for part in plan if isinstance(part, str)] == ["One.", "Two."]
