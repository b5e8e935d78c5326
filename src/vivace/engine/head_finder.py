"""Searches the attention head to watch in a checkpoint whose config names none."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from vivace.engine.engine import Engine
from vivace.prompt import Prompt
from vivace.timing.timer import MIN_IDS, Timer

log = logging.getLogger(__name__)

MAX_TRIES = 3  # utterances whose attention is computed for all heads


class HeadFinder:
    """Computes the attention of all heads for the first utterances, on the engine's thread.

    Later utterances are checked for missing words.
    """

    def __init__(self, engine: Engine, timer: Timer) -> None:
        self._engine, self._timer = engine, timer
        self._num_tries = 0

    def offer(self, prompt: Prompt, num_ids: int, codes: NDArray[np.int64]) -> None:
        """Use an utterance that was spoken to its end, unless its text was live."""
        is_over = self._engine.backend.watched is not None or self._num_tries >= MAX_TRIES
        if is_over or num_ids < MIN_IDS or not prompt.is_complete or not len(codes):
            return
        self._num_tries += 1
        self._engine.post(lambda: self._read(prompt, num_ids, codes), lambda: None)

    def _read(self, prompt: Prompt, num_ids: int, codes: NDArray[np.int64]) -> None:
        if self._engine.backend.watched is not None:
            return
        try:
            self._timer.find_head(prompt, num_ids, codes)
        except Exception:
            log.warning("reading the attention heads failed", exc_info=True)
            self._num_tries = MAX_TRIES
