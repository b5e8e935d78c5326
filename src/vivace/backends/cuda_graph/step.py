"""A step in flight: groups of frames, of which the first two are queued on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vivace.backends.base import Frames
from vivace.backends.cuda_graph.slots.table import RING, GraphSlot
from vivace.backends.cuda_graph.stepper import QueuedFrames

LOOKAHEAD = 4  # frames that are queued while the host waits for earlier frames

Queue = Callable[[Sequence[GraphSlot], int], QueuedFrames]


class GroupedStep:
    """Frames are queued `LOOKAHEAD` at a time, one such group ahead of the host.

    Few frames are therefore computed after the end of speech. The call does not wait for the group
    that is queued when all slots end.
    """

    def __init__(
        self,
        live: Sequence[GraphSlot],
        num_frames: int,
        queue: Queue,
        render_ahead: Callable[[], None],  # called when all frames are queued
    ) -> None:
        self._live, self._queue, self._render_ahead = live, queue, render_ahead
        sizes = [min(LOOKAHEAD, num_frames - i) for i in range(0, num_frames, LOOKAHEAD)]
        self._left = sizes[2:]
        self._queued = [queue(live, size) for size in sizes[:2]]
        self._made: list[Frames] = []
        if not self._left:
            render_ahead()

    def __call__(self) -> Frames:  # may be called again after an interrupt
        made, queued = self._made, self._queued
        while len(made) < len(queued) and not (made and self._has_ended):
            made.append(queued[len(made)].read())
            if self._left and not self._has_ended:
                # Removed before queuing: after an interrupt a half-queued group must not be
                # queued again. Its frames are returned by the slot's next step.
                size = self._left.pop(0)
                queued.append(self._queue(self._live, size))
                if not self._left:
                    self._render_ahead()
        return Frames.join(made)

    @property
    def _has_ended(self) -> bool:
        return all(slot.is_over for slot in self._live)


class ShortStep(GroupedStep):
    """A step that is queued as a whole. The next one may be queued behind it."""

    MAX_FRAMES = min(2 * LOOKAHEAD, RING // 2)  # two steps fit in the ring of codes

    def wait_for_last_frame(self) -> None:
        self._queued[-1].wait_for_last()
