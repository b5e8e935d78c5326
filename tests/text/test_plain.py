"""Tests of plain utterances: ellipses, quotation marks and final full stops."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.text_stages import plain_text, plan_utterances, written_words
from vivace.text.options import ScriptOptions
from vivace.text.packing import Cut
from vivace.text.pauses import Pause
from vivace.text.pipeline import TextPipeline
from vivace.text.plain import PlainRules, PlainText

RULES = PlainRules(drops_ellipsis=True)
PLAIN = ScriptOptions(
    max_chars=120, min_chars=8, plain_breaks=True, plain=RULES, seam_s=0.5, paragraph_s=0.9
)
ENDED = replace(PLAIN, plain=PlainRules(end_stop=True))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Wait... what?", "Wait, what?"),
        ("Wait… what?", "Wait, what?"),
        ("Wait.. what?", "Wait, what?"),
        ("Wait . . . what?", "Wait, what?"),
        ("Wait...what?", "Wait, what?"),
        ("I waited a while… Then I left.", "I waited a while. Then I left."),
        ("“Wait…” he said.", "“Wait,” he said."),
        ("I do not know…", "I do not know."),
        ("...and so on", "and so on"),
        ("Really…?", "Really?"),
        ("Dr. Wu paid 3.50 (in coins).", "Dr. Wu paid 3.50 (in coins)."),
    ],
)
def test_ellipsis_becomes_a_comma_before_a_small_letter_and_else_a_full_stop(
    text: str, said: str
) -> None:
    assert plain_text(text, RULES) == said
    assert plan_utterances(text, PLAIN) == [said]


def test_ellipsis_stays_without_drops_ellipsis() -> None:
    text = "Wait… what?"
    assert plain_text(text, PlainRules()) == text
    assert plan_utterances(text, replace(PLAIN, plain=PlainRules())) == [text]


def test_sentence_shorter_than_min_chars_is_its_own_utterance() -> None:
    seam = Pause(0.5)
    assert plan_utterances("Well. Maybe.", PLAIN) == ["Well.", seam, "Maybe."]
    assert plan_utterances("Well now. Maybe.", PLAIN) == ["Well now. Maybe."]  # 9 characters
    assert plan_utterances("Well no. Maybe.", PLAIN) == ["Well no. Maybe."]  # 8 characters
    assert plan_utterances("Well n. Maybe.", PLAIN) == ["Well n.", seam, "Maybe."]
    assert plan_utterances("It was late. No. We left.", PLAIN) == ["It was late. No. We left."]
    assert plan_utterances("Well. Maybe.", replace(PLAIN, min_chars=0)) == ["Well. Maybe."]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("You", "You."),
        ("You!", "You!"),
        ("He said “no”", "He said “no”."),
        ("one, two,", "one, two,"),
        ("I am here ", "I am here."),
    ],
)
def test_utterance_that_ends_with_a_word_gets_a_full_stop(text: str, said: str) -> None:
    assert plan_utterances(text, ENDED) == [said]
    assert plan_utterances(text, PLAIN) == [text.strip()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('He said "yes" and left.', "He said yes and left."),
        ("“Good night!” he said.", "Good night! he said."),
        ("The 'word' isn't long.", "The word isn't long."),
        ("The dogs' bones, rock 'n' roll", "The dogs bones, rock n roll"),
        ("It’s one”two", "It’s one two"),
    ],
)
def test_drops_quotes_removes_quotation_marks_and_keeps_apostrophes(text: str, said: str) -> None:
    rules = PlainRules(drops_quotes=True)
    assert plain_text(text, rules) == said
    plain = PlainText(rules)
    assert "".join([*map(plain.feed, text), plain.finish()]) == said


def test_utterance_that_ends_inside_a_sentence_gets_no_full_stop() -> None:
    words = "word " * 12
    options = replace(ENDED, max_chars=30)
    said = [part for part in plan_utterances(words, options) if isinstance(part, str)]
    assert "".join(said).count(".") == 1
    assert said[-1].endswith("word.")
    reader = TextPipeline(replace(options, packing="sentences"))
    events = [*reader.feed(words), *reader.finish()]
    assert "".join("|" if isinstance(one, Cut) else str(one) for one in events) == (
        "|".join([*said, ""])
    )


def test_words_keep_their_places_when_an_ellipsis_is_replaced() -> None:
    words = written_words("Wait… what? Oh… no", replace(PLAIN, min_chars=0))
    assert words == ["Wait…", "what?", "Oh…", "no"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("They met at five P M. Then they left.", "They met at five P M; Then they left."),
        ("“Plan B.” It worked.", "Plan B; It worked."),
        ("Vitamin C. Mr. Wu is here. OK. A", "Vitamin C; Mr. Wu is here. OK. A"),
        ("The U S. is large", "The U S. is large"),
        ("I choose plan B.", "I choose plan B."),
    ],
)
def test_full_stop_after_a_letter_becomes_a_semicolon(text: str, said: str) -> None:
    """The embedded voice reads "P M. Then" as initials of a name, without a pause."""
    rules = PlainRules(drops_quotes=True, parts_letters=True)
    assert plain_text(text, rules) == said
    plain = PlainText(rules)
    assert "".join(map(plain.feed, text)) + plain.finish() == said
