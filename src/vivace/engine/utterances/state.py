"""The states of an utterance in the engine."""

from __future__ import annotations

from enum import Enum, auto

from vivace.backends.base import SlotStatus


class State(Enum):
    QUEUED = auto()  # waits for a slot
    RUNNING = auto()
    NEEDS_TEXT = auto()  # the slot makes no frame before the next part of a live text
    RETRYING = auto()  # frames were dropped; needs a new slot to make them again
    ENDING = auto()  # all frames are made; the last ones are not yet rendered
    DONE = auto()
    FAILED = auto()
    CANCELLED = auto()


STATE_OF: dict[SlotStatus, State] = {
    "running": State.RUNNING,
    "waiting": State.NEEDS_TEXT,
    "stop": State.ENDING,
    "length": State.ENDING,
    "failed": State.ENDING,
}
