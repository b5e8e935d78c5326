"""One step of the talker as one kernel launch; see talker.cu."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_uint32, c_uint64
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vivace.backends.cuda_graph.pages import PAGE, num_pages
from vivace.backends.cuda_graph.slot_table import SlotTable
from vivace.backends.cuda_graph.slot_updates import KvPositions
from vivace.backends.megakernel.kernel import (
    CHUNK_BYTES,
    MAX_BATCH,
    Kernel,
    blocks,
    head_bytes,
    layer_tensors,
    padded,
)
from vivace.model.config import TalkerConfig
from vivace.model.fp8 import Weights
from vivace.model.talker import Qwen3TTS

if TYPE_CHECKING:
    from vivace.backends.cuda_graph.launch import Heads

KEYS = PAGE  # of a chunk


class KernelArguments(ctypes.Structure):
    """The struct of the same name in talker.cu."""

    _fields_ = (
        *(
            (name, c_uint64)
            for name in (
                "weights", "x", "hidden", "keys", "values", "pages", "slots", "position",
                "num_keys", "partials", "exchange", "control", "watch", "scores",
            )
        ),
        *((name, c_int64) for name in ("layer_stride", "page_stride", "head_stride")),
        *((name, c_uint32) for name in (
            "batch", "max_chunks", "shared_bytes", "pages_stride", "score_stride",
        )),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerDimensions:
    """The dimensions that the kernel is compiled for."""

    hidden: int
    inter: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    eps: float
    fp8_mlp: int = 0  # whether these are in e4m3
    fp8_others: int = 0

    @classmethod
    def of(cls, config: TalkerConfig, weights: Weights = "full") -> TalkerDimensions:
        return cls(
            hidden=config.hidden_size,
            inter=config.intermediate_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            layers=config.num_hidden_layers,
            eps=config.rms_norm_eps,
            fp8_mlp=int(weights == "fp8"),
        )

    @property
    def mixed(self) -> int:
        return self.heads * self.head_dim

    @property
    def refusal(self) -> str | None:
        """Why the kernel does not support them, or None; stages.cuh asserts the same."""
        fits = (
            self.head_dim in (64, 128)
            and self.heads % self.kv_heads == 0
            and self.heads <= 8 * self.kv_heads
            and not any(size % 64 for size in (self.hidden, self.inter))
            and self.hidden <= 2048
        )
        return None if fits else "the talker's dimensions do not fit its tiles"

    @property
    def options(self) -> list[str]:
        """Compiler flags."""
        numbers = {field.name: getattr(self, field.name) for field in fields(self)}
        numbers["eps"] = f"{self.eps!r}f"
        numbers["softmax_scale"] = f"{self.head_dim**-0.5!r}f"
        return [f"-D{name.upper()}={value}" for name, value in numbers.items()]

    @property
    def slot_bytes(self) -> int:
        """Of the ring buffer: a chunk of keys or one of weights."""
        return max(KEYS * head_bytes(self.head_dim), CHUNK_BYTES)


class TalkerKernel:
    def __init__(
        self, model: Qwen3TTS, table: SlotTable, heads: Heads, size: TalkerDimensions, code: bytes
    ) -> None:
        self._kernel = Kernel("talker", code, size.slot_bytes, model.device)
        self._dimensions, self._table = size, table
        body = model.talker.model
        self._rope = [heads.cos.contiguous(), heads.sin.contiguous()]  # kept alive
        mlp = self._kernel.packer(is_fp8=bool(size.fp8_mlp))
        others = self._kernel.packer(is_fp8=False)
        layers = [
            each for block in blocks(body.layers) for each in layer_tensors(block, mlp, others)
        ]
        self._weights = self._kernel.pointers([*layers, body.norm.weight, *self._rope])
        self._max_chunks = num_pages(table.num_positions)
        num_sums = MAX_BATCH * size.heads * self._max_chunks * (size.head_dim + 2)
        self._partials = torch.zeros(num_sums, dtype=torch.int64, device=model.device)

    @property
    def num_packed_bytes(self) -> int:
        return self._kernel.num_packed_bytes

    @property
    def num_faults(self) -> int:
        return self._kernel.num_faults

    def run(self, x: Tensor, place: KvPositions) -> Tensor:
        """Rows [B, hidden] to hidden states [B, hidden]; stores their keys and values."""
        batch, size = len(x), self._dimensions
        rows = batch * (2 * padded(max(size.inter, size.mixed, size.hidden)) + 16)
        self._kernel.check_shared(self._kernel.shared_bytes + -(-rows // 128) * 128, batch)
        x, hidden = x.contiguous(), torch.empty_like(x)
        keys, pages = self._table.keys, self._table.pages
        request = KernelArguments(
            weights=self._weights.data_ptr(),
            x=x.data_ptr(),
            hidden=hidden.data_ptr(),
            keys=keys.data_ptr(),
            values=self._table.values.data_ptr(),
            pages=pages.data_ptr(),
            slots=place.slots.data_ptr(),
            position=place.position.data_ptr(),
            num_keys=place.num_keys.data_ptr(),
            partials=self._partials.data_ptr(),
            exchange=self._kernel.exchange.data_ptr(),
            control=self._kernel.control.data_ptr(),
            watch=self._table.watch.data_ptr(),
            scores=self._table.scores.data_ptr(),
            layer_stride=keys.stride(0),
            page_stride=keys.stride(1),
            head_stride=keys.stride(2),
            batch=batch,
            max_chunks=self._max_chunks,
            shared_bytes=self._kernel.most_shared,
            pages_stride=pages.stride(0),
            score_stride=self._table.scores.stride(0),
        )
        self._kernel.launch(request)
        return hidden
