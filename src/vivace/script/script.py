"""A known text as a sequence of utterances and pauses.

A short text is one utterance. A long one is cut at sentence ends into utterances of a length that
the model speaks well; the first is one sentence, so that first audio does not come later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from vivace.errors import TextError, TextTooLongError
from vivace.script.prompts import MAX_TEXT_CHARS, PromptWriter
from vivace.script.request import Request
from vivace.text.breaks import BlockEnd, find_blocks, read_breaks
from vivace.text.cutter import Cut
from vivace.text.letters import close_gaps
from vivace.text.markup import Pause, ScriptOptions, clean_text, item_end, parse_pauses
from vivace.text.normalize import normalize_text
from vivace.text.plain import plain_text
from vivace.text.respell import respell
from vivace.text.split import goes_on, split_sentences
from vivace.text.tidy import tidy_text
from vivace.text.trace import Trace

MAX_INSIDE_SEAM_S = 0.15  # where a sentence goes on
_TAIL = 64  # characters that show whether a sentence has ended
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

    @property
    def skipped(self) -> Sequence[str]:
        """Parts of the text that were left out so far: letters that the checkpoint cannot read."""

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
        self._encode = partial(writer.encode, request)
        if trace is not None:
            trace.give(request.text)
        # Letters are checked after cleaning, which removes links.
        self._parts = plan_utterances(request.text, writer.script_options(request), trace)
        self.skipped: list[str] = []
        if not request.verbatim:
            self._check_letters(writer, request)
        self._num_taken = self._num_spoken = 0
        self._num_chars = sum(len(part) for part in self._parts if isinstance(part, str))
        if not self._num_chars and not request.verbatim:
            raise TextError("the text has no words in it; there is nothing to say")

    def _check_letters(self, writer: PromptWriter, request: Request) -> None:
        if request.options.on_unsupported == "skip":
            self._skip_unsupported(writer, request)
        for part in self._parts:
            if isinstance(part, str):
                writer.check_letters(part)

    def _skip_unsupported(self, writer: PromptWriter, request: Request) -> None:
        """Leave out letters that the checkpoint cannot read, unless nothing else is there."""
        kept: list[str | Pause] = []
        for part in self._parts:
            if isinstance(part, str) and writer.letters.find_foreign(part) is not None:
                part, runs = writer.letters.skip_foreign(part)
                self.skipped += runs
                if not request.options.is_speakable(part):
                    continue
                part = close_gaps(part)
            before = kept[-1] if kept else None
            if isinstance(part, Pause) and isinstance(before, Pause) and self.skipped:
                kept[-1] = max(part, before, key=lambda pause: pause.seconds)
            else:
                kept.append(part)
        if self.skipped and not any(isinstance(part, str) for part in kept):
            raise writer.refuse_letter(self.skipped[0][0])
        self._parts = kept

    @property
    def is_over(self) -> bool:
        return self._num_taken == len(self._parts)

    @property
    def progress(self) -> float:
        return self._num_spoken / max(1, self._num_chars)

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
    if options.verbatim:
        return _plan_verbatim(text, options)
    plan: list[str | Pause] = []
    text, num_chars = tidy_text(text), 0
    for part in parse_pauses(_clean(text, options)):
        if isinstance(part, Pause):
            plan.append(part)
            continue
        part = options.remove_emoji(part)
        part = read_breaks(part) if options.plain_breaks else part
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
        found = [*_utterances(part, options)]
        cuts_after = [*(cut for cut, _ in found[1:]), Cut()][: len(found)]
        for (cut, utterance), cut_after in zip(found, cuts_after, strict=True):
            if not options.is_speakable(utterance):
                plan.append(Pause(SILENT_S))
                continue
            if plan and isinstance(plan[-1], str):
                plan.append(seam(options, cut))
            plan.append(_finish_utterance(utterance, options, is_inside=cut_after.is_inside))
    return plan


def _plan_verbatim(text: str, options: ScriptOptions) -> list[str | Pause]:
    """All characters of the text, in several utterances only if it is long."""
    if options.max_chars is None or len(text) <= options.max_chars:
        return [text]
    plan: list[str | Pause] = []
    for cut, utterance in _utterances(text, options):
        plan += [seam(options, cut)] if plan else []
        plan.append(utterance)
    return plan or [text]


def _clean(text: str, options: ScriptOptions) -> str:
    if not options.clean:
        return text
    return clean_text(text, options, item_end=item_end(options))


def _finish_utterance(text: str, options: ScriptOptions, *, is_inside: bool) -> str:
    if options.plain_breaks:
        return plain_text(text, options.plain, is_inside=is_inside)
    return text.rstrip() if options.strip_end else text


def seam(options: ScriptOptions, cut: Cut) -> Pause:
    """The silence between two utterances: shorter inside a sentence, longer after a paragraph."""
    if cut.is_paragraph and options.paragraph_s is not None:
        return Pause(options.paragraph_s)
    return Pause(min(options.seam_s, MAX_INSIDE_SEAM_S) if cut.is_inside else options.seam_s)


def _utterances(text: str, options: ScriptOptions) -> Iterator[tuple[Cut, str]]:
    """Parts of the text that are not blank, each with the cut before it."""
    if options.max_chars is None:
        if text.strip():
            yield Cut(), text
        return
    blocks: Iterable[tuple[int, int, BlockEnd | None]] = [(0, len(text), None)]
    if options.paragraph_s is not None:
        blocks = find_blocks(text, has_marks=options.plain_breaks)
    cut, is_first = Cut(), len(text) > options.max_chars
    for start, end, kind in blocks:
        for inner, utterance in _cut_block(text[start:end], options, is_first=is_first):
            yield inner or cut, utterance
            is_first = False
        cut = Cut(is_paragraph=kind == "paragraph")


def _cut_block(
    text: str, options: ScriptOptions, *, is_first: bool
) -> Iterator[tuple[Cut | None, str]]:
    """A block in parts of up to `max_chars`; of the first block, the first part is a sentence."""
    max_chars = options.max_chars or len(text)
    if len(text) <= max_chars and not is_first and not options.min_chars:
        if text.strip():
            yield None, text
        return
    last = start = end = 0  # end of the last utterance; start and end of the one at hand
    num_sentences = 0
    for begin, stop in _sentence_spans(text, max_chars):
        is_alone = (is_first and num_sentences == 1) or end - start < options.min_chars
        if num_sentences and (is_alone or stop - start > max_chars):
            yield _cut_before(text, last, start), text[start:end]
            last, start = end, begin
        elif not num_sentences:
            start = begin
        end = stop
        num_sentences += 1
    if num_sentences:
        yield _cut_before(text, last, start), text[start:end]


def _cut_before(text: str, last: int, start: int) -> Cut | None:
    """The cut between two utterances of a block; None before the first."""
    return Cut(goes_on(text[max(0, last - _TAIL) : last], text[last:start])) if last else None


def _sentence_spans(text: str, max_chars: int) -> Iterator[tuple[int, int]]:
    end = 0
    for sentence in split_sentences(text, max_chars):
        begin = text.index(sentence, end)
        end = begin + len(sentence)
        yield begin, end
