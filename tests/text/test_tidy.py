"""Halves of characters are put together or left out, and white space is not endless."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.text.tidy import MAX_SPACES, Tidier, tidy_text


def tidy(pieces: list[str]) -> tuple[str, str]:
    tidier = Tidier()
    text = "".join(map(tidier.feed, pieces))
    tidier.finish()
    return text, str(tidier.error or "")


@pytest.mark.parametrize(
    "pieces",
    [
        ["so \ud83e", "\ude86🙂!"],
        ["so \ud83e", "", "\ude86\ud83d", "\ude42", "!"],
        ["so \ud83e\ude86\ud83d\ude42!"],
    ],
)
def test_the_halves_of_a_character_may_come_in_two_pieces(pieces: list[str]) -> None:
    assert tidy(pieces) == ("so 🪆🙂!", "")


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["so \ud83e"], "so "),
        (["so \ud83e", "!"], "so !"),
        (["so ", "\ude86"], "so "),
        (["\ud83e", "\ud83e", "\ude86"], "🪆"),
        (["\ude86\ud83e"], ""),
    ],
)
def test_half_a_character_that_stays_alone_is_left_out_and_remembered(
    pieces: list[str], text: str
) -> None:
    found, error = tidy(pieces)
    assert found == text
    assert "half of a surrogate pair (U+D83E)" in error or "(U+DE86)" in error


def test_white_space_of_any_length_is_a_little() -> None:
    assert tidy_text("a" + " \n" * 500 + "b") == "a" + " \n" * (MAX_SPACES // 2) + "b"
    assert tidy_text("a" + " " * MAX_SPACES + "b") == "a" + " " * MAX_SPACES + "b"


@given(st.lists(st.sampled_from(["a", " ", "\n" * 40, " " * 63, "b " * 3, "\t"]), max_size=30))
def test_any_pieces_give_the_same_result(pieces: list[str]) -> None:
    assert tidy(pieces) == (tidy_text("".join(pieces)), "")
    assert tidy(list("".join(pieces))) == (tidy_text("".join(pieces)), "")
