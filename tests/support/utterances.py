"""Speaks prompts through an engine without a text, a script or a stream."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue

from vivace.backends.base import Backend
from vivace.engine.engine import Engine
from vivace.engine.streams.chunks import WHOLE, chunk_sizes
from vivace.engine.utterances.frame_block import FrameBlock, join_blocks
from vivace.engine.utterances.reader import UtteranceReader
from vivace.engine.utterances.utterance import Utterance
from vivace.prompt import Prompt
from vivace.speech import SamplingParams


def read_blocks(
    engine: Engine, prompt: Prompt, sampling: SamplingParams, sizes: Iterator[int]
) -> Iterator[FrameBlock]:
    """Blocks of at most these sizes in frames. Deleting the iterator cancels the utterance."""
    wakeups: SimpleQueue[None] = SimpleQueue()
    utterance = Utterance(
        prompt=prompt,
        sampling=sampling,
        wake=lambda: wakeups.put(None),
        is_guarded=False,
        has_budget=False,
    )
    reader = UtteranceReader(engine, utterance)
    try:
        reader.submit()
        for num_frames in sizes:
            reader.request(num_frames)
            while not reader.is_ready:
                wakeups.get()
            block = reader.take(num_frames)
            yield block
            if block.finish_reason is not None:
                return
    finally:
        reader.cancel()


def generate(backend: Backend, prompt: Prompt, sampling: SamplingParams) -> FrameBlock:
    """One complete prompt, unguarded."""
    return join_blocks(list(read_blocks(Engine(backend), prompt, sampling, chunk_sizes(WHOLE))))
