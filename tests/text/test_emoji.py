"""Tests of the removal of emoji."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.text_stages import plan_utterances
from vivace.text.emoji import EMOJI, EmojiDropper, drop_emoji
from vivace.text.options import ScriptOptions
from vivace.text.pipeline import TextPipeline

CASES = {
    "between words": ("Hello 🙂 world", "Hello world"),
    "without spaces": ("Hello🙂world", "Hello world"),
    "at the start": ("🙂 Hello", "Hello"),
    "at the end": ("Hello 🙂", "Hello"),
    "before a stop": ("Well done 👏.", "Well done."),
    "before a line end": ("x 🙂\ny", "x\ny"),
    "several": ("Hi 👍🏽👍🏽 👍🏽 you", "Hi you"),
    "after a comma": ("a, 🙂b", "a, b"),
    "a family of joiners": ("Meet 👩‍👩‍👧 now", "Meet now"),
    "a sign made of two": ("🏃‍♂️ runs", "runs"),
    "flags": (
        "From 🇩🇪 to 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        "From to",
    ),
    "a heart with a selector": ("I ❤️ you", "I you"),
    "keycaps leave their key": ("Press 1️⃣ or #️⃣ or *️⃣", "Press 1 or # or *"),
    "signs with a selector": ("©️ 2024 ™️ ®️", "© 2024 ™ ®"),
    "digits and signs": ("#1 * 2 = 3 © ® ™", "#1 * 2 = 3 © ® ™"),
    "signs that are no emoji": ("C♯ ♪ ✓ → ½ № ℃ ★", "C♯ ♪ ✓ → ½ № ℃ ★"),
    "joined letters": ("क्\u200dष", "क्\u200dष"),
    "new ones": ("new 🫩 emoji", "new emoji"),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_drop_emoji_removes_emoji_and_keeps_similar_signs(text: str, expected: str) -> None:
    assert drop_emoji(text) == expected
    dropper = EmojiDropper()
    assert "".join(map(dropper.feed, text)) + dropper.finish() == expected


@given(
    st.text(alphabet="a1 .\n🙂👍🏽‍️⃣🇩,©\u200d\xa0", max_size=20),
    st.lists(st.integers(0, 20), max_size=4),
)
@examples(300)
def test_emoji_dropper_in_any_pieces_matches_the_whole_text(text: str, places: list[int]) -> None:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    dropper = EmojiDropper()
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert "".join(map(dropper.feed, pieces)) + dropper.finish() == drop_emoji(text)
    assert dropper.feed("a") == "a"


@given(st.text(max_size=30))
@examples(200)
def test_drop_emoji_keeps_letters_and_digits(text: str) -> None:
    kept = "".join(c for c in text if c.isalnum())
    assert "".join(c for c in drop_emoji(text) if c.isalnum()) == kept


@pytest.mark.parametrize("text", ["**Done** ✅ now 🎉", "- 👍🏽 yes\n- 👩‍🚀 no", "A ☑ and ❤️."])
@pytest.mark.parametrize("is_live", [False, True])
def test_cleaned_text_keeps_emoji_with_keep_emoji(text: str, is_live: bool) -> None:
    def read(keep_emoji: bool) -> str:
        options = ScriptOptions(clean=True, keep_emoji=keep_emoji)
        if not is_live:
            return "".join(part for part in plan_utterances(text, options) if isinstance(part, str))
        reader = TextPipeline(options)
        events = [event for one in text for event in reader.feed(one)] + reader.finish()
        return "".join(event for event in events if isinstance(event, str))

    assert EMOJI.findall(read(keep_emoji=True)) == EMOJI.findall(text) != []
    assert EMOJI.findall(read(keep_emoji=False)) == []
    assert "*" not in read(keep_emoji=True)
