"""The codec's decoder for a batch of slots with their own streaming state, in plain PyTorch.

A slot's state is one row of a table. Layers read and write it by slot number, so one graph serves
any batch of its size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vivace.backends.cuda_graph.slots.state_cache import State
from vivace.model import ops
from vivace.model.codec import Codec
from vivace.model.codec_decoder import PreTransformer
from vivace.model.precision import full_precision


class SlotTails:
    """`CausalState` for many slots: the last input columns of every causal layer, by slot.

    The first pass records the layers' shapes; `allocate` then allocates the state of all slots.
    """

    def __init__(self) -> None:
        self._shapes: list[tuple[int, ...]] = []
        self._tails: list[Tensor] = []
        self.rows = torch.empty(0)  # slots of the current pass
        self._cursor = 0

    def begin(self, rows: Tensor) -> None:
        """Start a pass for these slots."""
        self.rows, self._cursor = rows, 0

    def allocate(self, num_rows: int, device: torch.device) -> Tensor:
        """The table: [slots, state of all layers]."""
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        table = torch.zeros(num_rows, sum(sizes), device=device)
        parts = table.split(sizes, dim=1)
        self._tails = [p.unflatten(1, s) for p, s in zip(parts, self._shapes, strict=True)]
        return table

    def extend(self, x: Tensor, width: int, *, dim: int = -1) -> Tensor:
        """Prepend this layer's kept columns to `x`; keep the last `width` for the next call."""
        if not self._tails:
            return self._learn(x, width, dim)
        tail = self._tails[self._cursor]
        self._cursor += 1
        joined = torch.cat((tail.index_select(0, self.rows), x), dim=dim)
        kept = joined.narrow(dim, joined.shape[dim] - width, width)
        tail.index_copy_(0, self.rows, kept)
        return joined

    def _learn(self, x: Tensor, width: int, dim: int) -> Tensor:
        shape = list(x.shape)
        shape[dim] = width
        self._shapes.append(tuple(shape[1:]))
        return torch.cat((x.new_zeros(shape), x), dim=dim)


class SlotDecoder(ABC):
    """A streaming decoder of many slots; a subclass implements `_run`."""

    name: str
    fallback: str | None = None  # why the requested fused kernels are not used

    def __init__(self, table: Tensor) -> None:
        self._table = table  # [slots, state of all layers]
        self._num_seen = torch.zeros(len(table), dtype=torch.int64, device=table.device)

    @property
    def num_bytes(self) -> int:
        return self._table.nbytes

    def reset(self, rows: Tensor | int) -> None:
        """Clear the streaming state of these slots, or of one."""
        if isinstance(rows, int):
            self._table[rows].zero_()
            self._num_seen[rows].zero_()
            return
        self._clear(rows)
        self._num_seen.index_fill_(0, rows, 0)

    def _clear(self, rows: Tensor) -> None:
        self._table.index_fill_(0, rows, 0)

    def copy_state(self, row: int) -> State:
        """The complete streaming state of a slot."""
        return self._table[row].clone(), self._num_seen[row].clone()

    def set_state(self, row: int, state: State) -> None:
        for kept, value in zip((self._table, self._num_seen), state, strict=True):
            kept[row].copy_(value)

    def decode(self, rows: Tensor, codes: Tensor) -> Tensor:
        """Codes [B, T, codebooks] to samples [B, T * samples per frame]."""
        samples = self._run(rows, codes)
        self._num_seen[rows] = self._num_seen.index_select(0, rows) + codes.shape[1]
        return samples

    @abstractmethod
    def _run(self, rows: Tensor, codes: Tensor) -> Tensor:
        """`decode`, before the frames are counted."""


class PlainDecoder(SlotDecoder):
    """The model's modules, with `SlotTails` instead of the state of a single stream."""

    name = "plain PyTorch"

    def __init__(self, codec: Codec, num_rows: int, *, fallback: str | None = None) -> None:
        self._decoder, self._tails = codec.decoder, SlotTails()
        row = torch.zeros(1, dtype=torch.int64, device=codec.device)
        super().__init__(row[:, None])  # one pass determines the size of the state
        self.decode(row, row.expand(1, 1, codec.config.decoder_config.num_quantizers))
        super().__init__(self._tails.allocate(num_rows, codec.device))
        self.fallback = fallback

    def _run(self, rows: Tensor, codes: Tensor) -> Tensor:
        decoder, tails = self._decoder, self._tails
        tails.begin(rows)
        num_seen = self._num_seen.index_select(0, rows)
        with full_precision():
            x = decoder.pre_conv(decoder.quantizer(codes.transpose(1, 2)), tails).transpose(1, 2)
            x = transform(decoder.pre_transformer, x, tails, num_seen).transpose(1, 2)
            for stage in decoder.upsample:
                x = stage(x, tails)
            samples: Tensor = decoder.decoder(x, tails)[:, 0]
        return samples.clamp(-1.0, 1.0)


def transform(transformer: PreTransformer, x: Tensor, tails: SlotTails, num_seen: Tensor) -> Tensor:
    """Latents [B, T, latent_dim] to latents, for slots that have decoded `num_seen` frames."""
    x = transformer.input_proj(x)
    attend = WindowAttention(tails, num_seen, x.shape[1], transformer.window)
    positions = num_seen[:, None, None] + torch.arange(x.shape[1], device=x.device)  # [B, 1, T]
    rope = ops.rope_table(positions, transformer.rope.head_dim, transformer.rope.theta)
    for index, layer in enumerate(transformer.layers):
        x = layer(index, x, rope, attend)
    return transformer.output_proj(transformer.norm(x))


class WindowAttention:
    """Attention over the last `window` frames; frames before a slot's first are masked."""

    def __init__(self, tails: SlotTails, num_seen: Tensor, length: int, window: int) -> None:
        self._tails, self._num_past = tails, window - 1
        steps = torch.arange(length, device=num_seen.device)
        keys = torch.arange(length + window - 1, device=num_seen.device) - (window - 1)
        is_near = (keys <= steps[:, None]) & (keys > steps[:, None] - window)  # [T, past + T]
        is_real = keys + num_seen[:, None] >= 0  # [B, past + T]
        self._mask = (is_near & is_real[:, None])[:, None]  # [B, 1, T, past + T]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (self._tails.extend(part, self._num_past, dim=-2) for part in (k, v))
        group = q.shape[1] // k.shape[1]
        if group > 1:
            k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self._mask)
