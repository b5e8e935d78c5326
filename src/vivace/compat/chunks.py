"""Streams audio in chunks of a fixed number of frames, with timings, as faster-qwen3-tts does."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.audio.clip import AudioChunk
from vivace.compat.speaking import note_runaway, open_stream
from vivace.engine.chunks import chunk_sizes
from vivace.engine.stream import Stream
from vivace.script.request import Request
from vivace.tts import TTS

TimedChunk = tuple[NDArray[np.float32], int, dict[str, Any]]


def timed_chunks(
    tts: TTS, wanted: Request, sampling: Mapping[str, Any], chunk_size: int
) -> Iterator[TimedChunk]:
    chunk_sizes(chunk_size)  # refuses what is no number of frames
    with open_stream(tts, wanted, sampling, chunk_frames=_sizes(chunk_size)) as stream:
        yield from _timed(stream, chunk_size)
        note_runaway(stream.finish_reason, sampling)


def _sizes(chunk_size: int) -> Iterator[int]:
    """Chunk sizes: each chunk after the first is read as one frame and then its rest."""
    if chunk_size == 1:
        return itertools.repeat(1)
    return itertools.chain([chunk_size], itertools.cycle([1, chunk_size - 1]))


def _timed(stream: Stream, chunk_size: int) -> Iterator[TimedChunk]:
    """Delay each chunk until the next frame shows whether it is the last."""
    held: list[AudioChunk] = []
    num_steps = 0
    for index in itertools.count():
        began = time.perf_counter()
        is_final = True
        for chunk in stream:
            held.append(chunk)
            if sum(len(part.codes) for part in held) > chunk_size:
                is_final = False
                break
        ready, held = (held, []) if is_final else (held[:-1], held[-1:])
        steps = sum(len(part.codes) for part in ready)
        num_steps += steps
        timing = {
            "chunk_index": index,
            "chunk_steps": steps,
            "prefill_ms": 0.0 if index else stream.admit_ms,
            "decode_ms": 1000 * (time.perf_counter() - began),
            "total_steps_so_far": num_steps,
            "is_final": is_final,
        }
        samples = np.concatenate([part.samples for part in ready])
        yield samples, ready[0].sample_rate, timing
        if is_final:
            return
