"""Queues the codec: directly behind the frames if possible, else after their codes arrived."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vivace.backends.base import Frames, Rendered
from vivace.backends.cuda_graph.buckets import CODEC_FRAMES
from vivace.backends.cuda_graph.codec import CodecGraphs, join_sounds
from vivace.backends.cuda_graph.graphs import GraphPool
from vivace.backends.cuda_graph.slot_table import GraphSlot, QueuedAudio


class Renderer:
    def __init__(self, codec: CodecGraphs, ring: Tensor, frames: GraphPool) -> None:
        self._codec = codec
        self._ring, self._frames = (
            ring,
            frames,
        )  # codes on the device, and the graphs that make them

    @torch.inference_mode()
    def start_ahead(self, slots: Sequence[GraphSlot], num_frames: int) -> None:
        """Queue the codec behind these frames, so that the device does not wait for the host.

        Skipped if a slot may pause for text or pages before the last of these frames: the codec
        would decode frames that do not exist. Audio after the end of a slot is discarded.
        """
        is_next = all(s.num_coded + num_frames == s.num_frames + s.num_queued for s in slots)
        is_sure = is_next and all(slot.is_sure and slot.ahead is None for slot in slots)
        if not is_sure or num_frames not in CODEC_FRAMES:
            return
        places = [(slot.row, slot.num_coded) for slot in slots]
        reads = self._codec.start_ahead(places, num_frames, self._ring, self._frames)
        for slot, read in zip(slots, reads, strict=True):
            slot.ahead = QueuedAudio(num_frames, read)
            slot.num_coded += num_frames

    def start(self, slots: Sequence[GraphSlot], frames: Frames) -> Callable[[], Rendered]:
        """Queue the codec for the other frames; the returned call waits for all audio."""
        ahead = [slot.ahead for slot in slots]
        rest = [
            frames.of(row)[known.num_frames if known else 0 :] for row, known in enumerate(ahead)
        ]
        for slot, codes in zip(slots, rest, strict=True):
            slot.ahead = None
            slot.num_coded += len(codes)
        wait = self._codec.start([slot.row for slot in slots], rest)

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
