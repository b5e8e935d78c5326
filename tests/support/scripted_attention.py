"""A backend without a model that reports scripted attention places.

A `Course` changes the places of an utterance. Each code contains its place, so a prompt that
continues from kept frames continues from their place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.support.scripted_backend import ModelFreeBackend
from vivace.backends.base import Frames, Samples, Slot, SlotStatus
from vivace.model.config import Head
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

FRAMES_PER_ID = 2
SAMPLES_PER_FRAME = 1_920
NUM_CODEBOOKS = 6  # of the embedded voice
SHARE = 0.9  # of attention on the text

Course = Callable[[list[int]], list[int]]
"""Changes the places of a correct utterance."""


def correct(places: list[int]) -> list[int]:
    return places


def early_end(places: list[int]) -> list[int]:
    return places[: len(places) // 2]


@dataclass
class FollowedSlot:
    seed: int
    places: list[int]  # of the frames that are not yet made
    num_ids: int
    is_complete: bool
    max_frames: int
    num_made: int = 0

    @property
    def status(self) -> SlotStatus:
        if self.num_made >= self.max_frames:
            return "length"
        if self.places:
            return "running"
        return "stop" if self.is_complete else "waiting"


@dataclass
class FollowedBackend(ModelFreeBackend[FollowedSlot]):
    max_streams: int = 64
    watched: Head | None = field(default_factory=lambda: Head(0, 0))
    courses: dict[int, Course] = field(default_factory=dict)  # by seed
    default: Course = correct
    refuses_continued: bool = False
    admitted: list[tuple[Prompt, SamplingParams]] = field(default_factory=list)
    on_step: Callable[[], None] = lambda: None

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        num_kept = sum(label.startswith("frame ") for label in prompt.labels)
        if num_kept and self.refuses_continued:
            raise ValueError("the prompt is too long")
        seed = sampling.seed or 0
        first = int(prompt.codes[-1, 1]) + 1 if num_kept else 0
        places = _places(first, prompt.num_own_ids)
        course = self.courses.get(seed, self.default)
        self.admitted.append((prompt, sampling))
        slot = len(self.admitted)
        self.open_slots[slot] = FollowedSlot(
            seed,
            course(places),
            prompt.num_own_ids,
            prompt.is_complete,
            sampling.max_frames,
        )
        return slot

    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None:
        state = self.open_slots[slot]
        state.places += _places(state.num_ids, state.num_ids + len(text_ids))
        state.num_ids += len(text_ids)
        state.is_complete = is_last

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        self.on_step()
        codes = np.zeros((len(slots), num_frames, NUM_CODEBOOKS), np.int64)
        lengths: list[int] = []
        places = []
        for row, slot in enumerate(slots):
            state = self.open_slots[slot]
            count = min(num_frames, len(state.places), state.max_frames - state.num_made)
            spoken, state.places = state.places[:count], state.places[count:]
            numbers = np.arange(state.num_made, state.num_made + count)
            codes[row, :count, 0] = (state.seed % 2_048 * 31 + numbers * 7) % 2_048
            codes[row, :count, 1] = spoken
            state.num_made += count
            lengths.append(count)
            places.append([(place, SHARE) for place in spoken])
        status = tuple(self.open_slots[slot].status for slot in slots)
        return Frames(codes, tuple(lengths), status, tuple(places))

    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        return [loud(frames.of(row)) for row in range(len(slots))]


def loud(codes: np.ndarray) -> Samples:
    """Samples that depend only on each frame's codes and are never silent."""
    level = 0.2 + (codes[:, 0] * 17 + codes[:, 1]) % 500 / 1_000
    return np.repeat(level, SAMPLES_PER_FRAME).astype(np.float32)


def _places(first: int, end: int) -> list[int]:
    return [place for place in range(first, end) for _ in range(FRAMES_PER_ID)]
