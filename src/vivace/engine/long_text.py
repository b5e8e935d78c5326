"""A text of any length as a row of utterances and pauses.

Short texts stay as they are. Long ones are cut at sentence ends into utterances that the model says
well in one breath; the first is one sentence, so that first audio does not come later.
"""

from __future__ import annotations

from collections.abc import Iterator

from vivace.text.script import Pause, clean_text, parse_pauses
from vivace.text.split import split_sentences

MAX_UTTERANCE_CHARS = 300
SEAM = Pause(0.15)  # between utterances; each ends in a little silence of its own


def plan_utterances(text: str, *, split: bool = True, clean: bool = False) -> list[str | Pause]:
    """What to say and where to be silent, in order; no utterance is blank."""
    plan: list[str | Pause] = []
    for part in parse_pauses(clean_text(text) if clean else text):
        if isinstance(part, Pause):
            plan.append(part)
            continue
        for utterance in _utterances(part, MAX_UTTERANCE_CHARS if split else len(part)):
            if plan and isinstance(plan[-1], str):
                plan.append(SEAM)
            plan.append(utterance)
    return plan


def _utterances(text: str, max_chars: int) -> Iterator[str]:
    if len(text) <= max_chars:
        if text.strip():
            yield text
        return
    first, *sentences = split_sentences(text, max_chars)
    yield first
    start = end = text.index(first) + len(first)
    for sentence in sentences:
        found = text.index(sentence, end)
        if start == end:
            start = found
        elif found + len(sentence) - start > max_chars:
            yield text[start:end]
            start = found
        end = found + len(sentence)
    if end > start:
        yield text[start:end]
