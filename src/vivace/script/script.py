"""The text of a request as a sequence of utterances and pauses with token ids.

A known text is planned as a whole before speech begins. A live text arrives while earlier parts are
spoken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property

from vivace.errors import RequestError
from vivace.script.parts import PartReader, UtteranceText, seam
from vivace.script.prompts import PromptWriter
from vivace.script.request import Request
from vivace.text.live_tokenizer import LiveTokenizer
from vivace.text.options import ScriptOptions
from vivace.text.packing import Cut, WholeTextPacker
from vivace.text.pauses import Pause
from vivace.text.pipeline import is_one_utterance
from vivace.text.written_words import WrittenWords


class Line:
    """The text of one utterance. A part of it may still arrive."""

    def __init__(
        self,
        text: str = "",
        ids: Sequence[int] = (),
        live: tuple[UtteranceText, LiveTokenizer] | None = None,  # the text that may arrive
    ) -> None:
        self.text = text  # as far as it is known; with word timings a `SpannedText`
        self._ids = list(ids)  # known and not yet taken
        self._live = live

    @property
    def is_complete(self) -> bool:
        """Whether no ids follow those that were taken."""
        return not self._ids and (self._live is None or self._live[0].is_over)

    def has(self, num_ids: int) -> bool:
        """Whether `num_ids` ids, or all remaining ids, can be taken without more text."""
        if self._live is None:
            return True
        utterance, tokenizer = self._live
        while len(self._ids) < num_ids and not utterance.is_over:
            if (text := utterance.take()) is not None:
                self.text += text
                self._ids += tokenizer.feed(text)
            elif utterance.is_over:
                self._ids += tokenizer.finish()
            else:
                return False
        return True

    def take(self) -> Sequence[int]:
        """The ids that became known since the last call."""
        ids, self._ids = self._ids, []
        return ids


class Script:
    """Utterances and pauses in order.

    For a known text, the constructor raises all errors. In a live text, parts that cannot be spoken
    are left out; `error` is the first reason. Every utterance of
    a live text continues from the voice's own reference, if the voice has one.
    """

    def __init__(
        self, writer: PromptWriter, request: Request, words: WrittenWords | None = None
    ) -> None:
        """`words` collects the words of the text for word timings."""
        self._writer, self._request, self._words = writer, request, words
        self._options = writer.texts.script_options(request)
        self._plan: deque[str | Pause] | None = None  # the rest of a known text
        self._has_reader = True  # False: the text needs no stages
        self._num_chars = self._num_chars_taken = 0  # of the plan
        if isinstance(request.text, str):
            self._plan = deque(self._plan_text(request.text))
            self._num_chars = sum([len(part) for part in self._plan if isinstance(part, str)])
            if self.error is not None:
                raise self.error

    def _plan_text(self, text: str) -> list[str | Pause]:
        is_plain = self._words is None and is_one_utterance(text, self._options)
        self._has_reader = not (self._request.verbatim or is_plain)
        if self._has_reader:
            return plan_parts(text, self._reader)
        return split_verbatim(text, self._options) if self._request.verbatim else [text]

    @cached_property
    def _reader(self) -> PartReader:
        checker = self._writer.checker
        return PartReader(
            self._options,
            checker.letters,
            checker.letter_error,
            skips_letters=self._request.options.on_unsupported == "skip",
            words=self._words,
        )

    @property
    def is_over(self) -> bool:
        """Whether every part was taken."""
        return self._reader.is_over if self._plan is None else not self._plan

    @property
    def progress(self) -> float:
        """Share of a known text in the parts taken; 0 for a live text."""
        return self._num_chars_taken / max(1, self._num_chars)

    @property
    def skipped(self) -> Sequence[str]:
        """Unsupported letters that were left out so far."""
        return self._reader.skipped if self._has_reader else ()

    def next_part(self) -> Line | Pause | None:
        """None at the end, or if more text must be fed first."""
        part = self._reader.next_part() if self._plan is None else self._take_planned()
        if part is None or isinstance(part, Pause):
            return part
        if isinstance(part, UtteranceText) and self._options.packing == "words":
            tokenizer = LiveTokenizer(self._writer.tokenizer, strip_end=self._options.strip_end)
            return Line(live=(part, tokenizer))
        text = part if isinstance(part, str) else part.take_all()
        text = text.rstrip() if self._options.strip_end else text
        return Line(text, self._writer.encode(self._request, text))

    def _take_planned(self) -> str | Pause | None:
        if not self._plan:
            return None
        part = self._plan.popleft()
        self._num_chars_taken += len(part) if isinstance(part, str) else 0
        return part

    def feed(self, piece: object) -> None:
        """Add text; None is skipped, because chat models send chunks without text."""
        if isinstance(piece, str):
            self._reader.feed(piece)
        elif piece is not None:
            kind = type(piece).__name__
            self.finish(RequestError(f"text pieces must be strings, not {kind}"))

    def finish(self, error: Exception | None = None) -> None:
        """End a live text; `error` is what its iterator raised."""
        self._reader.finish(error=error)

    def settle(self) -> bool:
        """Take a sentence that has ended while the writer pauses; return whether there is one."""
        return self._reader.settle()

    @property
    def error(self) -> Exception | None:
        """The exception of a live text's iterator, or the reason for a missing part of the text."""
        return self._reader.error if self._has_reader else None


def plan_parts(text: str, reader: PartReader) -> list[str | Pause]:
    """All utterances and pauses of a complete text."""
    reader.finish(text)
    parts: list[str | Pause] = []
    while (part := reader.next_part()) is not None:
        last = parts[-1] if parts else None
        if isinstance(part, UtteranceText):
            parts.append(part.take_all())
        elif isinstance(last, Pause) and reader.skipped:
            # The utterance between two pauses was left out.
            parts[-1] = max(part, last, key=lambda pause: pause.seconds)
        else:
            parts.append(part)
    return parts


def split_verbatim(text: str, options: ScriptOptions) -> list[str | Pause]:
    """Every character of the text, in several utterances only if it is long."""
    events = WholeTextPacker(options).finish(text)
    return [seam(options, one) if isinstance(one, Cut) else one for one in events] or [text]
