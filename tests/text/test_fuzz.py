"""Any text at all: nothing but a RequestError, nothing lost, the same in any pieces."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vivace.errors import RequestError
from vivace.script.script import plan_utterances
from vivace.text.events import Event, EventReader
from vivace.text.markup import Pause, ScriptOptions, clean_text

UNITS = [
    *("a", "B", "word", "7", "é", "e\u0301", "字", "は", "한", "Ж", "ש"),
    *("\u0301", "\u200d", "\u200b"),
    *(" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u2029", " " * 70, " " * 400, "\xa0"),
    *(". ", ".", "...", "?!", "。", "！", "…", ", ", "，", ";", ":", "—", "-", "(", ")", '"', "'"),
    *("[", "]", "[pause", "[pause 1s]", "[pause 500ms]", "[pause 99s]", "[Pause/Break]", "[pause]"),
    *("*", "**", "_", "`", "# ", "- ", "1. ", "> ", "|", "<", ">", "<b>", "](", "[x](y)", "www.a"),
    *("🙂", "👩\u200d🚀", "1\ufe0f\u20e3", "🇩🇪", "\ud83d", "\ude42", "\ufe0f"),
    *("$5", "12/25/2024", "Dr. "),
]
texts = st.lists(st.sampled_from(UNITS) | st.text(max_size=3), max_size=40).map("".join)
options = st.builds(
    ScriptOptions,
    max_chars=st.sampled_from([20, 60, 300, None]),
    clean=st.booleans(),
    keep_emoji=st.booleans(),
    normalize=st.booleans(),
)
places = st.lists(st.integers(0, 10_000), max_size=8)


def read(pieces: list[str], wanted: ScriptOptions) -> list[Event]:
    """All events, with neighbouring texts joined."""
    script = EventReader(wanted)
    events = [event for piece in pieces for event in script.feed(piece)] + script.finish()
    joined: list[Event] = []
    for event in events:
        if isinstance(event, str) and joined and isinstance(joined[-1], str):
            joined[-1] += event
        else:
            joined.append(event)
    return joined


def letters(text: str) -> str:
    return "".join(letter for letter in text if letter.isalnum())


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@given(texts, options)
@settings(deadline=None, max_examples=400)
@example("Hello.[pause 1s]" + " " * 301, ScriptOptions())
def test_a_plan_is_made_of_what_can_be_said_or_refused(text: str, wanted: ScriptOptions) -> None:
    if "[pause 99s]" in text and not wanted.clean:
        with pytest.raises(RequestError, match="pause lasts"):
            plan_utterances(text, wanted)
    for part in plan_utterances(text.replace("99", "9"), wanted):
        assert isinstance(part, Pause) or wanted.is_speakable(part)
        assert isinstance(part, Pause) or wanted.max_chars is None or len(part) <= wanted.max_chars


@given(texts, options)
@settings(deadline=None, max_examples=300)
def test_no_letter_is_lost_or_moved(text: str, wanted: ScriptOptions) -> None:
    text = text.replace("[pause", "[paus").encode("utf-8", "ignore").decode()
    wanted = replace(wanted, clean=False, normalize=False, keep_emoji=True)
    plan = plan_utterances(text, wanted)
    assert letters("".join(part for part in plan if isinstance(part, str))) == letters(text)
    events = read([text], wanted)
    assert letters("".join(event for event in events if isinstance(event, str))) == letters(text)


@given(texts, options, places)
@settings(deadline=None, max_examples=400)
def test_live_text_is_the_same_in_any_pieces(
    text: str, wanted: ScriptOptions, places: list[int]
) -> None:
    wanted = replace(wanted, clean=False)
    assert read(cut(text, places), wanted) == read(list(text), wanted) == read([text], wanted)


@given(texts, options)
@settings(deadline=None, max_examples=300)
def test_a_short_live_text_is_the_whole_text(text: str, wanted: ScriptOptions) -> None:
    text = text.encode("utf-8", "ignore").decode().replace("[pause 99s]", "")
    wanted = replace(wanted, clean=False, max_chars=None)
    said = [event for event in read(list(text), wanted) if isinstance(event, str)]
    spoken = [part for part in said if wanted.is_speakable(part)]
    plan = plan_utterances(text, wanted)
    assert [part for part in plan if isinstance(part, str)] == spoken


@given(texts)
@settings(deadline=None, max_examples=300)
def test_cleaning_raises_nothing(text: str) -> None:
    clean_text(text)
    read(list(text), ScriptOptions(clean=True, normalize=True))


@pytest.mark.parametrize("unit", ["\x1c", "\x85", "\u2028", "\u3000"])
def test_every_kind_of_space_is_space(unit: str) -> None:
    text = unit * 400 + "Hello." + unit * 400 + "[pause 1s]" + unit * 400
    said = [part for part in plan_utterances(text, ScriptOptions()) if isinstance(part, str)]
    assert [part.strip() for part in said] == ["Hello."]
