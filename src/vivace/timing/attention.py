"""Attention of finished frames to the text ids, from an extra pass over the model.

The pass does not use the backend, so every backend gives the same timings. Only the layers up to
the head's layer run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivace.model.cache import KeyValueCache
from vivace.model.config import Head
from vivace.model.layers import Block
from vivace.model.lora import one_adapter
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt


class TextAttention:
    """The attention of some heads to the text of the request; `read` may be called repeatedly."""

    def __init__(self, model: Qwen3TTS, prompt: Prompt, heads: Sequence[Head]) -> None:
        self._model, self._prompt, self._heads = model, prompt, heads
        self._track = [*prompt.text_ids, *prompt.trailing_ids]  # the text id of each row
        self._num_layers = max(head.layer for head in heads) + 1
        self._cache = KeyValueCache(self._num_layers)
        self._last: NDArray[np.int64] | None = None  # not yet read by the talker

    def extend(self, text_ids: Sequence[int], *, is_last: bool) -> None:
        """Add ids of a live text."""
        self._track += [*text_ids, *[self._model.config.tts_eos_token_id] * is_last]

    @torch.inference_mode()
    def read(self, codes: NDArray[np.int64], num_ids: int) -> NDArray[np.float32]:
        """Attention of the next frames [n, codebooks] to the first `num_ids` ids.

        Returns [heads, n, num_ids]; an id that the talker has not read at a frame gets 0. A frame
        is the output of the row before it, so the next call reads the last frame.
        """
        talker, device = self._model.talker, self._model.device
        prompt, start = self._prompt, self._cache.length
        is_first = self._last is None
        before = prompt.codes if self._last is None else self._last
        codes, self._last = np.concatenate([before, codes[:-1]]), codes[-1:]
        end = start + len(codes)
        self._track += [prompt.pad_id] * (end - len(self._track))
        has_speaker = is_first and prompt.speaker is not None
        adapters = one_adapter(prompt.adapter, device)
        x = talker.rows(
            torch.tensor(self._track[start:end], device=device),
            torch.from_numpy(codes).to(device),
            torch.from_numpy(prompt.speaker) if has_speaker else None,
            adapters,
        )[None]
        num_queries = end - max(start, len(prompt) - 1)
        first = prompt.own_row
        reader = _AttentionRecorder(self._cache, self._heads, num_queries, first, first + num_ids)
        rope = talker.rope.span(start, len(codes), x)
        *layers, last = (cast(Block, one) for one in talker.model.layers[: self._num_layers])
        for index, layer in enumerate(layers):
            x = layer(index, x, rope, reader, adapters)
        normed = last.input_layernorm(x)
        last.self_attn(len(layers), normed, rope, reader, adapters)  # without the MLP
        return reader.attention()


class _AttentionRecorder:
    """An `Attend` that stores the attention weights of some heads."""

    def __init__(
        self, cache: KeyValueCache, heads: Sequence[Head], num_queries: int, first: int, end: int
    ) -> None:
        self._cache, self._heads, self._num_queries = cache, heads, num_queries
        self._first, self._end = first, end  # columns
        self._found: dict[Head, Tensor] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attended = self._cache(layer, q, k, v)
        group = q.shape[1] // k.shape[1]
        for head in self._heads:
            if head.layer == layer:
                keys = self._cache.keys(layer)[0, head.index // group].float()
                queries = q[0, head.index, -self._num_queries :].float()
                self._found[head] = self._weigh(queries, keys)
        return attended

    def _weigh(self, queries: Tensor, keys: Tensor) -> Tensor:
        scores = queries @ keys.T * keys.shape[-1] ** -0.5  # [n, positions]
        seen = torch.ones_like(scores, dtype=torch.bool).tril(len(keys) - len(queries))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        missing = max(0, self._end - len(keys))
        return torch.nn.functional.pad(weights, (0, missing))[:, self._first : self._end]

    def attention(self) -> NDArray[np.float32]:
        found: NDArray[np.float32] = (
            torch.stack([self._found[h] for h in self._heads]).cpu().numpy()
        )
        return found
