"""`Layers` through the model's own PyTorch modules: any device, any dtype.

Reference for the fused kernels, and fallback where these kernels cannot run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vivace.backends.cuda_graph.layers.frame import (
    DrawKind,
    KvPositions,
    SamplingState,
    SlotUpdater,
)
from vivace.backends.cuda_graph.slots.pages import PAGE, num_pages
from vivace.backends.cuda_graph.slots.table import Number, Scale, SlotTable
from vivace.backends.frame_maker import FrameCodes, FrameSampling, bans, draw_frame, noise_table
from vivace.model.cache import KeyValueCache
from vivace.model.config import Head
from vivace.model.talker import Qwen3TTS
from vivace.speech import SamplingParams


class PlainLayers:
    name = "plain"
    packs_prompts = False
    frames_per_graph = 1

    def __init__(self, model: Qwen3TTS, table: SlotTable) -> None:
        config = model.config.talker_config
        self._talker, self._predictor = model.talker, model.talker.code_predictor
        self._config = config
        self._table = table
        self._rope = model.talker.rope.span(0, table.num_positions + 1, table.hidden)
        self._caches: dict[int, KeyValueCache] = {}  # of the predictor, by batch size
        self._noise = noise_table(model)
        self._ban, self._early_ban = bans(model)

    def kind(self, params: Sequence[SamplingParams]) -> DrawKind:
        return DrawKind.of(params)

    def slot_updater(self, pad_id: int) -> SlotUpdater:
        return SlotUpdater(self._table, pad_id, self.text_vectors)

    def text_vectors(self, ids: Tensor, slots: Tensor) -> Tensor:
        return self._talker.text_vectors(ids, self._table.adapters_of(slots))

    def read(self, x: Tensor, place: KvPositions) -> Tensor:
        cos, sin = self._rope
        rope = (cos[place.position, None, None], sin[place.position, None, None])
        adapters = self._table.adapters_of(place.slots)
        return self._talker(x[:, None], rope, SlotAttention(self._table, place), adapters)[:, 0]

    def read_prompts(self, x: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """`x` holds all rows of one prompt."""
        cos, sin = self._rope
        attend = StoringAttention(self._table, slots, positions)
        rope, adapters = (cos[positions], sin[positions]), self._table.adapters_of(slots[:1])
        hidden: Tensor = self._talker(x[None], rope, attend, adapters)[0]
        return hidden

    def draw_frame(self, hidden: Tensor, draws: SamplingState) -> FrameCodes:
        noise = self._noise.frames(
            draws.numbers[Number.SEED], draws.numbers[Number.NUM_FRAMES], num_frames=1
        )
        sampling = FrameSampling(
            draws.shape(draws.talker, self._config.vocab_size),
            draws.shape(draws.predictor, self._predictor.config.vocab_size),
            draws.scales[Scale.PENALTY, :, None],
        )
        cache = self._cache(len(hidden))
        return draw_frame(
            self._talker,
            lambda x: self._predictor(x, cache.length, cache, draws.adapters)[:, -1],
            hidden[:, None],
            sampling,
            [part[:, 0] for part in sampling.zero_greedy_noise(noise)],
            history=draws.history,
            is_banned=torch.where(draws.is_early[:, None], self._early_ban, self._ban),
            adapters=draws.adapters,
        )

    def _cache(self, batch: int) -> KeyValueCache:
        """One cache per batch size: a captured graph needs fixed addresses."""
        if batch not in self._caches:
            num_layers = self._predictor.config.num_hidden_layers
            self._caches[batch] = KeyValueCache(num_layers, self._config.num_code_groups)
        self._caches[batch].clear()
        return self._caches[batch]


class SlotAttention:
    """Attention of each row to its slot's KV cache, up to `place.span` positions."""

    def __init__(self, table: SlotTable, place: KvPositions) -> None:
        self._table, self._place = table, place
        seen = torch.arange(place.span, device=place.num_keys.device) < place.num_keys[:, None]
        self._mask = seen[:, None, None]  # [B, 1, 1, span]
        self._unseen = ~seen[:, None, :, None]
        self._page, self._offset = _place(table, place.slots, place.position)
        self._pages = table.pages[place.slots, : num_pages(place.span)]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Query heads of a KV head are treated as positions: [B, kv_heads, group, head_dim]."""
        keys, values = self._table.keys[layer], self._table.values[layer]
        keys[self._page, :, self._offset] = k[:, :, 0]
        values[self._page, :, self._offset] = v[:, :, 0]
        keys, values = self._gather(keys), self._gather(values)
        grouped = q.unflatten(1, (k.shape[1], -1)).squeeze(3)
        if (head := self._table.head) is not None and head.layer == layer:
            self._keep_scores(grouped.flatten(1, 2)[:, head.index], keys, head)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=self._mask)
        return out.flatten(1, 2).unsqueeze(2)

    def _keep_scores(self, query: Tensor, keys: Tensor, head: Head) -> None:
        """Store the scores of one head, with queries [B, head_dim]."""
        group = self._table.config.num_attention_heads // keys.shape[1]
        own = keys[:, head.index // group].float()  # [B, span, head_dim]
        scores = torch.einsum("bd,bsd->bs", query.float(), own) * query.shape[1] ** -0.5
        self._table.scores[:, : self._place.span].index_copy_(0, self._place.slots, scores)

    def _gather(self, cache: Tensor) -> Tensor:
        """[B, kv_heads, span, head_dim]; 0 at unused positions, whose pages may hold NaN."""
        found = cache[self._pages].transpose(1, 2).flatten(2, 3)[:, :, : self._place.span]
        return found.masked_fill(self._unseen, 0)


class StoringAttention:
    """Causal attention within a prompt; stores its keys and values in the slot's KV cache."""

    def __init__(self, table: SlotTable, slots: Tensor, positions: Tensor) -> None:
        self._table = table
        self._page, self._offset = _place(table, slots, positions)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._table.keys[layer][self._page, :, self._offset] = k[0].transpose(0, 1)
        self._table.values[layer][self._page, :, self._offset] = v[0].transpose(0, 1)
        group = q.shape[1] // k.shape[1]
        k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _place(table: SlotTable, slots: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's page and its offset in that page."""
    return table.pages[slots, positions // PAGE], positions % PAGE
