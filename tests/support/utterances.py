"""Speaks prompts through an engine without a text, a script or a stream."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue

from vivace.backends.base import Backend
from vivace.engine.chunks import WHOLE, chunk_sizes
from vivace.engine.engine import Engine
from vivace.engine.utterance import Piece, Utterance, join
from vivace.prompt import Prompt
from vivace.speech import SamplingParams


def read_pieces(
    engine: Engine, prompt: Prompt, sampling: SamplingParams, sizes: Iterator[int]
) -> Iterator[Piece]:
    """Pieces of at most these sizes in frames. Deleting the iterator cancels the utterance."""
    bell: SimpleQueue[None] = SimpleQueue()
    utterance = Utterance(
        prompt=prompt,
        sampling=sampling,
        wake=lambda: bell.put(None),
        is_guarded=False,
        has_budget=False,
    )
    try:
        engine.submit(utterance)
        for num_frames in sizes:
            engine.request(utterance, num_frames)
            while not utterance.is_ready:
                bell.get()
            utterance.num_wanted = 0
            piece = utterance.take(num_frames)
            yield piece
            if piece.finish_reason is not None:
                return
    finally:
        engine.cancel(utterance)


def generate(backend: Backend, prompt: Prompt, sampling: SamplingParams) -> Piece:
    """One complete prompt, unguarded."""
    return join(list(read_pieces(Engine(backend), prompt, sampling, chunk_sizes(WHOLE))))
