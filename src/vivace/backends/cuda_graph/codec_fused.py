"""The codec's decoder through fused convolutions; activations are [batch, time, channels].

Products run on tensor cores. `split` is 3xTF32 emulation of float32: each float32 is split into two
TF32 numbers, and three of the four products are summed. On an H200 a convolution differs from
cuDNN's in float32 by a relative 1e-6 and takes a quarter to a half of the time. `half` rounds
weights and inputs to float16 and sums in float32; what layers add up stays float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace.backends.cuda_graph import codec_kernels
from vivace.backends.cuda_graph.codec_plain import SlotDecoder, SlotTails, transform
from vivace.backends.cuda_graph.tiles import num_multiprocessors
from vivace.model.codec import Codec
from vivace.model.codec_decoder import ConvNeXt, ResidualUnit, SnakeBeta, UpsampleBlock
from vivace.model.conv import CausalConv1d, CausalConvTranspose1d

PRECISION = "tf32x3"  # Triton's name for 3xTF32


class FusedTails(SlotTails):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype  # of the convolutions' inputs

    def join(
        self, x: Tensor, width: int, snake: SnakeBeta | None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Concatenate the slot's kept columns and x [B, T, C], activated; keep the last ones."""
        if not self.is_allocated:
            x = x if snake is None else snake(x.transpose(1, 2)).transpose(1, 2)
            return self.extend(x, width, dim=-2) if width else x
        batch, length, size = x.shape
        tail = self.next_tail() if width else x
        out = x.new_empty(batch, width + length, size, dtype=dtype or self._dtype)
        block_t, block_c = (16, 64) if length + width > 8 else (8, 128)
        grid = (-(-(width + length) // block_t), -(-size // block_c), batch)
        codec_kernels.join_kernel[grid](
            x, tail, self.rows,
            None if snake is None else snake.frequency,
            None if snake is None else snake.inverse_gain,
            out, length, width, size, tail.stride(0),
            HAS_SNAKE=snake is not None, BLOCK_T=block_t, BLOCK_C=block_c,
        )  # fmt: skip
        if width:
            tail.index_copy_(0, self.rows, out[:, length:].float())
        return out


@dataclass(frozen=True, slots=True)
class Convolution:
    """A causal convolution; one that upsamples by `up` gives that many outputs per input."""

    weight: Tensor  # [taps, up * out, in]
    bias: Tensor  # [out]
    dilation: int
    up: int

    @classmethod
    def of(cls, layer: CausalConv1d | CausalConvTranspose1d, dtype: torch.dtype) -> Convolution:
        assert layer.conv.bias is not None
        weight, bias = layer.conv.weight, layer.conv.bias
        if isinstance(layer, CausalConv1d):
            taps = weight.detach().permute(2, 0, 1).contiguous()
            layer.conv.weight = nn.Parameter(taps.permute(1, 2, 0), requires_grad=False)  # no copy
            return cls(taps.to(dtype), bias, layer.conv.dilation[0], 1)
        taps = weight.permute(2, 1, 0).unflatten(0, (-1, layer.stride))  # [taps, up, out, in]
        return cls(taps.flip(0).flatten(1, 2).contiguous().to(dtype), bias, 1, layer.stride)

    @property
    def reach(self) -> int:
        return (len(self.weight) - 1) * self.dilation

    def run(self, x: Tensor, *, residual: Tensor | None = None, is_last: bool = False) -> Tensor:
        """x [B, reach + T, in] to [B, T * up, out]."""
        batch, x_length, in_size = x.shape
        taps, out_size, _ = self.weight.shape
        length = x_length - self.reach
        out = x.new_empty(batch, length, out_size, dtype=torch.float32)
        num_processors = num_multiprocessors(x.device)
        block_m, block_n, num_warps = _tiles(batch * length, out_size, num_processors)
        grid = (-(-batch * length // block_m), -(-out_size // block_n))
        codec_kernels.convolve_kernel[grid](
            x, self.weight, self.bias, residual, out,
            batch * length, length, x_length, in_size, out_size, len(self.bias), self.dilation,
            TAPS=taps, HAS_RESIDUAL=residual is not None, IS_CLAMPED=is_last,
            PRECISION=PRECISION, BLOCK_M=block_m, BLOCK_N=block_n,
            BLOCK_K=32 if self.weight.dtype == torch.float32 else 64,
            num_warps=num_warps, num_stages=3,
        )  # fmt: skip
        return out.view(batch, length * self.up, -1)


class FusedDecoder(SlotDecoder):
    tails: FusedTails

    def __init__(self, codec: Codec, num_rows: int, *, is_half: bool = False) -> None:
        self.name = f"fused kernels ({'float16' if is_half else '3xTF32'})"
        dtype = torch.float16 if is_half else torch.float32
        self._convolutions = {
            id(layer): Convolution.of(layer, dtype)
            for layer in codec.decoder.modules()
            if isinstance(layer, (CausalConv1d, CausalConvTranspose1d)) and not _is_depthwise(layer)
        }
        super().__init__(codec, num_rows, FusedTails(dtype))

    def _run(self, codes: Tensor, num_seen: Tensor) -> Tensor:
        decoder = self._decoder
        x = decoder.quantizer(codes.transpose(1, 2)).transpose(1, 2).contiguous()
        x = self._convolve(decoder.pre_conv, x)
        x = transform(decoder.pre_transformer, x, self.tails, num_seen)
        for stage in decoder.upsample:
            upsample, mix = cast("nn.ModuleList", stage)
            x = self._convolve(upsample, x)
            x = self._mix(cast("ConvNeXt", mix), x)
        first, *blocks, snake, last = decoder.decoder
        x = self._convolve(first, x)
        for block in blocks:
            x = self._upsample(cast("UpsampleBlock", block), x)
        x = self._convolve(last, x, snake=cast("SnakeBeta", snake), is_last=True)
        return x.flatten(1)

    def _convolve(
        self,
        layer: nn.Module,
        x: Tensor,
        *,
        snake: SnakeBeta | None = None,
        residual: Tensor | None = None,
        is_last: bool = False,
    ) -> Tensor:
        convolution = self._convolutions[id(layer)]
        if convolution.reach or snake is not None:
            x = self.tails.join(x, convolution.reach, snake)
        return convolution.run(x, residual=residual, is_last=is_last)

    def _mix(self, layer: ConvNeXt, x: Tensor) -> Tensor:
        conv = layer.dwconv.conv
        joined = self.tails.join(x, layer.dwconv.reach, None, torch.float32).transpose(1, 2)
        hidden = F.conv1d(joined, conv.weight, conv.bias, groups=conv.groups).transpose(1, 2)
        hidden = layer.pwconv2(F.gelu(layer.pwconv1(layer.norm(hidden))))
        return x + layer.gamma * hidden

    def _upsample(self, block: UpsampleBlock, x: Tensor) -> Tensor:
        snake, upsample, *units = block.block
        x = self._convolve(upsample, x, snake=cast("SnakeBeta", snake))
        for unit in units:
            assert isinstance(unit, ResidualUnit)
            hidden = self._convolve(unit.conv1, x, snake=unit.act1)
            x = self._convolve(unit.conv2, hidden, snake=unit.act2, residual=x)
        return x


def _is_depthwise(layer: CausalConv1d | CausalConvTranspose1d) -> bool:
    return layer.conv.groups > 1


def _tiles(num_rows: int, num_columns: int, num_processors: int) -> tuple[int, int, int]:
    """Rows, columns and warps: the largest tiles that give every multiprocessor a block."""
    for rows, columns, num_warps in ((128, 128, 8), (128, 64, 4), (64, 64, 4), (128, 32, 4)):
        num_blocks = (num_rows // rows) * (num_columns // columns)
        if num_columns % columns == 0 and num_blocks >= num_processors:
            return rows, columns, num_warps
    return (64, 32, 4) if num_rows > 32 else (16, 32, 4)
