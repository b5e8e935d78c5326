"""Which letters a text needs and whether a language is written with them; no models, no tokens."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection
from functools import lru_cache

LATIN_LANGUAGES = frozenset({"english", "french", "german", "italian", "portuguese", "spanish"})


def find_foreign_letter(text: str, languages: Collection[str]) -> str | None:
    """The first letter that none of these languages is written with.

    Only where all of them are known to be written with Latin letters; None otherwise, and for
    signs, digits and emoji, which every language has.
    """
    if text.isascii() or not languages or not LATIN_LANGUAGES.issuperset(languages):
        return None
    return next((character for character in text if not _is_latin(character)), None)


@lru_cache(maxsize=4096)
def _is_latin(character: str) -> bool:
    """Whether it is a Latin letter, a variant of one, or no letter at all."""
    plain = unicodedata.normalize("NFKC", character)
    return all(
        unicodedata.category(part) not in ("Lu", "Ll", "Lt", "Lo")
        or "LATIN" in unicodedata.name(part, "")
        for part in plain
    )
