"""The word tables of English, read from words.json."""

from __future__ import annotations

import json
from pathlib import Path

_TABLES = json.loads(Path(__file__).with_name("words.json").read_text("utf-8"))


def word_list(name: str) -> list[str]:
    return " ".join(_TABLES["lists"][name]).split()


def word_set(name: str) -> frozenset[str]:
    return frozenset(word_list(name))


def word_map(name: str) -> dict[str, str]:
    words: dict[str, str] = _TABLES["maps"][name]
    return words
