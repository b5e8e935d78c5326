"""Queues the codec: directly behind the frames if possible, else after their codes arrived."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivace.backends.base import Frames, Rendered
from vivace.backends.cuda_graph.buckets import CODEC_FRAMES
from vivace.backends.cuda_graph.codec.graphs import SILENCE, CodecGraphs, join_sounds
from vivace.backends.cuda_graph.graphs import GraphPool
from vivace.backends.cuda_graph.slots.table import GraphSlot


class Renderer:
    def __init__(self, codec: CodecGraphs, ring: Tensor, frames: GraphPool) -> None:
        self._codec = codec
        self._ring, self._frames = ring, frames  # codes on the device; the graphs that make them

    @torch.inference_mode()
    def start_ahead(self, slots: Sequence[GraphSlot], num_frames: int) -> None:
        """Queue the codec behind these frames, so that the device does not wait for the host.

        Skipped if a slot may pause for text or pages before the last of these frames: the codec
        would decode frames that do not exist. Audio after the end of a slot is discarded.
        """
        if num_frames not in CODEC_FRAMES or not all(_can_queue(s, num_frames) for s in slots):
            return
        places = [(slot.row, slot.num_coded) for slot in slots]
        queued = self._codec.start_ahead(places, num_frames, self._ring, self._frames)
        for slot, audio in zip(slots, queued, strict=True):
            slot.ahead.append(audio)
            slot.num_coded += num_frames

    def start(self, slots: Sequence[GraphSlot], frames: Frames) -> Callable[[], Rendered]:
        """Queue the codec for the other frames; the returned call waits for all audio."""
        ahead = [slot.ahead.popleft() if slot.ahead else None for slot in slots]
        lengths = frames.lengths
        rest: dict[int, NDArray[np.int64]] = {}  # codes without queued audio, by row of `frames`
        for row, (slot, known, length) in enumerate(zip(slots, ahead, lengths, strict=True)):
            num_known = known.num_frames if known is not None else 0
            if length > num_known:
                slot.num_coded += length - num_known
                rest[row] = frames.of(row)[num_known:]
        wait = self._codec.start([slots[row].row for row in rest], [*rest.values()])

        def wait_for_all() -> Rendered:
            later = wait()
            sounds = [
                SILENCE if known is None else known.first(length)
                for known, length in zip(ahead, lengths, strict=True)
            ]
            found = zip(rest, zip(later.samples, later.loudness, strict=True), strict=True)
            for row, sound in found:
                sounds[row] = sound if ahead[row] is None else join_sounds([sounds[row], sound])
            return Rendered([samples for samples, _ in sounds], [loud for _, loud in sounds])

        return wait_for_all


def _can_queue(slot: GraphSlot, num_frames: int) -> bool:
    """Whether the codec can render these frames before the host has their codes."""
    return slot.num_coded + num_frames == slot.num_frames + slot.num_queued and slot.is_sure
