"""Tests of the trace from spoken text to written words."""

from __future__ import annotations

import pytest

from tests.support.text_stages import plan_utterances
from vivace.text.lexicon import Lexicon
from vivace.text.normalize import normalize_text
from vivace.text.options import ScriptOptions
from vivace.text.pauses import Pause
from vivace.text.pipeline import TextPipeline
from vivace.text.trace import NO_WORD, Trace

OPTIONS = ScriptOptions(max_chars=60, normalize=True)


def new_trace() -> Trace:
    return Trace(count_words=lambda word: len(normalize_text(word).split()))


def spoken_for(trace: Trace, lines: list[str]) -> list[tuple[str, str, tuple[int, int]]]:
    """Each written word with its spoken letters and its place."""
    said: dict[int, str] = {}
    for line in lines:
        for character, owner in zip(line, trace.match(line, is_start=True), strict=True):
            if owner != NO_WORD and (character.isalnum() or owner in said):
                said[owner] = said.get(owner, "") + character
    found = []
    for owner, text in sorted(said.items()):
        word = trace.word(owner)
        found.append((word.text, text, (word.start, word.end)))
    return found


def known(text: str, options: ScriptOptions = OPTIONS) -> list[tuple[str, str, tuple[int, int]]]:
    trace = new_trace()
    plan = plan_utterances(text, options, trace)
    return spoken_for(trace, [part for part in plan if not isinstance(part, Pause)])


def live(text: str, size: int, options: ScriptOptions = OPTIONS) -> list[str]:
    """The written words that are spoken for a text in pieces."""
    trace, lines = new_trace(), [""]
    reader, events = TextPipeline(options, trace), []
    for start in range(0, len(text), size):
        trace.give(text[start : start + size])
        events += reader.feed(text[start : start + size])
    for event in events + reader.finish():
        if isinstance(event, str):
            lines[-1] += event
        else:
            lines.append("")
    found = spoken_for(trace, [line for line in lines if line])
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
    assert said["25,"] == "twenty-fifth,"
    assert said["2024"] == "twentytwenty-four"
    assert said["kg."] == "kilograms."


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
        ('"Nguyen\'s"', "Win's\""),
        ("SQL", "Sequel"),
        ("in", "in"),
        ("New", "Nooyawk"),
        ("York,", "city,"),
        ("NASA", "NASA"),
        ("spell", "spell"),
        ("42", "fourtwo"),
        ("42.", "forty-two."),
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


def test_left_out_text_does_not_shift_later_words() -> None:
    trace = new_trace()
    trace.read("... you and me. You and us.", "... you and me. You and us.")
    trace.say("... you and me. You and us.", "... you and me. You and us.")
    assert spoken_for(trace, ["You and us."])[0][0] == "You"


def test_normalized_words_are_shared_among_written_words() -> None:
    trace = new_trace()
    trace.give("1/2 cup")
    trace.read("1/2 cup", "1/2 cup")
    trace.say("1/2 cup", "half a cup")
    assert [(word, said) for word, said, _ in spoken_for(trace, ["half a cup"])] == [
        ("1/2", "halfa"),
        ("cup", "cup"),
    ]


@pytest.mark.ci
def test_long_text_is_traced_in_linear_time() -> None:
    text = "word " * 20_000
    trace = new_trace()
    trace.give(text)
    trace.read(text, text)
    trace.say(text, text)
    owners = trace.match(text, is_start=True)
    assert trace.word(owners[-2]).start == len(text) - 5
