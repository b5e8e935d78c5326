"""English text normalization: numbers, dates, capitals and signs as spoken words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vivace.text.normalize.normalizer import LiveNormalizer


def normalize_text(text: str) -> str:
    """A whole text, normalized."""
    normalizer = open_normalizer()
    return normalizer.feed(text) + normalizer.finish()


def open_normalizer() -> LiveNormalizer:
    """`normalize_text` for a text that comes in pieces."""
    from vivace.text.normalize.normalizer import LiveNormalizer  # compiles many patterns

    return LiveNormalizer()
