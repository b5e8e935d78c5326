"""The words of an utterance as spans of its ids."""

from __future__ import annotations

from collections.abc import Sequence

from vivace.text.trace import NO_WORD
from vivace.timing.words import Span


def find_spans(text: str, owners: Sequence[int], ids: Sequence[tuple[int, int]]) -> list[Span]:
    """`owners` is the word of each character, `ids` the characters that each id stands for.

    A word is where its letters and digits are; one id may have parts of several words.
    """
    begins: dict[int, float] = {}  # of each character
    ends: dict[int, float] = {}
    for number, (first, end) in enumerate(ids):
        places = [place for place in range(first, end) if text[place].isalnum()]
        for index, place in enumerate(places):
            begins.setdefault(place, number + index / len(places))
            ends[place] = number + (index + 1) / len(places)
    words: dict[int, list[int]] = {}
    for place in begins:
        if owners[place] != NO_WORD:
            words.setdefault(owners[place], []).append(place)
    return [
        Span(word, begins[min(places)], ends[max(places)]) for word, places in sorted(words.items())
    ]
