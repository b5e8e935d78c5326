"""From a prompt to an utterance: the whole of a session, put together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import Backend, Samples
from vivace.engine.session import WHOLE, Piece, Session, chunk_sizes
from vivace.prompt import Prompt
from vivace.speech import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    samples: Samples
    codes: NDArray[np.int64]  # [frames, codebooks]
    finish_reason: FinishReason
    num_stalled: int  # frames at the end that say nothing


def generate(backend: Backend, prompt: Prompt, sampling: SamplingParams) -> Utterance:
    """Speak one complete prompt, unguarded; the slot is free again whatever happens."""
    session = Session(
        backend=backend,
        lock=Lock(),
        write_prompt=lambda: prompt,
        sampling=sampling,
        is_guarded=False,
        has_budget=False,
    )
    return join(session.pieces(chunk_sizes(WHOLE)))


def join(pieces: Iterable[Piece]) -> Utterance:
    """All pieces of a session as one utterance."""
    made = list(pieces)
    last = made[-1]
    assert last.finish_reason is not None
    return Utterance(
        samples=np.concatenate([piece.samples for piece in made]),
        codes=np.concatenate([piece.codes for piece in made]),
        finish_reason=last.finish_reason,
        num_stalled=last.num_stalled,
    )
