"""Tests of strings with source spans, alone and through the text pipeline."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.text_stages import cut, read_events, spoken_words
from tests.text.test_pipeline_properties import options, places, texts
from vivace.text.lexicon import Lexicon
from vivace.text.options import ScriptOptions
from vivace.text.spans import GROUP_1, SpannedText, join, rewrite, split, substitute
from vivace.text.written_words import WrittenWords

LEXICON = Lexicon.of({"word": "words and more", "a b": "bee", "B": "[spell: BB]"}).tries("english")
SOURCE = SpannedText.read("one, two three", 100)


def spans_of(text: str) -> list[tuple[int, int]]:
    assert isinstance(text, SpannedText)
    return list(text.spans)


@given(texts, options, places, st.booleans())
@examples(400)
@example("**Bo**ld [a link](http://a.b/c) 😀 $5.50 on Dec. 25, 2024", ScriptOptions(), [3], False)
def test_texts_of_the_pipeline_have_source_spans_in_order(
    text: str, wanted: ScriptOptions, places: list[int], has_lexicon: bool
) -> None:
    wanted = replace(wanted, lexicon=LEXICON if has_lexicon else ())
    words = WrittenWords()
    events = read_events(cut(text, places), wanted, words)
    assert events == read_events([text], wanted)  # spans do not change the text
    spans: list[tuple[int, int]] = []
    for event in events:
        if isinstance(event, SpannedText):
            spans += event.spans
        else:
            assert not isinstance(event, str) or not any(map(str.isalnum, event))
    assert spans == sorted(spans, key=lambda span: span[0])
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    found = [word for word, _ in spoken_words(words, (e for e in events if isinstance(e, str)))]
    assert all(one.end <= following.start for one, following in itertools.pairwise(found))


@given(texts, options, places)
@examples(400)
def test_unchanged_text_equals_its_source(
    text: str, wanted: ScriptOptions, places: list[int]
) -> None:
    # Without surrogates, which are joined, and without pauses that are left out.
    text = text.replace("99", "9").encode("utf-8", "ignore").decode()
    wanted = replace(wanted, normalize=False, letter_names={})
    words = WrittenWords()
    events = read_events(cut(text, places), wanted, words)
    for event in (one for one in events if isinstance(one, SpannedText)):
        for character, (start, end) in zip(event, event.spans, strict=True):
            assert not character.isalnum() or text[start:end] == character
    spoken = spoken_words(words, (one for one in events if isinstance(one, str)))
    for word, letters in spoken:
        assert "".join(filter(str.isalnum, word.text)) == letters
        if wanted.keep_emoji and not wanted.clean:  # nothing is removed inside words
            assert text[word.start : word.end] == word.text


def test_slices_and_stripped_text_keep_their_spans() -> None:
    assert SOURCE[5:8].span == (105, 108)
    assert (SOURCE[4], SOURCE[-1].span) == (" ", (113, 114))
    stripped = SOURCE[4:9].strip()
    assert (stripped, stripped.span) == ("two", (105, 108))


def test_added_plain_text_has_an_empty_span_at_its_place() -> None:
    assert spans_of("(" + SOURCE[5:6] + ")") == [(105, 105), (105, 106), (106, 106)]
    assert spans_of(join(["a", SOURCE[:1], SOURCE[5:6]], "-")) == [
        *[(100, 100)] * 2,
        (100, 101),
        (101, 101),
        (105, 106),
    ]
    assert type(join(["a", "b"])) is str


def test_split_parts_keep_their_spans() -> None:
    parts = split(SOURCE, " ")
    assert parts == ["one,", "two", "three"]
    assert [spans_of(part)[0] for part in parts] == [(100, 101), (105, 106), (109, 110)]


def test_substitution_keeps_groups_and_slices_and_gives_other_text_the_span_of_its_match() -> None:
    bracketed = SpannedText.read("a [b] c", 0)
    pattern = re.compile(r"\[(\w)\]")
    assert spans_of(substitute(pattern, GROUP_1, bracketed))[2] == (3, 4)
    assert spans_of(substitute(pattern, "x", bracketed))[2] == (2, 5)
    assert substitute(pattern, lambda match: match.string[3:4], bracketed) == "a b c"
    assert spans_of(substitute(pattern, lambda match: match.string[3:4], bracketed))[2] == (3, 4)
    assert substitute(pattern, "x", "a [b] c [d]", 1) == "a x c [d]"


def test_rewritten_words_share_the_spans_of_the_old_words() -> None:
    old = SOURCE[5:]  # "two three"
    assert set(spans_of(rewrite(old[:3], "number two"))) == {(105, 108)}
    assert spans_of(rewrite(old, "2 3")) == [(105, 108), (109, 114), (109, 114)]
    counts = {"two": 1, "three": 3}
    new = rewrite(old, "a b c d", counts.__getitem__)
    assert [spans_of(new)[place] for place in (0, 2, 4, 6)] == [(105, 108), *[(109, 114)] * 3]
    assert rewrite("plain", "text") == "text"
