"""A known text as a sequence of utterances and pauses.

A short text is one utterance. A long one is cut at sentence ends into utterances of a length that
the model speaks well; the first is one sentence, so that first audio does not come later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from vivace.errors import TextError, TextTooLongError
from vivace.script.prompts import MAX_TEXT_CHARS, PromptWriter
from vivace.script.request import Request
from vivace.text.emoji import drop_emoji
from vivace.text.letters import is_speakable
from vivace.text.markup import Pause, ScriptOptions, clean_text, parse_pauses
from vivace.text.normalize import normalize_text
from vivace.text.respell import respell
from vivace.text.split import goes_on, split_sentences
from vivace.text.tidy import tidy_text
from vivace.text.trace import Trace

MAX_INSIDE_SEAM_S = 0.15  # where a sentence goes on
SILENT_S = 0.6  # for an utterance of nothing that can be said, such as "..." or "* * *"


class Line(Protocol):
    """The text of one utterance."""

    text: str  # as far as it is known

    @property
    def is_complete(self) -> bool:
        """Whether no more ids follow those that were taken."""

    def has(self, num_ids: int) -> bool:
        """Whether so many ids, or all that are left, can be taken without more text."""

    def take(self) -> Sequence[int]:
        """The ids that became known since the last call."""


class Script(Protocol):
    """Utterances and pauses in order, each taken when its turn comes."""

    @property
    def is_over(self) -> bool:
        """Whether every part was taken."""

    @property
    def progress(self) -> float:
        """Share of the text in the parts taken; 0 if it is not known."""

    def next_part(self) -> Line | Pause | None:
        """None at the end, or if more text must be fed first."""

    def feed(self, piece: object) -> None:
        """More of a live text."""

    def finish(self, error: Exception | None = None) -> None:
        """A live text ends here; `error` is what its iterator raised."""

    def raise_error(self) -> None:
        """Raise what a live text's iterator raised, or what could not be spoken of it."""


class KnownLine:
    def __init__(self, text: str, ids: Sequence[int]) -> None:
        self.text, self._ids = text, ids

    @property
    def is_complete(self) -> bool:
        return True

    def has(self, num_ids: int) -> bool:
        return True

    def take(self) -> Sequence[int]:
        return self._ids


class KnownScript:
    """A text known in full; it is fed nothing."""

    def __init__(self, writer: PromptWriter, request: Request, trace: Trace | None = None) -> None:
        """A TextError if nothing of the text can be spoken, or some letters cannot."""
        assert isinstance(request.text, str)
        self._encode = writer.tokenizer.encode
        if trace is not None:
            trace.give(request.text)
        self._parts = plan_utterances(request.text, writer.script_options(request), trace)
        self._num_taken = self._num_spoken = 0
        self._num_chars = sum(len(part) for part in self._parts if isinstance(part, str))
        if not self._num_chars:
            raise TextError("the text has no words in it; there is nothing to say")
        for part in self._parts:
            if isinstance(part, str):
                writer.check_letters(part)  # after cleaning, which removes links

    @property
    def is_over(self) -> bool:
        return self._num_taken == len(self._parts)

    @property
    def progress(self) -> float:
        return self._num_spoken / self._num_chars

    def next_part(self) -> Line | Pause | None:
        if self.is_over:
            return None
        part = self._parts[self._num_taken]
        self._num_taken += 1
        if isinstance(part, Pause):
            return part
        self._num_spoken += len(part)
        return KnownLine(part, self._encode(part))

    def feed(self, piece: object) -> None:
        raise AssertionError("a known text is complete")

    def finish(self, error: Exception | None = None) -> None:
        raise AssertionError("a known text is complete")

    def raise_error(self) -> None:
        """Nothing can go wrong later."""


def plan_utterances(
    text: str, options: ScriptOptions, trace: Trace | None = None
) -> list[str | Pause]:
    """Utterances and pauses in order; every utterance has something that can be spoken."""
    plan: list[str | Pause] = []
    text, num_chars = tidy_text(text), 0
    for part in parse_pauses(clean_text(text) if options.clean else text):
        if isinstance(part, Pause):
            plan.append(part)
            continue
        part = part if options.keep_emoji else drop_emoji(part)
        if trace is not None:
            trace.break_word()
        part = respell(part, options.lexicon, is_english=options.normalize, trace=trace)
        num_chars += len(part)
        if num_chars > MAX_TEXT_CHARS:  # a lexicon may make much of little
            raise TextTooLongError(num_chars, MAX_TEXT_CHARS, "characters, respelled,")
        if options.normalize:
            part = normalize_text(part, trace)
        elif trace is not None:
            trace.say(part, part)
        for gap, utterance in _utterances(part, options.max_chars or len(part)):
            if not is_speakable(utterance, with_emoji=options.keep_emoji):
                plan.append(Pause(SILENT_S))
                continue
            if plan and isinstance(before := plan[-1], str):
                plan.append(seam(options, is_inside=goes_on(before, gap)))
            plan.append(utterance.rstrip() if options.strip_end else utterance)
    return plan


def seam(options: ScriptOptions, *, is_inside: bool) -> Pause:
    """The silence between two utterances, shorter inside a sentence."""
    return Pause(min(options.seam_s, MAX_INSIDE_SEAM_S) if is_inside else options.seam_s)


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
