"""Tests of the utterances of a text with letters that the checkpoint does not support."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.text_stages import cut
from vivace.errors import RequestError
from vivace.script.parts import PartReader, UtteranceText
from vivace.script.script import plan_parts
from vivace.text.letters import Letters
from vivace.text.options import ScriptOptions

ENGLISH = Letters.of(["english"])
RELEASED = Letters.of(["english", "chinese", "russian"])
MIXED = (
    "(Москва) is old. Привет, мир! 你好。 She left, Да, and came back. "
    "שלום עולם שלום, hello. Ελλάδα? Yes; ಠ_ಠ… no"
)


def open_reader(letters: Letters, packing: str) -> PartReader:
    options = ScriptOptions(packing=packing, max_chars=300)  # type: ignore[arg-type]
    return PartReader(options, letters, RequestError, skips_letters=True)


def read_live(pieces: list[str], letters: Letters) -> tuple[list[str | float], list[str]]:
    """Utterances and pauses of a live text that is spoken by words, and the skipped letters."""
    reader, parts = open_reader(letters, "words"), list[str | float]()
    for piece in pieces:
        reader.feed(piece)
    reader.finish()
    while (part := reader.next_part()) is not None:
        parts.append(part.take_all() if isinstance(part, UtteranceText) else part.seconds)
    return parts, reader.skipped


@pytest.mark.parametrize("letters", [ENGLISH, RELEASED], ids=["english", "released"])
@given(places=st.lists(st.integers(0, 10_000), max_size=30))
@settings(deadline=None, max_examples=100)
def test_live_text_with_foreign_letters_does_not_depend_on_the_pieces(
    letters: Letters, places: list[int]
) -> None:
    assert read_live(cut(MIXED, places), letters) == read_live([MIXED], letters)


def test_live_text_begins_with_the_first_own_letters_in_any_pieces() -> None:
    text = "Hi שלום עולם שלום עולם"  # most letters are foreign, but not the first
    assert read_live([text], RELEASED) == read_live(list(text), RELEASED) == ([text], [])
    text = "שלום Hi."
    assert read_live([text], RELEASED) == read_live(list(text), RELEASED) == (["Hi."], ["שלום"])


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Hello Привет. 你好！ Bye. Москва? Да! Yes.", "Hello. Bye. Yes."),
        ("A. Привет мир. 你好。 مرحبا. Hello.", "A. Hello."),
        ("The name is Москва, they say.", "The name is, they say."),
        ("Hello 你好 world.", "Hello world."),
        ("Привет, мир. Hello.", "Hello."),
        ("One, Да, two.", "One, two."),
        ("Well... Да. So.", "Well... So."),
    ],
)
def test_sentences_of_foreign_letters_leave_no_signs(text: str, spoken: str) -> None:
    assert plan_parts(text, open_reader(ENGLISH, "whole")) == [spoken]


@pytest.mark.parametrize("packing", ["whole", "sentences", "words"])
@pytest.mark.parametrize("skips", [True, False])
def test_foreign_letter_is_an_error_unless_letters_are_skipped(packing: str, skips: bool) -> None:
    options = ScriptOptions(packing=packing, max_chars=300)  # type: ignore[arg-type]
    reader = PartReader(options, ENGLISH, RequestError, skips_letters=skips)
    reader.finish("Hello Привет. Bye.")
    while (part := reader.next_part()) is not None:
        if isinstance(part, UtteranceText):
            part.take_all()
    assert reader.skipped == ["Привет"]
    assert str(reader.error) == ("None" if skips else "П")
