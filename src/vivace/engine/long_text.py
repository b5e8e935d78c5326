"""A text of any length as a row of utterances and pauses.

Short texts stay as they are. Long ones are cut at sentence ends into utterances that the model says
well in one breath; the first is one sentence, so that first audio does not come later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vivace.text.emoji import drop_emoji
from vivace.text.letters import is_speakable
from vivace.text.normalize import normalize_text
from vivace.text.script import Pause, ScriptOptions, clean_text, parse_pauses
from vivace.text.split import split_sentences
from vivace.text.tidy import tidy_text

MAX_INSIDE_SEAM_S = 0.15  # where a sentence goes on
SILENT_S = 0.6  # for an utterance of nothing that can be said, such as "..." or "* * *"
_SENTENCE_END = re.compile(r"[.!?…。！？｡．][\"'”’“‘)\]}»«›‹」』）】〉》〕*_\s]*\Z")


def plan_utterances(text: str, options: ScriptOptions) -> list[str | Pause]:
    """What to say and where to be silent, in order; every utterance has something to say."""
    plan: list[str | Pause] = []
    text = tidy_text(text)
    for part in parse_pauses(clean_text(text) if options.clean else text):
        if isinstance(part, Pause):
            plan.append(part)
            continue
        part = part if options.keep_emoji else drop_emoji(part)
        part = normalize_text(part) if options.normalize else part
        for gap, utterance in _utterances(part, options.max_chars or len(part)):
            if not is_speakable(utterance, with_emoji=options.keep_emoji):
                plan.append(Pause(SILENT_S))
                continue
            if plan and isinstance(before := plan[-1], str):
                plan.append(seam(options, is_inside=_is_inside(before, gap)))
            plan.append(utterance)
    return plan


def seam(options: ScriptOptions, *, is_inside: bool) -> Pause:
    """The silence between two utterances, shorter inside a sentence."""
    return Pause(min(options.seam_s, MAX_INSIDE_SEAM_S) if is_inside else options.seam_s)


def _is_inside(before: str, gap: str) -> bool:
    """Whether a sentence goes on after this utterance and the white space that follows it."""
    return "\n" not in gap and _SENTENCE_END.search(before) is None


def _utterances(text: str, max_chars: int) -> Iterator[tuple[str, str]]:
    """Parts of the text that are not blank, each after the white space before it."""
    if len(text) <= max_chars:
        if text.strip():
            yield "", text
        return
    last = start = end = 0  # end of the last utterance; start and end of the one at hand
    num_sentences = 0
    for begin, stop in _sentence_spans(text, max_chars):
        # The first utterance is one sentence.
        if num_sentences == 1 or (num_sentences and stop - start > max_chars):
            yield text[last:start], text[start:end]
            last, start = end, begin
        elif not num_sentences:
            start = begin
        end = stop
        num_sentences += 1
    if num_sentences:
        yield text[last:start], text[start:end]


def _sentence_spans(text: str, max_chars: int) -> Iterator[tuple[int, int]]:
    end = 0
    for sentence in split_sentences(text, max_chars):
        begin = text.index(sentence, end)
        end = begin + len(sentence)
        yield begin, end
