"""Weight matrices in int8 or int4, and the product that defines their arithmetic.

| bits | weight | scale |
|---|---|---|
| 8 | int8 [out, in], -127 to 127 | float32 [out] |
| 4 | uint8 [out, in / 2], -8 to 7 | float16 [out, in / 32] |

A group is 32 consecutive inputs, 16 bytes in int4. Byte j contains input j in its low four bits and
input j + 16 in its high four bits. 8 is added to each number. Only int4 scales may be negative.

Activations are rounded to int8 with one scale per row and group of 32 inputs, for both formats. The
last group of an int8 matrix may be shorter. One scale per row is not enough. The inputs of down
projections have outliers: on trained weights the KL divergence is then eight times that of int8
weights alone.

The integer sum of a group is exact. `multiply` computes what kernels compute, up to the rounding of
the float32 sum over groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Bits = Literal[4, 8]

GROUP = 32  # inputs that share a scale in int4
LARGEST_INT8 = 127
SMALLEST_INT4, LARGEST_INT4 = -8, 7
LARGEST_HALF = 65504.0
ROWS_AT_ONCE = 1 << 17  # weights per pass of the search for scales; they stay in the cache

# Candidates for the scale, as divisors of the number of largest magnitude. The divisors of int4 are
# negative. They map this number to -8, because the range from -8 to 7 is longer on that side.
INT4_DIVISORS = tuple(-6.0 - 0.35 * step for step in range(8))
INT8_DIVISORS = tuple(float(LARGEST_INT8 + 8 * step) for step in range(4))


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedLinear:
    """The weight of a linear layer. The module's docstring states the layout."""

    weight: Tensor  # int8 [out, in], or uint8 [out, in / 2]
    scale: Tensor  # float32 [out], or float16 [out, in / 32]
    bits: Bits

    def __post_init__(self) -> None:
        is_int4 = self.bits == 4
        dtypes = (torch.uint8, torch.float16) if is_int4 else (torch.int8, torch.float32)
        if (self.weight.dtype, self.scale.dtype) != dtypes:
            raise ValueError(
                f"int{self.bits} needs {_name(dtypes[0])} weights with {_name(dtypes[1])} scales, "
                f"not {_name(self.weight.dtype)} with {_name(self.scale.dtype)}"
            )
        if self.weight.ndim != 2 or (is_int4 and self.in_features % GROUP):
            raise ValueError(f"no int{self.bits} matrix has the shape {list(self.weight.shape)}")
        shape = [self.out_features, self.in_features // GROUP] if is_int4 else [self.out_features]
        if list(self.scale.shape) != shape:
            raise ValueError(f"its scales have shape {list(self.scale.shape)}; {shape} is needed")

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    @property
    def in_features(self) -> int:
        return self.weight.shape[1] * (2 if self.bits == 4 else 1)


def can_be_int4(in_features: int) -> bool:
    """Whether the inputs are whole groups."""
    return in_features % GROUP == 0


def quantize(weight: Tensor, bits: Bits) -> QuantizedLinear:
    """Round a matrix [out, in] with the scales that minimise the sum of squared errors.

    Raises ValueError for values that are not finite or too large for the scale's type.
    """
    if weight.ndim != 2 or (bits == 4 and not can_be_int4(weight.shape[1])):
        raise ValueError(f"int{bits} needs whole groups of {GROUP} inputs, not {weight.shape[-1]}")
    if not bool(torch.isfinite(weight.sum(dtype=torch.float64))):
        raise ValueError("it contains non-finite values")
    out_features, in_features = weight.shape
    rows = weight.reshape(-1, GROUP if bits == 4 else in_features)
    at_once = max(1, ROWS_AT_ONCE // rows.shape[1])
    parts = [_round_rows(part.float(), bits) for part in rows.split(at_once)]
    codes = torch.cat([codes for codes, _ in parts]).view(out_features, in_features)
    scale = torch.cat([scale for _, scale in parts])
    if bits == 8:
        return QuantizedLinear(codes, scale, 8)
    return QuantizedLinear(pack(codes), scale.view(out_features, -1), 4)


def dequantize(linear: QuantizedLinear) -> Tensor:
    """The matrix that the integers and scales stand for: float32 [out, in]."""
    if linear.bits == 8:
        return linear.weight.float() * linear.scale[:, None]
    groups = unpack(linear.weight).float().unflatten(1, (-1, GROUP))
    return (groups * linear.scale.float()[..., None]).flatten(1)


def multiply(x: Tensor, linear: QuantizedLinear) -> Tensor:
    """Rows [..., in] times the matrix, float32 [..., out], with activations rounded to int8.

    Each row is computed alone: its result does not depend on the other rows.
    """
    missing = -linear.in_features % GROUP  # zeros add nothing
    codes, scale = round_activations(F.pad(x, (0, missing)))  # [..., groups, GROUP]
    integers = unpack(linear.weight) if linear.bits == 4 else F.pad(linear.weight, (0, missing))
    groups = integers.double().unflatten(1, (-1, GROUP))  # [out, groups, GROUP]
    sums = torch.einsum("...gi,ogi->...og", codes.double(), groups).float()  # exact
    scale = scale[..., None, :]
    if linear.bits == 4:
        return (sums * (scale * linear.scale.float())).sum(-1)
    return (sums * scale).sum(-1) * linear.scale


def round_activations(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [..., in] as integers from -127 to 127, float32 [..., groups, 32], and their scales
    [..., groups].

    Zeros have the scale 0. Ties round to even. Non-finite values give non-finite results.
    """
    groups = x.float().unflatten(-1, (-1, GROUP))
    scale = groups.abs().amax(-1, keepdim=True) / LARGEST_INT8
    return _codes(groups, scale, (-LARGEST_INT8, LARGEST_INT8)), scale[..., 0]


def join(*parts: QuantizedLinear) -> QuantizedLinear:
    """One matrix with the outputs of all parts, which have the same inputs and bits."""
    weight = torch.cat([part.weight for part in parts])
    return QuantizedLinear(weight, torch.cat([part.scale for part in parts]), parts[0].bits)


def pack(codes: Tensor) -> Tensor:
    """Numbers from -8 to 7, int8 [out, in], to uint8 [out, in / 2]."""
    nibbles = (codes - SMALLEST_INT4).to(torch.uint8).unflatten(1, (-1, 2, GROUP // 2))
    return (nibbles[:, :, 0] | (nibbles[:, :, 1] << 4)).flatten(1)


def unpack(weight: Tensor) -> Tensor:
    """The inverse of `pack`."""
    pairs = weight.unflatten(1, (-1, 1, GROUP // 2))
    nibbles = torch.cat((pairs & 15, pairs >> 4), dim=2)  # [out, groups, 2, GROUP / 2]
    return nibbles.flatten(1).to(torch.int8) + SMALLEST_INT4


def _round_rows(rows: Tensor, bits: Bits) -> tuple[Tensor, Tensor]:
    """Rows that have one scale each, to int8 codes and their scales [rows]."""
    limits = (SMALLEST_INT4, LARGEST_INT4) if bits == 4 else (-LARGEST_INT8, LARGEST_INT8)
    columns = rows.t().contiguous()  # sums over the first dimension are faster
    scale = _fit_scales(columns, INT4_DIVISORS if bits == 4 else INT8_DIVISORS, limits)
    if bits == 4 and bool((scale.abs() > LARGEST_HALF).any()):
        raise ValueError(f"its largest scale is {float(scale.abs().max()):.3g}")
    scale = scale.half() if bits == 4 else scale.abs()
    codes = _codes(columns, scale.float(), limits)
    return codes.t().to(torch.int8), scale


def _fit_scales(columns: Tensor, divisors: Sequence[float], limits: tuple[int, int]) -> Tensor:
    """The scale of each column with the least squared error.

    With codes c, the best scale of numbers w is s = w·c / c·c, and their error is w·w - s w·c.
    """
    peak = columns.gather(0, columns.abs().argmax(0, keepdim=True))[0]
    best_gain, best_scale = torch.full_like(peak, -1.0), torch.zeros_like(peak)
    for divisor in divisors:
        codes = _codes(columns, peak / divisor, limits)
        product = (columns * codes).sum(0)
        scale = product / codes.square_().sum(0).clamp_(min=1)
        gain = product * scale
        is_better = gain > best_gain
        best_gain = torch.where(is_better, gain, best_gain)
        best_scale = torch.where(is_better, scale, best_scale)
    return best_scale


def _codes(numbers: Tensor, scale: Tensor, limits: tuple[int, int]) -> Tensor:
    """Integers within the limits that are nearest to numbers / scale; 0 where the scale is 0."""
    return (numbers / scale).round_().clamp_(*limits).masked_fill_(scale == 0, 0)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
