"""Low-rank changes of linear layers for several adapters, one adapter for each row of a batch.

A row has the number of its adapter; 0 is none. The matrices of all adapters are stacked and padded
with zeros to the largest rank of their layer. A row's result does not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]  # (a [rank, in], b [out, rank]) of one part


class StackedLora(nn.Module):
    """The low-rank matrices of one product, for all adapters.

    A joined product has several parts: queries, keys and values, or gate and up. Each part has
    matrices of its own.
    """

    a: Tensor  # [adapters, parts * rank, in]
    b: Tensor  # [adapters, out of all parts, rank], times the adapter's scale
    starts: Tensor  # int32 [out of all parts]: the first row in `a` of an output's part

    def __init__(self, a: Tensor, b: Tensor, sizes: Sequence[int]) -> None:  # outputs of each part
        super().__init__()
        self.sizes = list(sizes)
        self.register_buffer("a", a, persistent=False)
        self.register_buffer("b", b, persistent=False)
        starts = [part * b.shape[2] for part, size in enumerate(sizes) for _ in range(size)]
        starts_of = torch.tensor(starts, dtype=torch.int32, device=a.device)
        self.register_buffer("starts", starts_of, persistent=False)

    @classmethod
    def stack(
        cls,
        adapters: Sequence[Sequence[Pair | None]],  # of each adapter: a pair or None for each part
        sizes: Sequence[int],
        like: Tensor,  # weight of a part: [out, in]
    ) -> StackedLora:
        """Stack the pairs of all adapters, whose b includes the scale."""
        ranks = [len(pair[0]) for pairs in adapters for pair in pairs if pair is not None]
        rank, num_adapters = max(ranks), len(adapters)
        a = like.new_zeros(num_adapters, len(sizes), rank, like.shape[1])
        b = like.new_zeros(num_adapters, sum(sizes), rank)
        for number, pairs in enumerate(adapters):
            parts = b[number].split(list(sizes))
            for pair, rows, columns in zip(pairs, a[number], parts, strict=True):
                if pair is not None:
                    rows[: len(pair[0])] = pair[0]
                    columns[:, : len(pair[0])] = pair[1]
        return cls(a.flatten(1, 2), b, sizes)

    @property
    def rank(self) -> int:
        return self.b.shape[2]

    def forward(self, x: Tensor, numbers: Tensor) -> Tensor:
        """The change of rows [..., in]: [..., out].

        `numbers` are the adapters of the rows: int64 [x.shape[0]], or [1] for all rows.
        """
        rows = x.reshape(len(numbers), -1, x.shape[-1])
        index = (numbers - 1).clamp(min=0)
        a, b = self.a.index_select(0, index), self.b.index_select(0, index)
        inner = torch.bmm(rows, a.transpose(1, 2)).split(self.rank, -1)
        parts = zip(inner, b.split(self.sizes, 1), strict=True)
        change = torch.cat([torch.bmm(h, part.transpose(1, 2)) for h, part in parts], -1)
        change = change.masked_fill((numbers == 0)[:, None, None], 0)
        return change.view(*x.shape[:-1], change.shape[-1])

    def change_row(self, x: Tensor, number: int) -> Tensor:
        """The change of one row [in] with an adapter: [out]."""
        inner = torch.mv(self.a[number - 1], x).split(self.rank)
        parts = zip(inner, self.b[number - 1].split(self.sizes), strict=True)
        return torch.cat([torch.mv(part, h) for h, part in parts])


def add_change(y: Tensor, lora: StackedLora | None, x: Tensor, adapters: Tensor | None) -> Tensor:
    """A product y of the rows x, with the changes of the rows' adapters."""
    return y if lora is None or adapters is None else y + lora(x, adapters)


def adapted(layer: nn.Module, x: Tensor, adapters: Tensor | None) -> Tensor:
    """`layer(x)` with the changes of the rows' adapters; None: without adapters."""
    y: Tensor = layer(x)
    return y if adapters is None else add_change(y, getattr(layer, "lora", None), x, adapters)


def one_adapter(number: int, device: torch.device) -> Tensor | None:
    """The argument `adapters` of a pass whose rows all have this adapter; 0 is none."""
    return torch.tensor([number], device=device) if number else None


def lora_bytes(module: nn.Module) -> int:
    """Bytes of the stacked matrices of a module."""
    stacks = [part for part in module.modules() if isinstance(part, StackedLora)]
    return sum(buffer.nbytes for stack in stacks for buffer in stack.buffers())
