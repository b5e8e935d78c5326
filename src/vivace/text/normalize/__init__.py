"""English text normalization: numbers, dates, capitals and signs as spoken words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vivace.text.normalize.normalizer import LiveNormalizer
    from vivace.text.trace import Trace


def normalize_text(text: str, trace: Trace | None = None) -> str:
    """A whole text, normalized."""
    normalizer = open_normalizer(trace)
    return normalizer.feed(text) + normalizer.finish()


def open_normalizer(trace: Trace | None = None) -> LiveNormalizer:
    """`normalize_text` for a text that comes in pieces; `trace` is told what comes of what."""
    from vivace.text.normalize.normalizer import LiveNormalizer  # compiles many patterns

    return LiveNormalizer(trace)
