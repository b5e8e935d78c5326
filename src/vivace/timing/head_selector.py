"""Selects the talker's attention head that follows the text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vivace.model.config import Head, ModelConfig
from vivace.prompt import Prompt
from vivace.timing.path import MAX_STEP, TextPath, Weights

if TYPE_CHECKING:
    from vivace.model.talker import Qwen3TTS
    from vivace.timing.attention import TextAttention

log = logging.getLogger(__name__)

MIN_SCORE = 0.5  # of a head that follows the text; the embedded voice's head scores 0.78
MIN_IDS = 12  # shorter texts do not select a head
NUM_LIKELY = 12  # heads that are scored
MAX_STEADY = 0.8  # share of steps of exactly one id; above, a head counts rows


class HeadSelector:
    """The head of one model: given by the config, or the first head that follows a text.

    `on_head` is called on the engine's thread with a selected head. `model` is called when
    attention is read: the model may not be loaded before.
    """

    def __init__(
        self,
        config: ModelConfig,
        model: Callable[[], Qwen3TTS],
        on_head: Callable[[Head], None] = lambda head: None,
    ) -> None:
        talker = config.talker_config
        self._model = model
        layers, heads = range(talker.num_hidden_layers), range(talker.num_attention_heads)
        self._all = [Head(layer, head) for layer, head in product(layers, heads)]
        timing = config.timing_config
        self._head = timing.followed if timing else None
        self._has_warned = False
        self._on_head = on_head

    def read_all(
        self, prompt: Prompt, codes: NDArray[np.int64], num_ids: int
    ) -> NDArray[np.float32]:
        """The attention of all heads in one utterance: its prompt and its codes [n, codebooks]."""
        return self.attention(prompt, self._all).read(codes, num_ids)

    def find_head(self, weights: NDArray[np.float32]) -> None:
        """Select the head by the attention of all heads: [heads, frames, ids]."""
        if self._pick(self._all, weights) is None:
            log.info("no attention head follows the text; speech is not checked for missing words")

    def attention(self, prompt: Prompt, heads: Sequence[Head]) -> TextAttention:
        """Reads the attention of these heads for one utterance."""
        from vivace.timing.attention import TextAttention  # imports PyTorch

        return TextAttention(self._model(), prompt, heads)

    @property
    def heads(self) -> Sequence[Head]:
        """The selected head, or all heads until one is selected."""
        return [self._head] if self._head else self._all

    def choose(self, heads: Sequence[Head], weights: NDArray[np.float32]) -> int | None:
        """Select the head that follows the text by `weights` [heads, frames, ids], or None."""
        if weights.shape[2] < MIN_IDS:
            return None
        best = self._pick(heads, weights)
        if best is None and not self._has_warned:
            self._has_warned = True
            log.warning("no word timings: no attention head of this checkpoint follows the text")
        return best

    def _pick(self, heads: Sequence[Head], weights: NDArray[np.float32]) -> int | None:
        likely = _likely(weights)
        scores = [score(weights[one]) for one in likely]
        found = int(np.argmax(scores))
        if scores[found] >= MIN_SCORE:
            best = int(likely[found])
            self._head = heads[best]
            log.info("%s follows the text, score %.2f", heads[best], scores[found])
            self._on_head(heads[best])
            return best
        return None


def _likely(weights: NDArray[np.float32]) -> NDArray[np.int64]:
    """The heads whose peaks move forward through most of the text; only these are scored."""
    peaks = weights.argmax(2)  # [heads, frames]
    steps = np.diff(peaks, axis=1)
    forward = ((steps >= 0) & (steps <= MAX_STEP)).mean(1) if steps.size else np.ones(len(peaks))
    rough = forward * peaks.max(1) * weights.sum(2).mean(1)
    order: NDArray[np.int64] = np.argsort(-rough, kind="stable")[:NUM_LIKELY]
    return order


def score(weights: Weights) -> float:
    """How well a head follows its text, 0 to 1: attention near the path times ids passed."""
    path = TextPath()
    for row in weights:
        path.step(row)
    path.finish()
    places = np.asarray(path.places)
    steps = np.diff(places[places < weights.shape[1] - 1])
    if places[-1] < weights.shape[1] - 3 or (len(steps) and (steps == 1).mean() > MAX_STEADY):
        return 0.0
    near = [row[max(0, p - 1) : p + 2].sum() for row, p in zip(weights, places, strict=True)]
    return float(np.mean(near) * len(set(path.places)) / weights.shape[1])
