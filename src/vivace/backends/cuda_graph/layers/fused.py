"""`Layers` through fused Triton kernels: five launches a layer instead of about twenty.

A slot's results do not depend on its batch; see product_kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace.backends.cuda_graph.compile import is_collecting
from vivace.backends.cuda_graph.layers import draw_kernels, lora_products
from vivace.backends.cuda_graph.layers.attention import (
    Heads,
    Scratch,
    SlotKeys,
    attend_frame,
    attend_prompts,
    attend_slots,
)
from vivace.backends.cuda_graph.layers.frame import (
    DrawKind,
    KvPositions,
    SamplingState,
    SlotUpdater,
)
from vivace.backends.cuda_graph.layers.lora_products import add_linear, normed_linear
from vivace.backends.cuda_graph.layers.products import Residual
from vivace.backends.cuda_graph.layers.slot_kernels import FusedSlotUpdater
from vivace.backends.cuda_graph.slots.table import Number, Scale, SlotTable
from vivace.backends.frame_maker import FrameCodes, bans
from vivace.backends.slots import NUM_SPECIAL
from vivace.model.config import PredictorConfig, TalkerConfig
from vivace.model.layers import Block, Linear, RMSNorm, Rope
from vivace.model.talker import Qwen3TTS, choose_changed
from vivace.sampling import shape_scores, talker_scores
from vivace.speech import SamplingParams

Attend = Callable[[Tensor, Block, SlotKeys], Tensor]


class FusedLayers:
    name = "fused"
    packs_prompts = True
    frames_per_graph = 1

    def __init__(self, model: Qwen3TTS, table: SlotTable) -> None:
        config = model.config.talker_config
        self._talker, self._predictor = model.talker, model.talker.code_predictor
        self._config = config
        self._table = table
        size = config.num_code_groups
        self._heads = _heads(config, model.talker.rope, table.num_positions + 1, table.hidden)
        self._frame_heads = _heads(self._predictor.config, self._predictor.rope, size, table.hidden)
        self._frame_keys: dict[int, list[SlotKeys]] = {}  # of the predictor, by batch size
        self._tables = model.talker.code_tables
        self._ban, self._early_ban = bans(model)
        first, rest = (-(-c.vocab_size // 4) * 4 for c in (config, self._predictor.config))
        self._noise_starts = [0, *range(first, first + rest * (size - 1), rest)]

    def kind(self, params: Sequence[SamplingParams]) -> DrawKind:
        """The kernel supports top-k for any k; only top-p needs a separate graph."""
        kind = DrawKind.of(params)
        return kind if kind.has_top_p else DrawKind(None, has_top_p=False)

    def slot_updater(self, pad_id: int) -> SlotUpdater:
        texts = self._talker.model.text_embedding.weight
        changed = self.text_vectors if self._talker.unfolded is not None else None
        return FusedSlotUpdater(self._table, pad_id, texts, changed)

    def text_vectors(self, ids: Tensor, slots: Tensor) -> Tensor:
        vectors = self._talker.text_vectors(ids)
        adapters, unfolded = self._table.adapters_of(slots), self._talker.unfolded
        if adapters is None or unfolded is None:
            return vectors
        first, second = unfolded.projection.linear_fc1, unfolded.projection.linear_fc2
        inner = F.silu(lora_products.linear(unfolded.embedding(ids), first, adapters))
        return choose_changed(lora_products.linear(inner, second, adapters), vectors, adapters)

    def read(self, x: Tensor, place: KvPositions) -> Tensor:
        scratch = Scratch.make(len(x), self._heads, place.span, x.device)

        def attend(qkv: Tensor, block: Block, cache: SlotKeys) -> Tensor:
            return attend_slots(qkv, block, self._heads, cache, self._table, place, scratch)

        return self._run_talker(x, attend, place.slots)

    def read_prompts(self, x: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        def attend(qkv: Tensor, block: Block, cache: SlotKeys) -> Tensor:
            return attend_prompts(qkv, block, self._heads, cache, self._table, slots, positions)

        return self._run_talker(x, attend, slots)

    def _run_talker(self, x: Tensor, attend: Attend, slots: Tensor) -> Tensor:
        body, table = self._talker.model, self._table
        pairs = enumerate(zip(table.keys, table.values, strict=True))
        caches = [SlotKeys(keys, values, layer) for layer, (keys, values) in pairs]
        adapters = table.adapters_of(slots)
        stream = _run_blocks(_blocks(body.layers), x, body.norm, caches, attend, adapters)
        return stream.normalised()

    def draw_frame(self, hidden: Tensor, draws: SamplingState) -> FrameCodes:
        batch, width = hidden.shape
        num_groups, device = self._config.num_code_groups, hidden.device
        drawn = FrameCodes(
            codes=torch.empty(batch, num_groups, dtype=torch.int64, device=device),
            is_finite=torch.empty(batch, dtype=torch.int8, device=device),
            code_sum=torch.empty(batch, width, device=device),
        )
        noise = self._noise(draws)
        x = torch.empty(batch, 2, width, dtype=hidden.dtype, device=device)
        x[:, 0] = hidden
        logits = lora_products.linear(hidden, self._talker.codec_head, draws.adapters)
        self._draw(logits, noise, draws, 0, x[:, 1], drawn)
        self._draw_residual(x, noise, draws, drawn)
        return drawn

    def _draw_residual(
        self, x: Tensor, noise: Tensor, draws: SamplingState, drawn: FrameCodes
    ) -> None:
        """Draw codebooks 1 and up from the talker's hidden state and the first code's embedding."""
        for book in range(1, self._config.num_code_groups):
            logits = self.predict(x, book, draws.adapters)
            x = x.new_empty(len(x), 1, x.shape[2])
            self._draw(logits, noise, draws, book, x[:, 0], drawn)

    def predict(self, x: Tensor, book: int, adapters: Tensor | None = None) -> Tensor:
        """The new tokens of a frame, [B, 1 or 2, hidden], to the logits of `book`."""
        batch, num_new = x.shape[:2]
        predictor, rows = self._predictor, x.flatten(0, 1)
        of_rows = None if adapters is None else adapters[:, None].repeat(1, num_new).flatten()
        if self._config.has_projection:
            projection = cast("Linear", predictor.small_to_mtp_projection)
            rows = lora_products.linear(rows, projection, of_rows)
        first = book + 1 - num_new

        def attend(qkv: Tensor, block: Block, cache: SlotKeys) -> Tensor:
            return attend_frame(qkv, block, self._frame_heads, cache, first, num_new)

        body, caches = predictor.model, self._frame_cache(batch)
        stream = _run_blocks(_blocks(body.layers), rows, body.norm, caches, attend, of_rows)
        head = cast("Linear", predictor.lm_head[book - 1])
        last = stream.every(num_new)
        return normed_linear(last, head.weight, head.lora, adapters)

    def _draw(
        self,
        logits: Tensor,
        noise: Tensor,
        draws: SamplingState,
        book: int,
        next_x: Tensor,
        drawn: FrameCodes,
    ) -> None:
        is_first = book == 0
        if draws.kind.has_top_p:
            logits = logits.float()
            if not is_collecting():  # it would gather by numbers that no kernel has written
                logits = self._shape(logits, draws, is_first=is_first)
        draw_kernels.draw_code(
            logits,
            noise[:, self._noise_starts[book] :],
            draws,
            self._tables[book].weight,
            next_x,
            drawn,
            book,
            eos=self._config.codec_eos_token_id,
            first_special=self._config.vocab_size - NUM_SPECIAL,
        )

    def _shape(self, logits: Tensor, draws: SamplingState, *, is_first: bool) -> Tensor:
        """Scores with top-p, computed by sampling.py because the kernel does not support top-p."""
        shape = draws.shape(draws.talker if is_first else draws.predictor, logits.shape[1])
        if not is_first:
            return shape_scores(logits, shape)
        is_banned = torch.where(draws.is_early[:, None], self._early_ban, self._ban)
        penalty = draws.scales[Scale.PENALTY, :, None]
        return talker_scores(logits, draws.history, penalty, is_banned, shape)

    def _noise(self, draws: SamplingState) -> Tensor:
        """Gumbel noise of one frame, all codebooks: [B, codes]."""
        first, rest = self._config.vocab_size, self._predictor.config.vocab_size
        seeds, frames = draws.numbers[Number.SEED], draws.numbers[Number.NUM_FRAMES]
        return draw_kernels.gumbel_noise(seeds, frames, first, rest, self._config.num_code_groups)

    def _frame_cache(self, batch: int) -> list[SlotKeys]:
        """The predictor's KV cache of a frame, allocated once per batch size for the graphs."""
        if batch not in self._frame_keys:
            config, like = self._predictor.config, self._table.hidden
            shape = (batch, config.num_key_value_heads, config.num_code_groups, config.head_dim)
            self._frame_keys[batch] = [
                SlotKeys(like.new_empty(shape), like.new_empty(shape))
                for _ in range(config.num_hidden_layers)
            ]
        return self._frame_keys[batch]


def _heads(config: TalkerConfig | PredictorConfig, rope: Rope, length: int, like: Tensor) -> Heads:
    cos, sin = rope.span(0, length, like)
    return Heads(config.num_attention_heads, config.num_key_value_heads, config.head_dim, cos, sin)


def _blocks(layers: nn.ModuleList) -> list[Block]:
    return [cast("Block", layer) for layer in layers]


def _run_blocks(
    blocks: Sequence[Block],
    rows: Tensor,  # [M, hidden]
    last_norm: RMSNorm,
    caches: Sequence[SlotKeys],
    attend: Attend,
    adapters: Tensor | None,  # [M], of the rows
) -> Residual:
    norms = [*(block.input_layernorm for block in blocks[1:]), last_norm]
    stream = Residual(rows, blocks[0].input_layernorm)
    for block, cache, next_norm in zip(blocks, caches, norms, strict=True):
        attention, mlp = block.self_attn, block.mlp
        qkv = normed_linear(stream, attention.qkv_weight, attention.qkv_lora, adapters)
        attended, norm = attend(qkv, block, cache), block.post_attention_layernorm
        stream = add_linear(stream, attended, attention.o_proj, norm, adapters)
        inner = normed_linear(stream, mlp.gate_up_weight, mlp.gate_up_lora, adapters, is_gated=True)
        stream = add_linear(stream, inner, mlp.down_proj, next_norm, adapters)
    return stream
