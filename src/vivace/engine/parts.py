"""A request as a row of sessions and pauses, each made when its turn comes.

What holds a voice across the seams: a base model goes on in context from what it said last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from vivace.engine.intake import Intake, Request
from vivace.engine.live_text import LiveSource, LiveText
from vivace.engine.long_text import plan_utterances, seam
from vivace.engine.session import Opening, Session
from vivace.errors import RequestError
from vivace.prompt import SpokenReference
from vivace.text.live import LiveTokenizer
from vivace.text.live_script import LiveScript
from vivace.text.script import Pause
from vivace.voices.reference_leak import shares_words
from vivace.voices.voice import Voice


@dataclass(frozen=True, slots=True)
class Part:
    work: Session | Pause
    is_last: Callable[[], bool]  # known when the part is over; does not wait
    progress: float = 0.0  # share of the text that is said when it is over
    raise_text_error: Callable[[], None] = lambda: None  # what its writer raised


class OpenSession(Protocol):
    """Makes the session number `index` of a request."""

    def __call__(
        self, index: int, write_opening: Callable[[], Opening], *, live: LiveText | None = None
    ) -> Session: ...


@dataclass(frozen=True, slots=True)
class Spoken:
    """An utterance that the next one goes on from."""

    session: Session
    text: str
    text_ids: Sequence[int]

    def as_reference(self) -> SpokenReference | None:
        """None if it did not come to its own end: what went wrong is not gone on from."""
        codes = self.session.take_codes()
        if self.session.finish_reason != "stop" or not len(codes):
            return None
        return SpokenReference(text_ids=self.text_ids, codes=codes)


@dataclass(frozen=True, slots=True)
class OpeningWriter:
    """Writes a prompt when its turn comes: what was said before is known only then."""

    intake: Intake
    request: Request
    text: str
    text_ids: Sequence[int]
    previous: Spoken | None

    def __call__(self) -> Opening:
        reference, transcript = self._reference()
        prompt = self.intake.write_prompt(self.request, self.text_ids, reference)
        may_leak = self.request.trim and reference and not shares_words(transcript, self.text)
        return Opening(prompt, reference.codes if may_leak and reference else None)

    def _reference(self) -> tuple[SpokenReference | None, str]:
        if self.previous is not None and (said := self.previous.as_reference()) is not None:
            return said, self.previous.text
        voice = self.request.voice
        transcript = voice.ref_text if isinstance(voice, Voice) else None
        return self.intake.reference(self.request.voice), transcript or ""


def make_parts(intake: Intake, request: Request, open_session: OpenSession) -> Iterator[Part]:
    """Raises a RequestError at once if a text known in full has nothing that can be said."""
    if not isinstance(request.text, str):
        return _live_parts(intake, request, request.text, open_session)
    plan = plan_utterances(request.text, intake.script_options(request))
    if not any(isinstance(item, str) for item in plan):
        raise RequestError("the text has no words in it; there is nothing to say")
    for item in plan:
        if isinstance(item, str):
            intake.check_letters(item)  # after cleaning, which takes links and their letters out
    return _known_parts(intake, request, plan, open_session)


def _known_parts(
    intake: Intake, request: Request, plan: Sequence[str | Pause], open_session: OpenSession
) -> Iterator[Part]:
    previous: Spoken | None = None
    num_chars = sum(len(item) for item in plan if isinstance(item, str))
    num_sessions = num_said = 0
    for index, item in enumerate(plan):
        is_last = index == len(plan) - 1
        work: Session | Pause
        if isinstance(item, Pause):
            work = item
        else:
            text_ids = intake.tokenizer.encode(item)
            writer = OpeningWriter(intake, request, item, text_ids, previous)
            work = open_session(num_sessions, writer)
            work.num_text_ids = len(text_ids)
            num_sessions += 1
            num_said += len(item)
            previous = Spoken(work, item, text_ids) if intake.continues else None
        yield Part(work, lambda is_last=is_last: is_last, num_said / num_chars)  # type: ignore[misc]


def _live_parts(
    intake: Intake, request: Request, pieces: Iterator[str], open_session: OpenSession
) -> Iterator[Part]:
    """Each utterance goes on from the voice's own reference, if it has one.

    Going on from the last utterance would have to wait for as much new text as that had frames.
    """
    options = intake.script_options(request)
    source = LiveSource(
        pieces,
        LiveScript(options),
        lambda: LiveTokenizer(intake.tokenizer),
        letters=intake.letters,
        refuse=intake.refuse_letter,
        with_emoji=options.keep_emoji,
    )
    num_sessions, needs_seam = 0, False
    while (part := source.next_part()) is not None:
        if isinstance(part, Pause):
            needs_seam = False
            yield Part(part, lambda: source.is_over)
            continue
        if needs_seam:
            yield Part(seam(options, is_inside=source.last_cut.is_inside), lambda: False)
        session = _open_live(intake, request, part, num_sessions, open_session)
        yield Part(session, part.ends_all, raise_text_error=source.raise_error)
        part.skip()
        num_sessions, needs_seam = num_sessions + 1, True
    source.raise_error()
    if not num_sessions:
        raise RequestError("the text has no words in it; there is nothing to say")


def _open_live(
    intake: Intake, request: Request, live: LiveText, index: int, open_session: OpenSession
) -> Session:
    def write_opening() -> Opening:
        return Opening(intake.write_live_prompt(request, live))

    return open_session(index, write_opening, live=live)
