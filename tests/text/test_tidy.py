"""Tests of the first stage: surrogate pairs and white space."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.text.tidy import MAX_SPACES, Tidier


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
def test_surrogate_pair_split_across_pieces_is_joined(pieces: list[str]) -> None:
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
def test_lone_surrogate_is_left_out_and_reported(pieces: list[str], text: str) -> None:
    found, error = tidy(pieces)
    assert found == text
    assert "half of a surrogate pair (U+D83E)" in error or "(U+DE86)" in error


def test_white_space_is_limited() -> None:
    many, enough = "a" + " \n" * 500 + "b", "a" + " " * MAX_SPACES + "b"
    assert tidy([many]) == ("a" + " \n" * (MAX_SPACES // 2) + "b", "")
    assert tidy([enough]) == (enough, "")


@given(st.lists(st.sampled_from(["a", " ", "\n" * 40, " " * 63, "b " * 3, "\t"]), max_size=30))
def test_tidier_in_any_pieces_gives_the_same_result(pieces: list[str]) -> None:
    text = "".join(pieces)
    limited = re.sub(rf"(\s{{{MAX_SPACES}}})\s+", r"\1", text)
    assert tidy(pieces) == tidy(list(text)) == (limited, "")
