"""Tests of the trace from spoken text to written words."""

from __future__ import annotations

import pytest

from tests.support.text_stages import plan_texts, spoken_words
from vivace.errors import RequestError
from vivace.script.parts import PartReader, SpokenText, UtteranceText
from vivace.script.script import plan_parts
from vivace.text.letters import Letters
from vivace.text.lexicon import Lexicon
from vivace.text.normalize import normalize_text
from vivace.text.options import Packing, ScriptOptions
from vivace.text.pauses import Pause
from vivace.text.trace import Trace, WrittenWord

OPTIONS = ScriptOptions(max_chars=60, normalize=True)


def new_trace() -> Trace:
    return Trace(count_words=lambda word: len(normalize_text(word).split()))


Spoken = tuple[str, str, tuple[int, int]]


def places(words: list[tuple[WrittenWord, str]]) -> list[Spoken]:
    """Each written word with its spoken letters and its place."""
    return [(word.text, letters, (word.start, word.end)) for word, letters in words]


def known(text: str, options: ScriptOptions = OPTIONS) -> list[Spoken]:
    trace = new_trace()
    return places(spoken_words(trace, plan_texts(text, options, trace)))


def open_reader(options: ScriptOptions, trace: Trace) -> PartReader:
    letters = Letters.of(["english"])
    return PartReader(options, letters, RequestError, skips_letters=True, trace=trace)


def live(text: str, size: int, options: ScriptOptions = OPTIONS) -> list[str]:
    """The written words that are spoken for a text in pieces."""
    trace = new_trace()
    reader = open_reader(options, trace)
    texts: list[SpokenText] = []
    for start in range(0, len(text), size):
        reader.feed(text[start : start + size])
    reader.finish()
    while (part := reader.next_part()) is not None:
        texts += [part.take_all()] if isinstance(part, UtteranceText) else []
    found = places(spoken_words(trace, texts))
    for word, _, (start, end) in found:
        assert text[start:end] == word
    return [word for word, _, _ in found]


def test_normalized_words_map_to_written_words() -> None:
    text = "Dr. Smith paid $5.50 on Dec. 25, 2024 for 3 kg."
    found = known(text)
    assert [word for word, _, _ in found] == text.split()
    assert all(text[start:end] == word for word, _, (start, end) in found)
    said = {word: words for word, words, _ in found}
    assert said["Dr."] == "Doctor"
    assert said["$5.50"] == "fivedollarsandfiftycents"
    assert said["Dec."] == "December"
    assert said["25,"] == "twentyfifth"
    assert said["2024"] == "twentytwentyfour"
    assert said["kg."] == "kilograms"


def test_marks_and_emoji_are_not_words() -> None:
    text = "So [pause 0.5s] so 🍎 s. A[pause 1s]B — c"
    assert [(word, text[s:e]) for word, _, (s, e) in known(text)] == [
        (word, word) for word in ("So", "so", "s.", "A", "B", "c")
    ]


def test_repeated_word_has_several_places() -> None:
    text = "No no  no,\n\nno. Nobody no"
    assert [s for _, _, (s, _) in known(text)] == [0, 3, 7, 12, 16, 23]


def test_cleaned_markdown_maps_to_written_words() -> None:
    options = ScriptOptions(clean=True)
    text = "# Title\n\n**Bold** and [link me](http://example.com/link/me) me."
    found = known(text, options)
    assert [word for word, _, _ in found] == ["Title", "Bold", "and", "link", "me", "me."]
    assert [text[s:e] for _, _, (s, e) in found] == [word for word, _, _ in found]
    assert found[-1][2] == (len(text) - 3, len(text))


def test_script_without_spaces_has_words_of_one_character() -> None:
    found = known("你好，world 世界。", ScriptOptions())
    assert [word for word, _, _ in found] == ["你", "好，", "world", "世", "界。"]


def test_respelled_words_and_marks_map_to_written_words() -> None:
    lexicon = Lexicon.of({"nguyen": "win", "New York": "noo yawk city", "SQL": "sequel"})
    options = ScriptOptions(normalize=True, lexicon=lexicon.tries("english"))
    text = 'A "Nguyen\'s" SQL in New York, [spell: NASA] spell [digits: 42] 42.'
    found = known(text, options)
    assert [(word, said) for word, said, _ in found] == [
        ("A", "A"),
        ('"Nguyen\'s"', "Wins"),
        ("SQL", "Sequel"),
        ("in", "in"),
        ("New", "Nooyawk"),
        ("York,", "city"),
        ("NASA", "NASA"),
        ("spell", "spell"),
        ("42", "fourtwo"),
        ("42.", "fortytwo"),
    ]
    assert [text[s:e] for _, _, (s, e) in found] == [word for word, _, _ in found]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("normalize", [True, False])
def test_live_text_maps_to_written_words_like_known_text(size: int, normalize: bool) -> None:
    text = (
        "Dr. Smith paid $5.50 on Dec. 25, 2024 [pause 1s] for 3 kg of (red) apples! It was "
        "well-known, he said... Then 🍎 they left. * * * And so on, for a while, he went, until."
    )
    options = ScriptOptions(max_chars=40, normalize=normalize)
    written = [word for word in text.replace("[pause 1s]", "").split() if word[0].isascii()]
    assert [word for word in live(text, size, options) if word != "*"] == [
        word for word in written if word != "*"
    ]


@pytest.mark.parametrize("packing", ["words", "sentences", "whole"])
def test_left_out_letters_do_not_shift_later_words(packing: Packing) -> None:
    text = "Мир and you. ... Мир и мир! You and us."
    trace = new_trace()
    reader = open_reader(ScriptOptions(max_chars=20, packing=packing), trace)
    texts = plan_parts(text, reader)
    words = [word.text for word, _ in spoken_words(trace, texts)]
    assert words == ["and", "you.", "You", "and", "us."]
    assert reader.skipped == ["Мир", "Мир", "и", "мир"]


def test_skipped_utterance_does_not_shift_later_words() -> None:
    trace = new_trace()
    reader = open_reader(ScriptOptions(packing="sentences"), trace)
    reader.feed("You and me. You and us.")
    reader.finish()
    assert isinstance(reader.next_part(), UtteranceText)  # not read
    assert isinstance(reader.next_part(), Pause)
    last = reader.next_part()
    assert isinstance(last, UtteranceText)
    [first, *_] = spoken_words(trace, [last.take_all()])
    assert (first[0].text, first[0].start) == ("You", 12)


def test_normalized_words_are_shared_among_written_words() -> None:
    trace = new_trace()
    trace.give("1/2 cup")
    trace.read("1/2 cup", "1/2 cup")
    trace.say("1/2 cup", "half a cup")
    words = [trace.word(owner).text for owner in trace.take("half a cup")]
    assert words == ["1/2"] * 5 + ["cup"] * 3


@pytest.mark.ci
def test_long_text_is_traced_in_linear_time() -> None:
    text = "word " * 20_000
    trace = new_trace()
    trace.give(text)
    trace.read(text, text)
    trace.say(text, text)
    assert trace.word(trace.take(text)[-1]).start == len(text) - 5
