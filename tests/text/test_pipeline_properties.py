"""Property tests of the text pipeline with any text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.text_stages import cut, plan_utterances, read_events
from vivace.errors import RequestError
from vivace.text.lexicon import Lexicon
from vivace.text.markup import remove_markup
from vivace.text.options import ScriptOptions
from vivace.text.pauses import Pause
from vivace.text.pipeline import is_one_utterance

UNITS = [
    *("a", "B", "word", "7", "é", "e\u0301", "字", "は", "한", "Ж", "ש"),
    *("\u0301", "\u200d", "\u200b"),
    *(" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u2029", " " * 70, " " * 400, "\xa0"),
    *(". ", ".", "...", "?!", "。", "！", "…", ", ", "，", ";", ":", "—", "-", "(", ")", '"', "'"),
    *("[", "]", "[pause", "[pause 1s]", "[pause 500ms]", "[pause 99s]", "[Pause/Break]", "[pause]"),
    *(
        "*",
        "**",
        "_",
        "`",
        "# ",
        "- ",
        "1. ",
        "> ",
        "|",
        "<",
        ">",
        "<b>",
        "<!--",
        "-->",
        "](",
        "[x](y)",
        "www.a",
    ),
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
    packing=st.sampled_from(["words", "sentences", "whole"]),
    plain_breaks=st.booleans(),
    paragraph_s=st.sampled_from([None, 0.9]),
    letter_names=st.sampled_from([{}, {"A": "eh"}]),
    min_chars=st.sampled_from([0, 8]),
)
places = st.lists(st.integers(0, 10_000), max_size=8)


def letters(text: str) -> str:
    return "".join(letter for letter in text if letter.isalnum())


@given(texts, options)
@examples(400)
@example("Hello.[pause 1s]" + " " * 301, ScriptOptions())
def test_known_text_gives_speakable_utterances_or_a_request_error(
    text: str, wanted: ScriptOptions
) -> None:
    if "[pause 99s]" in text and not wanted.clean:
        with pytest.raises(RequestError, match="pause lasts"):
            plan_utterances(text, wanted)
    text = text.replace("99", "9").encode("utf-8", "ignore").decode()  # without lone surrogates
    for part in plan_utterances(text, wanted):
        assert isinstance(part, Pause) or wanted.is_speakable(part)
        assert isinstance(part, Pause) or wanted.max_chars is None or len(part) <= wanted.max_chars


@given(texts, options)
@examples(300)
def test_every_letter_stays_in_order(text: str, wanted: ScriptOptions) -> None:
    text = text.replace("[pause", "[paus").encode("utf-8", "ignore").decode()
    wanted = replace(wanted, clean=False, normalize=False, keep_emoji=True)
    plan = plan_utterances(text, wanted)
    assert letters("".join(part for part in plan if isinstance(part, str))) == letters(text)
    events = read_events([text], wanted)
    assert letters("".join(event for event in events if isinstance(event, str))) == letters(text)


@given(texts, options, places)
@examples(400)
def test_live_text_in_any_pieces_gives_the_same_events(
    text: str, wanted: ScriptOptions, places: list[int]
) -> None:
    assert (
        read_events(cut(text, places), wanted)
        == read_events(list(text), wanted)
        == read_events([text], wanted)
    )


@given(texts, options)
@examples(300)
def test_unsplit_live_text_matches_the_known_text(text: str, wanted: ScriptOptions) -> None:
    text = text.encode("utf-8", "ignore").decode().replace("[pause 99s]", "")
    wanted = replace(wanted, clean=False, max_chars=None, packing="words", paragraph_s=None)
    wanted = replace(wanted, plain_breaks=False)
    said = [event for event in read_events(list(text), wanted) if isinstance(event, str)]
    spoken = [part for part in said if wanted.is_speakable(part)]
    plan = plan_utterances(text, wanted)
    assert [part for part in plan if isinstance(part, str)] == spoken


@given(texts)
@examples(300)
def test_cleaning_any_text_does_not_raise(text: str) -> None:
    remove_markup(text)
    read_events(list(text), ScriptOptions(clean=True, normalize=True))


@pytest.mark.parametrize("unit", ["\x1c", "\x85", "\u2028", "\u3000"])
def test_every_kind_of_white_space_is_stripped(unit: str) -> None:
    text = unit * 400 + "Hello." + unit * 400 + "[pause 1s]" + unit * 400
    said = [part for part in plan_utterances(text, ScriptOptions()) if isinstance(part, str)]
    assert [part.strip() for part in said] == ["Hello."]


plain_texts = st.text(st.sampled_from([*map(chr, range(32, 127)), "é", "\n", "\t"]), max_size=40)


@given(plain_texts, options)
@examples(400)
@example(" Hello. It is 5 o'clock!  Yes. ", ScriptOptions(packing="whole"))
@example(" Hello. It is 5 o'clock! ", ScriptOptions(packing="whole", paragraph_s=0.9))
@example("- one. 2) two", ScriptOptions(packing="whole", max_chars=None))
@example("...", ScriptOptions(packing="whole"))
def test_text_known_as_one_utterance_is_not_changed_by_the_pipeline(
    text: str, wanted: ScriptOptions
) -> None:
    if is_one_utterance(text, wanted):
        assert plan_utterances(text, wanted) == [text]


def test_short_plain_text_is_known_as_one_utterance() -> None:
    known = ScriptOptions(packing="whole", paragraph_s=0.5, max_chars=60)
    text = "The old clock struck nine, and everybody (at once) looked up."
    assert is_one_utterance(text[:60], known)
    assert not is_one_utterance(text[:60], replace(known, max_chars=59))
    assert not is_one_utterance(text[:60], replace(known, packing="words"))
    for changed in ("Wait [pause 1s] here.", "Two\nlines.", "Two  spaces.", "Café.", "...", ""):
        assert not is_one_utterance(changed, known)
    for rewriting in (
        replace(known, normalize=True),
        replace(known, clean=True),
        replace(known, plain_breaks=True),
        replace(known, min_chars=10),
        replace(known, letter_names={"A": "eh"}),
        replace(known, lexicon=Lexicon.of({"clock": "klok"}).tries("english")),
    ):
        assert not is_one_utterance(text[:60], rewriting)
