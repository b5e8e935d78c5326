"""Slots on the host: the state that every backend keeps of an admitted prompt, and slot handles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import Slot, SlotStatus
from vivace.errors import BackendError
from vivace.model.config import TalkerConfig
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

NUM_SPECIAL = 1024  # the last ids of codebook 0 are special ids

State = TypeVar("State", bound="SlotState")


@dataclass(slots=True, kw_only=True, eq=False)
class SlotState:
    """State of one admitted prompt; backends add their own fields."""

    sampling: SamplingParams
    num_rows: int  # prompt rows
    max_frames: int  # upper limit
    is_complete: bool  # no more text will be appended
    own_row: int = 0  # position of the first id of the request's text
    num_own: int = 0  # number of ids of the request's text
    adapter: int = 0  # number of the slot's adapter; 0: none
    num_frames: int = 0  # known to the host
    status: SlotStatus = "running"

    @property
    def is_over(self) -> bool:
        return self.status not in ("running", "waiting")

    def extend(self, text_ids: Sequence[int], is_last: bool, end_id: int) -> list[int]:
        """Note live text; returns the ids to read, with an end marker after the last ones."""
        if self.is_complete:
            raise BackendError("the slot's text is complete; nothing can be appended")
        self.is_complete = is_last
        self.num_own += len(text_ids)
        return [*text_ids, end_id] if is_last else [*text_ids]


class Slots(dict[Slot, State]):
    """Admitted slots by handle. A handle is not used again."""

    def __init__(self) -> None:
        self._next = 0

    def __missing__(self, slot: Slot) -> State:
        raise BackendError(f"slot {slot} was released or never admitted")

    def add(self, state: State) -> Slot:
        slot, self._next = self._next, self._next + 1
        self[slot] = state
        return slot

    def remove(self, slot: Slot) -> State:
        state = self[slot]
        del self[slot]
        return state


def check_adapter(prompt: Prompt, num_adapters: int) -> None:
    """Raise BackendError unless the prompt's adapter is loaded."""
    if not 0 <= prompt.adapter <= num_adapters:
        raise BackendError(
            f"the prompt needs adapter {prompt.adapter} and {num_adapters} adapters are loaded"
        )


def frame_limit(prompt: Prompt, sampling: SamplingParams, num_positions: int) -> int:
    """Maximum number of frames after a prompt in `num_positions` positions."""
    if sampling.seed is None:
        raise BackendError("sampling.seed is None; draw a seed before admitting a prompt")
    num_left = num_positions - len(prompt)
    if num_left < 1:
        raise BackendError(
            f"the prompt has {len(prompt)} rows and a slot holds at most {num_positions - 1}; "
            "shorten the text or, on an NVIDIA GPU, raise max_frames"
        )
    return min(sampling.max_frames, num_left)


def banned_codes(config: TalkerConfig) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of codebook 0: ids that are always banned, and ids banned before `min_frames`."""
    early = np.arange(config.vocab_size) >= config.vocab_size - NUM_SPECIAL
    late = early.copy()
    late[config.codec_eos_token_id] = False
    return late, early
