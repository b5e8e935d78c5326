"""One step of the talker as one kernel launch; see talker.cu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vivace.backends.cuda_graph.layers.frame import KvPositions
from vivace.backends.cuda_graph.slots.pages import PAGE, num_pages
from vivace.backends.cuda_graph.slots.table import SlotTable
from vivace.backends.megakernel.kernel import (
    CHUNK_BYTES,
    MAX_BATCH,
    Kernel,
    StackSize,
    head_bytes,
    layer_tensors,
    padded,
    stack_sizes,
)
from vivace.model.config import TalkerConfig, Weights
from vivace.model.talker import Qwen3TTS

if TYPE_CHECKING:
    from vivace.backends.cuda_graph.layers.attention import Heads

KEYS = PAGE  # keys per chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerDimensions(StackSize):
    @classmethod
    def of(cls, config: TalkerConfig, weights: Weights = "full") -> TalkerDimensions:
        return cls(**stack_sizes(config), fp8_mlp=int(weights == "fp8"))

    @property
    def refusal(self) -> str | None:
        """Why the kernel does not support them, or None."""
        return None if self.fits(max_group=8) else "the talker's dimensions do not fit its tiles"

    @property
    def slot_bytes(self) -> int:
        """Size of a slot in the ring buffer: the larger of a chunk of keys and one of weights."""
        return max(KEYS * head_bytes(self.head_dim), CHUNK_BYTES)


class TalkerKernel(Kernel):
    def __init__(
        self, model: Qwen3TTS, table: SlotTable, heads: Heads, size: TalkerDimensions, code: bytes
    ) -> None:
        super().__init__("talker", code, size.slot_bytes, model.device)
        self._dimensions, self._table = size, table
        body = model.talker.model
        rope = [heads.cos.contiguous(), heads.sin.contiguous()]
        mlp = self.packer(is_fp8=bool(size.fp8_mlp))
        others = self.packer(is_fp8=False)
        layers = layer_tensors(body.layers, mlp, others)
        self.set_weights([*layers, body.norm.weight, *rope])
        self._max_chunks = num_pages(table.num_positions)
        num_sums = MAX_BATCH * size.heads * self._max_chunks * (size.head_dim + 2)
        self._partials = torch.zeros(num_sums, dtype=torch.int64, device=model.device)

    def run(self, x: Tensor, place: KvPositions) -> Tensor:
        """Rows [B, hidden] to hidden states [B, hidden]. Stores the rows' keys and values."""
        batch, size = len(x), self._dimensions
        rows = batch * (2 * padded(max(size.inter, size.mixed, size.hidden)) + 16)
        self.check_shared(self.shared_bytes + -(-rows // 128) * 128, batch)
        x, hidden = x.contiguous(), torch.empty_like(x)
        keys, pages, scores = self._table.keys, self._table.pages, self._table.scores
        self.launch(
            x=x,
            hidden=hidden,
            keys=keys,
            values=self._table.values,
            pages=pages,
            slots=place.slots,
            position=place.position,
            num_keys=place.num_keys,
            partials=self._partials,
            watch=self._table.watch,
            scores=scores,
            layer_stride=keys.stride(0),
            page_stride=keys.stride(1),
            head_stride=keys.stride(2),
            batch=batch,
            max_chunks=self._max_chunks,
            pages_stride=pages.stride(0),
            score_stride=scores.stride(0),
        )
        return hidden
