"""Creates the utterances of a stream: prompt, seed, limits and completeness check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from vivace.engine.turn_report import TurnHook
from vivace.engine.utterances.completeness import IdMarker
from vivace.engine.utterances.follower import TextFollower
from vivace.engine.utterances.utterance import Utterance
from vivace.prompt import SpokenReference
from vivace.script.prompts import PromptWriter, Spoken
from vivace.script.request import Request
from vivace.script.script import Line
from vivace.speech import MAX_SEED, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    sampling: SamplingParams
    sizes: Iterator[int]  # frames of each chunk
    speed: float = 1.0
    is_guarded: bool = True  # stop speech that does not end by itself
    is_limited: bool = False  # max_frames counts over the whole text, not for each utterance


@dataclass(frozen=True, slots=True)
class UtteranceFactory:
    writer: PromptWriter
    request: Request
    settings: StreamSettings
    wake: Callable[[], None]  # wakes the stream's reader
    marker: IdMarker | None  # None: words are not checked

    @property
    def num_first_ids(self) -> int:
        """The ids of a live text that its prompt needs."""
        return self.writer.num_first_ids(self.request)

    @property
    def continues(self) -> bool:
        """Whether an utterance continues the speech of the one before it."""
        return self.writer.continues and isinstance(self.request.text, str)

    def create(
        self,
        line: Line,
        ids: Sequence[int],  # of the line's text so far
        previous: Spoken | None,  # the utterance that this one continues
        *,
        number: int,  # utterances of the stream before this one
        num_frames_left: int | None,  # None: without a limit
        on_turn: TurnHook | None,
    ) -> tuple[Utterance, SpokenReference | None]:
        """The utterance, and the reference whose frames may leak into its first ones."""
        settings, marker, is_complete = self.settings, self.marker, line.is_complete
        prompt, leak = self.writer.write(
            self.request, line.text, ids, is_complete=is_complete, previous=previous
        )
        follower = None
        if marker is not None:
            follower = TextFollower(marker.mark(ids), is_complete=is_complete)
        utterance = Utterance(
            prompt=prompt,
            sampling=self._sampling(number, num_frames_left),
            wake=self.wake,
            num_text_ids=len(ids),
            is_text_complete=is_complete,
            is_guarded=settings.is_guarded,
            has_budget=settings.is_guarded and not settings.is_limited,
            is_continued=number > 0,
            follower=follower,
            mark_ids=None if marker is None else marker.mark,
            on_turn=on_turn,
        )
        return utterance, leak

    def _sampling(self, number: int, num_frames_left: int | None) -> SamplingParams:
        """The stream's sampling with the seed and the limits of this utterance."""
        sampling = self.settings.sampling
        changes: dict[str, int] = {}
        seed = ((sampling.seed or 0) + number) % (MAX_SEED + 1)
        if seed != sampling.seed:
            changes["seed"] = seed
        if num_frames_left is not None and num_frames_left != sampling.max_frames:
            min_frames = min(sampling.min_frames, num_frames_left)
            changes |= {"max_frames": num_frames_left, "min_frames": min_frames}
        return sampling.replace(**changes) if changes else sampling
