"""Tests of the written words that spoken text stands for."""

from __future__ import annotations

import pytest

from tests.support.text_stages import plan_utterances, spoken_words
from vivace.errors import RequestError
from vivace.script.parts import PartReader, UtteranceText
from vivace.script.script import plan_parts
from vivace.text.letters import Letters
from vivace.text.lexicon import Lexicon
from vivace.text.options import Packing, ScriptOptions
from vivace.text.pauses import Pause
from vivace.text.written_words import WrittenWord, WrittenWords

OPTIONS = ScriptOptions(max_chars=60, normalize=True)


Spoken = tuple[str, str, tuple[int, int]]


def places(words: list[tuple[WrittenWord, str]]) -> list[Spoken]:
    """Each written word with its spoken letters and its place."""
    return [(word.text, letters, (word.start, word.end)) for word, letters in words]


def known(text: str, options: ScriptOptions = OPTIONS) -> list[Spoken]:
    words = WrittenWords()
    return places(spoken_words(words, plan_utterances(text, options, words)))


def open_reader(options: ScriptOptions, words: WrittenWords) -> PartReader:
    letters = Letters.of(["english"])
    return PartReader(options, letters, RequestError, skips_letters=True, words=words)


def live(text: str, size: int, options: ScriptOptions = OPTIONS) -> list[str]:
    """The written words that are spoken for a text in pieces."""
    words = WrittenWords()
    reader = open_reader(options, words)
    texts: list[str] = []
    for start in range(0, len(text), size):
        reader.feed(text[start : start + size])
    reader.finish()
    while (part := reader.next_part()) is not None:
        texts += [part.take_all()] if isinstance(part, UtteranceText) else []
    found = places(spoken_words(words, texts))
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
    words = WrittenWords()
    reader = open_reader(ScriptOptions(max_chars=20, packing=packing), words)
    texts = plan_parts(text, reader)
    assert [word.text for word, _ in spoken_words(words, texts)] == [
        "and",
        "you.",
        "You",
        "and",
        "us.",
    ]
    assert reader.skipped == ["Мир", "Мир", "и", "мир"]


def test_skipped_utterance_does_not_shift_later_words() -> None:
    words = WrittenWords()
    reader = open_reader(ScriptOptions(packing="sentences"), words)
    reader.feed("You and me. You and us.")
    reader.finish()
    assert isinstance(reader.next_part(), UtteranceText)  # not read
    assert isinstance(reader.next_part(), Pause)
    last = reader.next_part()
    assert isinstance(last, UtteranceText)
    [first, *_] = spoken_words(words, [last.take_all()])
    assert (first[0].text, first[0].start) == ("You", 12)


@pytest.mark.ci
def test_long_text_is_traced_in_linear_time() -> None:
    text = "word " * 20_000
    words = WrittenWords()
    texts = plan_utterances(text, OPTIONS, words)
    last, _ = spoken_words(words, texts)[-1]
    assert last.start == len(text) - 5
