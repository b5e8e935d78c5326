"""Queues the codec: directly behind the frames if possible, else after their codes arrived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.backends.base import Frames, Rendered, Slot
from vivace.backends.cuda_graph.buckets import CODEC_FRAMES
from vivace.backends.cuda_graph.codec import CodecGraphs, Sound, join_sounds
from vivace.backends.cuda_graph.graphs import GraphPool
from vivace.backends.cuda_graph.slot_table import GraphSlot


@dataclass(frozen=True, slots=True)
class QueuedAudio:
    """Audio of a slot's next frames, queued on the device behind these frames."""

    num_frames: int
    read: Callable[[], Sound]  # waits for the audio


class Renderer:
    def __init__(self, codec: CodecGraphs, ring: Tensor, frames: GraphPool) -> None:
        self._codec = codec
        self._ring, self._frames = (
            ring,
            frames,
        )  # codes on the device, and the graphs that write them
        self._ahead: dict[Slot, QueuedAudio] = {}  # not yet requested by `start`

    @property
    def num_ahead(self) -> int:
        """Number of slots with queued audio."""
        return len(self._ahead)

    @torch.inference_mode()
    def start_ahead(
        self, slots: Sequence[Slot], live: Sequence[GraphSlot], num_frames: int
    ) -> None:
        """Queue the codec behind these frames, so that the device does not wait for the host.

        Skipped if a slot may pause for text or pages before the last of these frames: the codec
        would decode frames that do not exist. Audio after the end of a slot is discarded.
        """
        is_next = all(s.num_coded + num_frames == s.num_frames + s.num_queued for s in live)
        is_sure = is_next and all(slot.is_sure for slot in live)
        if (
            not is_sure
            or num_frames not in CODEC_FRAMES
            or not self._ahead.keys().isdisjoint(slots)
        ):
            return
        places = [(slot.row, slot.num_coded) for slot in live]
        reads = self._codec.start_ahead(places, num_frames, self._ring, self._frames)
        for slot, one, read in zip(slots, live, reads, strict=True):
            self._ahead[slot] = QueuedAudio(num_frames, read)
            one.num_coded += num_frames

    def start(
        self, slots: Sequence[Slot], live: Sequence[GraphSlot], frames: Frames
    ) -> Callable[[], Rendered]:
        """Queue the codec for the other frames; the returned call waits for all audio."""
        ahead = [self._ahead.pop(slot, None) for slot in slots]
        rest = [
            frames.of(row)[known.num_frames if known else 0 :] for row, known in enumerate(ahead)
        ]
        for slot, codes in zip(live, rest, strict=True):
            slot.num_coded += len(codes)
        wait = self._codec.start([slot.row for slot in live], rest)

        def wait_for_all() -> Rendered:
            sound = wait()
            for row, (known, length) in enumerate(zip(ahead, frames.lengths, strict=True)):
                if known is not None:
                    more = [(sound.samples[row], sound.loudness[row])] if len(rest[row]) else []
                    samples, loudness = join_sounds([known.read(), *more])
                    size = length * (len(samples) // len(loudness))
                    sound.samples[row], sound.loudness[row] = samples[:size], loudness[:length]
            return sound

        return wait_for_all

    def drop(self, slot: Slot) -> None:
        """Discard the queued audio of a slot."""
        self._ahead.pop(slot, None)
