"""The engine's half of an utterance: from its prompt to its last published frame.

The reader's half is `vivace.engine.utterances.reader.UtteranceReader`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import Admission, Loudness, Places, Samples, Slot, SlotStatus
from vivace.engine.turn_report import TurnHook
from vivace.engine.utterances.follower import Fault, MarkIds, TextFollower, WordCheck
from vivace.engine.utterances.frame_block import FrameBlock
from vivace.engine.utterances.guard import SoundState, frame_budget
from vivace.engine.utterances.look_ahead import num_needed, num_settled
from vivace.engine.utterances.retry import RetryState, find_wrong_frame
from vivace.engine.utterances.state import STATE_OF, State
from vivace.errors import NumericError
from vivace.prompt import Prompt
from vivace.speech import FinishReason, SamplingParams

MAX_SILENT_FRAMES = 12  # at the start, for which turns are shortened


@dataclass(slots=True, kw_only=True, eq=False)
class Utterance:
    """Written by the engine's thread only, except `is_cancelled`.

    Its reader sends messages to the engine and reads the published fields.
    """

    # Set before the utterance is submitted
    prompt: Prompt
    sampling: SamplingParams
    wake: Callable[[], None]  # wakes the reader; called by the engine's thread
    is_guarded: bool = True  # against stalls
    has_budget: bool = True  # of frames, by the length of the text
    is_continued: bool = False  # an earlier utterance of the same stream was spoken
    follower: TextFollower | None = None  # checks that every word is spoken
    mark_ids: MarkIds | None = None  # describes the ids of live text for the follower
    on_turn: TurnHook | None = None  # called by the engine's thread after the utterance's turns
    # Any thread sets it, and only to True
    is_cancelled: bool = False
    # Published: the reader and `Engine.capacity` read these fields
    num_text_ids: int = 0
    is_text_complete: bool = True
    num_texts: int = 0  # parts of a live text that were appended
    num_texts_sent: int = 0  # to an engine in another process, which has not yet appended them all
    since: float = 0.0  # when it was queued, then when it was admitted
    num_made: int = 0  # frames, including those being rendered
    num_rendered: int = 0
    num_final: int = 0  # frames that are never dropped; the reader takes no others
    # Rendered frames. An int drops the frames from that number on. The reader removes both.
    published: deque[FrameBlock | int] = field(default_factory=deque)
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    admit_ms: float = 0.0
    is_over_budget: bool = False
    num_retries: int = 0  # of parts that were spoken wrongly
    checked: WordCheck | None = None  # by the follower of an engine in another process
    # The reader's last request
    num_wanted: int = 0  # frames; 0 if it was answered
    num_read: int = 0
    read_at: float = 0.0  # when it arrived
    # The engine's own
    slot: Slot | None = None
    admitted_at: float = 0.0  # to its first slot
    waited_s: float = 0.0  # for a slot
    is_paused: bool = False  # left out of turns until its reader sends a message
    _state: State = State.QUEUED
    _has_ended: bool = False  # DONE or FAILED
    _retry: RetryState = field(default_factory=RetryState)
    _num_published: int = 0  # frames
    _sound: SoundState = field(default_factory=SoundState)

    @property
    def state(self) -> State:
        return State.CANCELLED if self.is_cancelled and not self._has_ended else self._state

    @property
    def is_over(self) -> bool:
        return self.is_cancelled or self._has_ended

    @property
    def leaves_slot(self) -> bool:
        """Whether the utterance is over, or needs another slot."""
        return self.is_cancelled or self._has_ended or self._state is State.RETRYING

    @property
    def num_ahead(self) -> int:
        """Frames made for the reader and not yet read, without the look-ahead."""
        num_made = self.num_made if self.follower is None else num_settled(self.num_made)
        return num_made - self.num_read

    @property
    def num_missing(self) -> int:
        """Frames to make before the reader's request can be answered."""
        state = self._state
        if not self.num_wanted or (state is not State.RUNNING and state is not State.QUEUED):
            return 0
        num_made = self.num_read + self.num_wanted
        if self.follower is not None:
            num_made = num_needed(num_made)
        return num_made - self.num_made if num_made > self.num_made else 0

    def num_turn_frames(self, min_frames: int) -> int:
        """Frames of a turn that serves the reader's request: as many as without look-ahead.

        If only look-ahead is missing, the turn is as long as the request, or `min_frames` if that
        is enough. A GPU runs turns of other lengths more slowly.
        """
        num_missing = self.num_read + self.num_wanted - self.num_made
        if num_missing <= 0 and self.num_missing > min_frames:
            num_missing = self.num_wanted
        return max(num_missing, min_frames)

    @property
    def is_silent(self) -> bool:
        """Whether all frames so far were silent. Look-ahead finds sound before its reader does."""
        return 0 < self._sound.num_silent <= MAX_SILENT_FRAMES and self.follower is None

    @property
    def needs_text(self) -> bool:
        """Whether all frames of the text so far are rendered and more text must come."""
        is_blocked = self._state is State.NEEDS_TEXT and not self.is_cancelled
        has_all = self.num_texts >= self.num_texts_sent
        return is_blocked and has_all and self.num_made == self.num_rendered

    @property
    def is_running(self) -> bool:
        """Whether the slot can make frames."""
        return self._state is State.RUNNING and not self.is_cancelled

    @property
    def is_unread(self) -> bool:
        """Whether the reader waits for nothing and no frame is in flight."""
        is_idle = not self.num_wanted and self.num_made == self.num_rendered
        return is_idle and self.slot is not None and not self.is_over

    def mirror(self, *, needs_text: bool, is_over: bool) -> None:
        """Take the state of the utterance in the engine's process, after its other fields."""
        self._state = State.NEEDS_TEXT if needs_text else State.RUNNING
        self._has_ended = is_over

    # -- the reader's messages ---------------------------------------------------------------

    def request(self, num_read: int, num_wanted: int, now: float) -> None:
        """The reader has `num_read` frames and waits for `num_wanted` more; 0: it does not wait."""
        self.num_read, self.num_wanted, self.read_at = num_read, num_wanted, now
        self.wake_if_ready()

    def wake_if_ready(self) -> None:
        """Wake the reader once for each request that can be answered."""
        num_wanted = self.num_wanted
        if not num_wanted:
            return
        num_read = self.num_read + num_wanted
        if self.num_final >= num_read or self.is_over or self.needs_text:
            self.num_wanted, self.num_read = 0, min(num_read, self.num_final)
            self.wake()

    def extend(self, text_ids: Sequence[int], is_last: bool) -> None:
        """Note text that was given to the slot, or will be in the prompt of the next slot."""
        self.num_text_ids += len(text_ids)
        self._retry.extend(text_ids)
        if self.follower is not None and self.mark_ids is not None:
            self.follower.extend(self.mark_ids(text_ids), is_last=is_last)
        self.is_text_complete = is_last
        if self._state is State.NEEDS_TEXT:
            self._state = State.RUNNING
        self.num_texts += 1  # last: from here on the reader uses `needs_text`

    # -- turns -------------------------------------------------------------------------------

    @property
    def num_prompt_rows(self) -> int:
        return len(self.prompt) + self._retry.num_kept

    @property
    def admission(self) -> Admission:
        """Prompt and sampling for the backend, which reserves memory for `max_frames`."""
        return self._retry.admission(
            self.prompt,
            self.sampling,
            max_frames=min(self.sampling.max_frames, self._num_left(0)),
            number=self.num_retries,
            is_complete=self.is_text_complete,
        )

    def queue(self, now: float) -> None:
        """Wait for a new slot, in which the dropped frames are made again."""
        self._state, self.since = State.QUEUED, now

    def admit(self, slot: Slot, now: float) -> None:
        self.waited_s = now - self.since
        self.admitted_at = self.admitted_at or now
        self.slot, self.since, self._state = slot, now, State.RUNNING

    def make(self, num_frames: int, status: SlotStatus) -> None:
        """Count frames that were made and are rendered next."""
        self.num_made += num_frames
        if not self._has_ended:
            self._state = STATE_OF[status]

    def receive(
        self,
        codes: NDArray[np.int64],
        samples: Samples,
        loudness: Loudness,
        status: SlotStatus,
        places: Places = (),
    ) -> None:
        """Check and publish rendered frames. `status` is the slot's after these frames."""
        first = self.num_rendered
        num_left = self._num_left(first)
        self.num_rendered += len(codes)
        if self.is_over:
            return
        levels: list[float] = loudness.tolist()
        if not math.isfinite(sum(levels)):
            self.fail(self._numeric_error("samples", first))
            return
        is_cut = len(codes) > num_left
        if is_cut:
            samples = samples[: num_left * (len(samples) // len(codes))]
            codes, levels = codes[:num_left], levels[:num_left]
        self._sound.observe(levels, self.num_rendered)
        reason = self._end_of(codes, levels, None if is_cut else status)
        block = FrameBlock(codes, samples, reason, self._sound.num_stalled)
        if self.follower is not None:
            self._retry.add(codes)
            least = self.sampling.min_frames
            end = find_wrong_frame(self.follower, places, status, least, self._rewind)
            if end is not None:
                self._publish_until(end, block, first)
                return
        self._publish(block)
        if status == "failed":
            self.fail(self._numeric_error("numbers", self.num_rendered))

    def _end_of(
        self, codes: NDArray[np.int64], levels: Sequence[float], status: SlotStatus | None
    ) -> FinishReason | None:
        """Why the utterance ends after these frames; None if it continues."""
        if status == "stop":
            return "stall" if self.is_guarded and not self._sound.has_begun else "stop"
        if status == "failed":
            return None
        self.is_over_budget = self._num_left(self.num_rendered) <= 0
        if status == "length":
            return "length"
        is_checked = self.is_guarded and self.is_text_complete
        if is_checked and self._sound.find_stall(codes, levels):
            return "stall"
        return "length" if self.is_over_budget else None

    def _rewind(self, fault: Fault) -> int | None:
        """Begin a retry. Returns its first frame; None after too many, or if all is final."""
        follower = self.follower
        assert follower is not None
        if self.is_over_budget:
            return None
        if (frame := self._retry.begin(follower, fault, self.num_retries)) is None:
            return None
        self.num_retries += 1
        self._sound.restart_stall()
        self.num_made = self.num_rendered = frame
        self._state = State.RETRYING
        return frame

    def _publish_until(self, end: int, block: FrameBlock, first: int) -> None:
        """Drop the frames from `end` on. `block` begins at frame `first`.

        Unless a retry follows, the utterance ends there: the rest is not in the text.
        """
        assert end >= self.num_final
        self._retry.keep(end)
        if end < first:
            self.published.append(end)
            self._num_published = end
        elif end > first:
            self.published.append(block.first(end - first))
            self._num_published = end
        if self._state is State.RETRYING:
            self._settle_frames()
        else:
            self._append_end()

    def _append_end(self) -> None:
        """End the utterance with the frames that were kept."""
        assert self._retry.kept is not None
        self._publish(FrameBlock(self._retry.kept[:0], np.empty(0, np.float32), "stop"))

    def _publish(self, block: FrameBlock) -> None:
        """Hand frames to the reader. The last ones become final together with the end."""
        num_frames, reason = len(block.codes), block.finish_reason
        if num_frames or reason is not None:
            self.published.append(block)
            self._num_published += num_frames
        if reason is None:
            self._settle_frames()
            return
        self.finish_reason = reason
        self.num_final = self._num_published
        self._state, self._has_ended = State.DONE, True

    def _settle_frames(self) -> None:
        """Raise `num_final`: to all frames while a live text has no more ids to speak."""
        follower, num_rendered = self.follower, self.num_rendered
        if follower is None:
            self.num_final = self._num_published
            return
        if self._state is State.NEEDS_TEXT:
            follower.num_settled = num_rendered
        num_final = max(self.num_final, follower.num_settled, num_settled(num_rendered))
        self.num_final = min(num_final, num_rendered)

    def refuse(self, error: Exception) -> None:
        """The backend rejected the prompt. Frames from before a retry are kept."""
        if self.follower is None or self._retry.kept is None:
            self.fail(error)
            return
        if (fault := self.follower.end()) is not None:
            self.follower.accept(fault)
        self._append_end()

    def fail(self, error: Exception) -> None:
        if not self._has_ended:
            self.error, self._state = error, State.FAILED
            self._has_ended = True  # last: the reader then checks `error`

    def _num_left(self, num_frames: int) -> int:
        """Frames of the budget that are left. Before the text is complete there is no budget."""
        if not self.has_budget or not self.is_text_complete:
            return self.sampling.max_frames
        return frame_budget(self.num_text_ids) - num_frames

    def _numeric_error(self, what: str, frame: int) -> NumericError:
        return NumericError(
            f"the model's {what} stopped being finite at frame {frame}; "
            "try float32, and check the weights"
        )
