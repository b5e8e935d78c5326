"""Tests of the respelling of letters in spelled words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.text_stages import cut, plan_utterances, written_words
from vivace.errors import CheckpointError
from vivace.model.config import ReadingConfig
from vivace.text.letter_names import LetterNames
from vivace.text.options import ScriptOptions

NAMES = {"A": "eh"}
OPTIONS = ScriptOptions(normalize=True, letter_names=NAMES)


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("AI wrote it.", "Eh I wrote it."),
        ("The AI wrote it. AI!", "The eh I wrote it. Eh I!"),
        ("Two AIs at 9 A.M.", "Two eh I's at nine eh M."),
        ("The USA, plan A. I know.", "The U S eh, plan A. I know."),
        ("An MA, a BA's.", "An M eh, a B eh's."),
        ("A cat. A, B. [spell: AB]", "A cat. A, B. Eh B"),
    ],
)
def test_letter_beside_another_letter_is_respelled(text: str, spoken: str) -> None:
    assert plan_utterances(text, OPTIONS) == [spoken]


@given(st.text(alphabet="AIx 's.-\n", max_size=30), st.lists(st.integers(0, 30), max_size=6))
def test_letter_names_in_any_pieces_are_the_same(text: str, places: list[int]) -> None:
    stage = LetterNames(NAMES)
    whole = stage.feed(text) + stage.finish()
    assert "".join(map(stage.feed, cut(text, places))) + stage.finish() == whole


def test_respelled_letters_map_to_the_written_word() -> None:
    text = "The AI wrote AC."
    assert plan_utterances(text, OPTIONS) == ["The eh I wrote eh C."]
    assert written_words(text, OPTIONS) == ["The", "AI", "wrote", "AC."]


@pytest.mark.parametrize("names", [{"a": "eh"}, {"AB": "eh"}, {"A": ""}, {"A": 5}])
def test_invalid_letter_names_in_a_config_are_rejected(names: dict[str, str]) -> None:
    with pytest.raises(CheckpointError, match="letter_names must map capital letters to words"):
        ReadingConfig(letter_names=names)
