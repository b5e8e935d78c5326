"""Lists of words, written as a line of text."""

from __future__ import annotations


def word_list(text: str) -> list[str]:
    return text.split()


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())
