"""Launches the kernels of the codec's layers with weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.backends.cuda_graph.codec import kernels
from vivace.backends.cuda_graph.codec.histories import Past, history_blocks, keep
from vivace.backends.cuda_graph.codec.operands import Outputs, WideLayer
from vivace.backends.cuda_graph.codec.tiles import HALF, SPLIT, UnitTile, pick_tile, pick_unit_tile
from vivace.backends.cuda_graph.launch_sizes import power_of_two
from vivace.model.layers import RMSNorm

WAVEFORM_ROWS = 128  # inputs of a block; the same for all batches, like the order of its sums
NORM_ROWS = 64  # maximum rows of a tile that also sums squares


@dataclass(frozen=True, slots=True)
class Activation:
    """Activation after a product, and the input dtype of the next layer."""

    dtype: torch.dtype
    kind: int = kernels.PLAIN.value
    frequency: Tensor | None = None
    inverse_gain: Tensor | None = None


@dataclass(frozen=True, slots=True)
class CodeSum:
    """Codes to the summed vectors of the semantic codebooks and of the acoustic ones."""

    tables: Tensor  # [codebooks, codes, width]
    num_semantic: int

    def run(self, codes: Tensor) -> Tensor:
        """[B, T, codebooks] to [B, T, 2 * width]."""
        batch, length, num_books = codes.shape
        _, num_codes, width = self.tables.shape
        out = self.tables.new_empty(batch, length, 2 * width)
        kernels.sum_codes_kernel[(batch * length, 2)](
            codes.contiguous(), self.tables, out, num_books, self.num_semantic, num_codes, width,
            BLOCK=power_of_two(width),
        )  # fmt: skip
        return out


@dataclass(frozen=True, slots=True)
class Product:
    """A causal convolution or linear layer with its fused operations.

    Columns are the outputs of one input step. An upsampling layer has the columns of several output
    steps side by side.
    """

    weight: Tensor  # [taps, columns, in]; gate over up if `is_gated`
    bias: Tensor | None = None  # [columns], or of one output step
    dilation: int = 1
    history: int = -1  # of a layer with more than one tap
    norm: RMSNorm | None = None  # before the product
    scale: Tensor | None = None  # per column, before the residual is added
    is_gated: bool = False
    activation: Activation | None = None
    precision: str = SPLIT  # of a float32 weight, which is `rounded` for SINGLE
    wide: WideLayer | None = None  # for many rows

    @property
    def reach(self) -> int:
        return (len(self.weight) - 1) * self.dilation

    def room(self, num_streams: int, length: int) -> int:
        """Numbers of the past before x; the layer that makes x leaves room for them."""
        in_size = self.weight.shape[2]
        return self.reach * in_size if self._is_wide(num_streams, length) else 0

    def _is_wide(self, num_streams: int, length: int) -> bool:
        return self.wide is not None and self.wide.is_worthwhile(num_streams, length)

    def run(self, x: Tensor, past: Past, *, residual: Tensor | None = None) -> Tensor:
        """x [B, T, in] to float32 [B, T, columns], before the activation."""
        out = self._empty(x, torch.float32)
        self.launch(x, past, residual, out, None)
        return out

    def activate(
        self, x: Tensor, past: Past, *, residual: Tensor | None = None, room: int = 0
    ) -> Tensor:
        """Like `run`, but returns the result after the activation."""
        assert self.activation is not None
        active = self.empty_active(x, room)
        self.launch(x, past, residual, None, active)
        return active

    def run_both(
        self, x: Tensor, past: Past, *, residual: Tensor | None = None, room: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The outputs before and after the activation, both in the next layer's dtype."""
        assert self.activation is not None
        out, active = self._empty(x, self.activation.dtype), self.empty_active(x, room)
        self.launch(x, past, residual, out, active)
        return out, active

    def empty_active(self, x: Tensor, room: int) -> Tensor:
        """[B, T, columns] for results, with `room` numbers before each stream if this is wide."""
        assert self.activation is not None
        batch, length, _ = x.shape
        room = room if self._is_wide(batch, length) else 0
        return _empty_after(room, x, self._num_columns, self.activation.dtype)

    @property
    def _num_columns(self) -> int:
        return self.weight.shape[1] // (2 if self.is_gated else 1)

    def _empty(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.new_empty(*x.shape[:2], self._num_columns, dtype=dtype)

    def launch(
        self,
        x: Tensor,
        past: Past,
        residual: Tensor | None,
        out: Tensor | None,  # before the activation
        active: Tensor | None,  # after it
    ) -> None:
        batch, length, in_size = x.shape
        if self.wide is not None and self._is_wide(batch, length):
            assert active is not None
            self.wide.run(self.joined(x, past), Outputs(residual, out, active))
            return
        taps, columns, num_rows = len(self.weight), self._num_columns, batch * length
        activation, norm = self.activation, self.norm
        history = past.histories.view(self.history) if self.reach else None
        max_rows = 128 if norm is None else NORM_ROWS
        precision = HALF if self.weight.dtype == torch.float16 else self.precision
        tile = pick_tile(
            num_rows, columns, in_size, x.device, precision,
            taps=taps, is_gated=self.is_gated, max_rows=max_rows,
        )  # fmt: skip
        grid = (-(-num_rows // tile.rows), -(-columns // tile.columns))
        is_rows_first = num_rows <= taps * columns  # the smaller operand is read many times
        kernels.product_kernel[grid if is_rows_first else grid[::-1]](
            x, history, past.slots, None if norm is None else norm.weight,
            self.weight, self.bias, self.scale, residual, out, active,
            None if activation is None else activation.frequency,
            None if activation is None else activation.inverse_gain,
            num_rows, length, in_size, columns, columns if self.bias is None else len(self.bias),
            self.dilation, self.reach, 0 if history is None else history.stride(0),
            0.0 if norm is None else norm.eps,
            TAPS=taps, IS_GATED=self.is_gated,
            ACTIVATION=kernels.PLAIN.value if activation is None else activation.kind,
            PRECISION=self.precision,
            BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=tile.depth,
            IS_ROWS_FIRST=is_rows_first, num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
        if history is not None:
            keep(x, history, past.slots, self.reach)

    def joined(self, x: Tensor, past: Past) -> Tensor:
        """The past before x: [B, reach + T, in]. Updates the slots' history."""
        reach, (batch, length, size) = self.reach, x.shape
        if not reach:
            return x
        shape, strides = (batch, reach + length, size), ((reach + length) * size, size, 1)
        if x.stride() == strides:  # x has room before each stream
            joined = x.as_strided(shape, strides, x.storage_offset() - reach * size)
        else:
            joined = x.new_empty(shape)
            joined[:, reach:] = x
        history = past.histories.view(self.history)
        blocks = history_blocks(reach)
        kernels.join_kernel[(-(-size // blocks["BLOCK_C"]), batch)](
            joined, history, past.slots, length, reach, size, history.stride(0), **blocks
        )
        return joined


@dataclass(frozen=True, slots=True)
class Unit:
    """A residual unit: a convolution, its activation and a linear layer, added to the input."""

    first: Product
    second: Product
    wide: WideLayer | None = None  # for many rows

    def room(self, num_streams: int, length: int) -> int:
        """See `Product.room`."""
        if self._is_wide(num_streams, length):
            return self.first.reach * self.first.weight.shape[2]
        is_fused = self._tile(num_streams * length) is not None
        return 0 if is_fused else self.first.room(num_streams, length)

    def _is_wide(self, num_streams: int, length: int) -> bool:
        return self.wide is not None and self.wide.is_worthwhile(num_streams, length)

    def _tile(self, num_rows: int) -> UnitTile | None:
        """The tile of Triton's fused kernel, or None where two products are faster."""
        weight = self.first.weight
        if weight.dtype != torch.float16:
            return None
        return pick_unit_tile(num_rows, weight.shape[1], weight.device)

    def run(self, x: Tensor, active: Tensor, past: Past, room: int) -> tuple[Tensor, Tensor]:
        """The input before and after its activation to the output before and after the next one."""
        out = torch.empty_like(x)
        return out, self._launch(x, active, past, out, room)

    def activate(self, x: Tensor, active: Tensor, past: Past, room: int) -> Tensor:
        """Like `run`, but returns only the output after the activation."""
        return self._launch(x, active, past, None, room)

    def _launch(
        self, x: Tensor, active: Tensor, past: Past, out: Tensor | None, room: int
    ) -> Tensor:
        batch, length, size = x.shape
        tile = self._tile(batch * length)
        if self.wide is not None and self._is_wide(batch, length):
            next_active = _empty_after(room, x, size, x.dtype)
            self.wide.run(self.first.joined(active, past), Outputs(x, out, next_active))
        elif tile is None:
            hidden = self.first.activate(active, past)
            next_active = self.second.empty_active(hidden, room)
            self.second.launch(hidden, past, x, out, next_active)
        else:
            next_active = torch.empty_like(x)
            self._launch_fused(x, active, past, out, next_active, tile)
        return next_active

    def _launch_fused(
        self,
        x: Tensor,
        active: Tensor,
        past: Past,
        out: Tensor | None,
        next_active: Tensor,
        tile: UnitTile,
    ) -> None:
        first, second = self.first, self.second
        after, then = first.activation, second.activation
        assert after is not None
        assert then is not None
        batch, length, size = x.shape
        num_rows, history = batch * length, past.histories.view(first.history)
        kernels.unit_kernel[(-(-num_rows // tile.rows),)](
            active, history, past.slots,
            first.weight, first.bias, after.frequency, after.inverse_gain,
            second.weight, second.bias, x, out, next_active, then.frequency, then.inverse_gain,
            num_rows, length, first.dilation, first.reach, history.stride(0),
            SIZE=size, HEAD=tile.head, TAIL=tile.tail, TAPS=len(first.weight),
            BLOCK_M=tile.rows, BLOCK_K=tile.depth, num_warps=4, num_stages=3,
        )  # fmt: skip
        keep(active, history, past.slots, first.reach)


@dataclass(frozen=True, slots=True)
class Waveform:
    """The last convolution, to samples from -1 to 1."""

    weight: Tensor  # [taps, 1, channels]
    bias: Tensor  # [1]
    history: int

    def run(self, x: Tensor, past: Past) -> Tensor:
        """[B, T, channels] to float32 [B, T]."""
        batch, length, size = x.shape
        history = past.histories.view(self.history)
        out = x.new_empty(batch, length, dtype=torch.float32)
        taps = len(self.weight)
        grid = (batch, -(-length // (WAVEFORM_ROWS - taps + 1)))
        kernels.waveform_kernel[grid](
            x, history, past.slots, self.weight, self.bias, out, length, size, history.stride(0),
            TAPS=taps, PRECISION=SPLIT, BLOCK_M=WAVEFORM_ROWS, BLOCK_K=32, num_warps=4,
        )  # fmt: skip
        keep(x, history, past.slots, len(self.weight) - 1)
        return out


@dataclass(frozen=True, slots=True)
class Mix:
    """ConvNeXt: a depthwise convolution and a norm, then two linear layers, added to the input."""

    weight: Tensor  # [taps, channels]
    bias: Tensor
    norm: torch.nn.LayerNorm
    history: int
    expand: Product
    contract: Product

    def run(self, x: Tensor, past: Past) -> Tensor:
        """float32 [B, T, channels] to the same shape, in the next layer's dtype."""
        batch, length, size = x.shape
        history = past.histories.view(self.history)
        mixed = torch.empty_like(x, dtype=self.expand.weight.dtype)
        kernels.mix_kernel[(batch * length,)](
            x, history, past.slots, self.weight, self.bias, self.norm.weight, self.norm.bias,
            mixed, length, size, history.stride(0), self.norm.eps,
            TAPS=len(self.weight), BLOCK=power_of_two(size),
        )  # fmt: skip
        keep(x, history, past.slots, len(self.weight) - 1)
        return self.contract.activate(self.expand.activate(mixed, past), past, residual=x)


def _empty_after(room: int, x: Tensor, num_columns: int, dtype: torch.dtype) -> Tensor:
    """[B, T, columns] for x [B, T, ...]; `room` numbers precede each stream."""
    batch, length, _ = x.shape
    joined = x.new_empty(batch, room + length * num_columns, dtype=dtype)
    return joined[:, room:].unflatten(1, (length, num_columns))


def rounded(weight: Tensor) -> Tensor:
    """Round float32 to the nearest TF32, as the kernels do with their inputs."""
    bits = weight.float().contiguous().view(torch.int32)
    return ((bits + 0x1000) & -0x2000).view(torch.float32)
