"""The table of writing systems: scripts of each language, and scripts without spaces.

Scripts have the names that begin the Unicode names of their characters.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

_LATIN = ("LATIN",)
_HAN = ("CJK", "IDEOGRAPHIC", "BOPOMOFO")
_KANA = ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA")
LANGUAGE_SCRIPTS = {
    **dict.fromkeys(("english", "french", "german", "italian", "portuguese", "spanish"), _LATIN),
    "russian": ("CYRILLIC",),
    "chinese": _HAN,
    "japanese": (*_HAN, *_KANA),
    "korean": (*_HAN, "HANGUL"),
}
DIALECT = "_dialect"  # suffix of Chinese dialects in the released files
WITHOUT_SPACES = frozenset((*_HAN, *_KANA, "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"))

# Character classes for regular expressions.
HAN_AND_KANA = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
HANGUL = "\uac00-\ud7af"


@lru_cache(maxsize=4096)
def is_letter(character: str) -> bool:
    return unicodedata.category(character) in ("Lu", "Ll", "Lt", "Lo")


@lru_cache(maxsize=4096)
def scripts_of(character: str) -> frozenset[str]:
    """The scripts of a letter after NFKC; empty for other characters."""
    plain = unicodedata.normalize("NFKC", character)
    return frozenset(
        unicodedata.name(part, "UNKNOWN").split()[0] for part in plain if is_letter(part)
    )
