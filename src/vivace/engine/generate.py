"""From a prompt to an utterance: the whole of a session, put together."""

from __future__ import annotations

from vivace.backends.base import Backend
from vivace.engine.engine import Engine
from vivace.engine.piece import Piece, join
from vivace.engine.session import WHOLE, Opening, Session, chunk_sizes
from vivace.prompt import Prompt
from vivace.speech import SamplingParams


def generate(backend: Backend, prompt: Prompt, sampling: SamplingParams) -> Piece:
    """Speak one complete prompt, unguarded; the slot is free again whatever happens."""
    session = Session(
        engine=Engine(backend),
        write_opening=lambda: Opening(prompt),
        sampling=sampling,
        is_guarded=False,
        has_budget=False,
    )
    return join(list(session.pieces(chunk_sizes(WHOLE))))
