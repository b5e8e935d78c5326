"""Causal convolutions with explicit state.

Each layer reads its last input columns from a `CausalState`, so decoding in chunks equals decoding
the whole stream.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace.model import ops


class CausalState:
    """The last input columns of every causal layer, in the order in which the layers run.

    `num_frames` counts decoded frames. Call `rewind` before each pass through the layers.
    """

    def __init__(self) -> None:
        self.num_frames = 0
        self._tails: list[Tensor] = []
        self._cursor = 0

    def rewind(self) -> None:
        self._cursor = 0

    def copy(self) -> CausalState:
        """An independent copy of the state; stored columns are never modified in place."""
        other = CausalState()
        other.num_frames, other._tails = self.num_frames, list(self._tails)
        return other

    def extend(self, x: Tensor, width: int, *, dim: int = -1, is_padded: bool = True) -> Tensor:
        """Prepend this layer's stored columns to `x` and store the last `width` columns.

        Columns lie along `dim`. The past is zeros at the start of a stream, or nothing where
        `is_padded` is false.
        """
        if self._cursor == len(self._tails):
            shape = list(x.shape)
            shape[dim] = width if is_padded else 0
            self._tails.append(x.new_zeros(shape))
        joined = torch.cat((self._tails[self._cursor], x), dim=dim)
        length = min(width, joined.shape[dim])
        tail = joined.narrow(dim, joined.shape[dim] - length, length)
        self._tails[self._cursor] = tail.clone()  # a view would keep the whole tensor in memory
        self._cursor += 1
        return joined


class CausalConv1d(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        dilation: int = 1,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            in_channels, out_channels, kernel_size, dilation=dilation, groups=groups
        )
        self.reach = (kernel_size - 1) * dilation

    def forward(self, x: Tensor, state: CausalState) -> Tensor:
        if self.reach:
            x = state.extend(x, self.reach)
        conv = self.conv
        return ops.convolve(x, conv.weight, conv.bias, conv.dilation[0], conv.groups)


class CausalConvTranspose1d(nn.Module):
    """Upsamples by `stride`; an output depends on one input, or two where the kernels overlap."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        if kernel_size not in (stride, 2 * stride):
            raise ValueError(f"kernel {kernel_size} must be once or twice the stride {stride}")
        self.conv = nn.ConvTranspose1d(in_channels, out_channels, kernel_size, stride=stride)
        self.stride = stride
        self.has_overlap = kernel_size > stride

    def forward(self, x: Tensor, state: CausalState) -> Tensor:
        if self.has_overlap:
            x = state.extend(x, 1)
        assert self.conv.bias is not None
        return ops.convolve_transposed(x, self.conv.weight, self.conv.bias, self.stride)


class StridedConv1d(nn.Module):
    """Downsamples a whole recording: padded left for causality, right to complete the window."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        bias: bool = True,
        pad_mode: str = "constant",
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            in_channels, out_channels, kernel_size, stride=stride, dilation=dilation, bias=bias
        )
        self.stride = stride
        self.left = (kernel_size - 1) * dilation + 1 - stride
        self.pad_mode = pad_mode

    def forward(self, x: Tensor) -> Tensor:
        right = -x.shape[-1] % self.stride
        return self.conv(F.pad(x, (self.left, right), mode=self.pad_mode))
