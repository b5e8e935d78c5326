"""Text normalization: numbers, dates, capitals and signs as spoken words.

To add a language, write a package or module beside `english` that defines `RULES`, a
`LanguageRules`, and name it in `LANGUAGES`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vivace.text.normalize.normalizer import LiveNormalizer

# Modules are imported on first use: their patterns take time to compile.
LANGUAGES = {"english": "vivace.text.normalize.english"}


def normalize_text(text: str, language: str = "english") -> str:
    """Normalize a whole text; a language without rules raises a KeyError."""
    return open_normalizer(language).finish(text)


def open_normalizer(language: str) -> LiveNormalizer:
    """`normalize_text` for a text in pieces."""
    from vivace.text.normalize.normalizer import LiveNormalizer

    return LiveNormalizer(import_module(LANGUAGES[language]).RULES)
