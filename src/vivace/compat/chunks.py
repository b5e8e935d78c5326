"""Streams audio in chunks of a fixed number of frames, with timings, as faster-qwen3-tts does."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.audio.clip import AudioChunk
from vivace.compat.speaking import note_runaway, open_stream
from vivace.engine.streams.chunks import chunk_sizes
from vivace.engine.streams.stream import Stream
from vivace.errors import StreamClosedError
from vivace.script.request import Request
from vivace.tts import TTS

TimedChunk = tuple[NDArray[np.float32], int, dict[str, Any]]


def timed_chunks(
    tts: TTS, wanted: Request, sampling: Mapping[str, Any], chunk_size: int
) -> Iterator[TimedChunk]:
    chunk_sizes(chunk_size)  # raises RequestError for an invalid number of frames
    with open_stream(tts, wanted, sampling, chunk_frames=_sizes(chunk_size)) as stream:
        yield from _timed(stream, chunk_size)
        note_runaway(stream.finish_reason, sampling)


def _sizes(chunk_size: int) -> Iterator[int]:
    """Chunk sizes: every chunk after the first is read as one frame and then the rest."""
    if chunk_size == 1:
        return itertools.repeat(1)
    return itertools.chain([chunk_size], itertools.cycle([1, chunk_size - 1]))


def _timed(stream: Stream, chunk_size: int) -> Iterator[TimedChunk]:
    reader = _ReadAhead(stream)
    num_steps = 0
    for index in itertools.count():
        began = time.perf_counter()
        parts = reader.read(chunk_size)
        steps = sum(len(part.codes) for part in parts)
        num_steps += steps
        figures = {
            "chunk_index": index,
            "chunk_steps": steps,
            "prefill_ms": 0.0 if index else stream.admit_ms,
            "decode_ms": 1000 * (time.perf_counter() - began),
            "total_steps_so_far": num_steps,
        }
        timing = ChunkTiming(figures, reader.is_over)
        yield np.concatenate([part.samples for part in parts]), parts[0].sample_rate, timing
        if timing["is_final"]:
            return


class ChunkTiming(dict[str, Any]):
    """Timings of a chunk. Reading `is_final` waits for the next frame."""

    def __init__(self, figures: Mapping[str, Any], is_final: Callable[[], bool]) -> None:
        super().__init__(figures, is_final=None)
        self._is_final = is_final

    def __getitem__(self, key: str) -> Any:
        if key == "is_final" and super().__getitem__(key) is None:
            self[key] = self._is_final()
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:  # also called by `dict(timing)`
        self["is_final"]
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if super().__contains__(key) else default

    def items(self) -> Any:
        return dict(self).items()

    def values(self) -> Any:
        return dict(self).values()

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __eq__(self, other: object) -> bool:
        return dict(self) == other

    def __repr__(self) -> str:
        return repr(dict(self))

    __hash__ = None


class _ReadAhead:
    """Reads parts of a stream, at most one ahead."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._ahead: AudioChunk | None = None

    def read(self, num_frames: int) -> list[AudioChunk]:
        """Return parts with `num_frames` frames in all, or fewer at the end of the stream."""
        parts: list[AudioChunk] = []
        while sum(len(part.codes) for part in parts) < num_frames:
            part, self._ahead = self._ahead or next(self._stream, None), None
            if part is None:
                break
            parts.append(part)
        return parts

    def is_over(self) -> bool:
        """Whether no samples follow. Waits for the next part that has samples."""
        try:
            while self._ahead is None or not len(self._ahead.samples):
                self._ahead = next(self._stream)
        except (StopIteration, StreamClosedError) as end:
            return isinstance(end, StopIteration)
        return False
