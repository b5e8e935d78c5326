"""Weight matrices in int8 or int4, and the product that defines their arithmetic.

| bits | weight | scale | int8 activations |
|---|---|---|---|
| 8 | int8 [out, in], -127 to 127 | float32 [out] | one scale per row |
| 4 | uint8 [out, in / 2], -8 to 7 | float16 [out, in / 32] | one scale per group |

A group is 32 consecutive inputs. Byte j of a group (0 to 15) holds input j in its low four bits and
input j + 16 in its high four bits, each plus 8. Scales may be negative. Sums of integers are exact.
`multiply` computes what the kernels compute, up to the rounding of float32 sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Bits = Literal[4, 8]

GROUP = 32  # inputs that share a scale in int4
LARGEST_INT8 = 127
SMALLEST_INT4, LARGEST_INT4 = -8, 7
LARGEST_HALF = 65504.0
ROWS_AT_ONCE = 1 << 17  # weights per pass of the search for scales; they stay in the cache

# Candidates for the scale, as divisors of the number of largest magnitude. A negative divisor gives
# a negative scale, with which the largest number becomes -8 and the range has one step more.
INT4_DIVISORS = tuple(sign * (5.5 + 0.25 * step) for sign in (-1, 1) for step in range(12))
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
    if linear.bits == 8:
        codes, scale = round_activations(x)
        sums = codes.double() @ linear.weight.double().t()  # exact
        return sums.float() * (scale * linear.scale)
    codes, scale = round_activations(x.unflatten(-1, (-1, GROUP)))  # [..., groups, GROUP]
    groups = unpack(linear.weight).double().unflatten(1, (-1, GROUP))  # [out, groups, GROUP]
    sums = torch.einsum("...gi,ogi->...og", codes.double(), groups).float()  # exact
    return (sums * (scale[..., None, :, 0] * linear.scale.float())).sum(-1)


def round_activations(x: Tensor) -> tuple[Tensor, Tensor]:
    """The last dimension as integers from -127 to 127, in float32, and its scale [..., 1].

    Zeros have the scale 0. Ties round to even. Non-finite values give non-finite results.
    """
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True) / LARGEST_INT8
    codes = _codes(x, scale, (-LARGEST_INT8, LARGEST_INT8))
    return codes, scale


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
    round_scale: Callable[[Tensor], Tensor] = _to_half if bits == 4 else lambda scale: scale
    peak = rows.gather(1, rows.abs().argmax(1, keepdim=True))
    best_error = torch.full_like(peak, torch.inf)
    best_scale = torch.zeros_like(peak)
    for divisor in INT4_DIVISORS if bits == 4 else INT8_DIVISORS:
        codes = _codes(rows, peak / divisor, limits)
        scale = round_scale(_fit(rows, codes))
        error = (rows - codes * scale).square_().sum(1, keepdim=True)
        is_better = error < best_error
        best_error = torch.where(is_better, error, best_error)
        best_scale = torch.where(is_better, scale, best_scale)
    # Rounding with the fitted scale does not increase the error: each code is the nearest.
    codes = _codes(rows, best_scale, limits).to(torch.int8)
    return codes, best_scale[:, 0].to(torch.float16 if bits == 4 else torch.float32)


def _codes(rows: Tensor, scale: Tensor, limits: tuple[int, int]) -> Tensor:
    """Numbers within the limits that are nearest to rows / scale; 0 where the scale is 0."""
    return torch.where(scale == 0, scale, (rows / scale).round_().clamp_(*limits))


def _fit(rows: Tensor, codes: Tensor) -> Tensor:
    """The scale with the least squared error for given codes: [rows, 1]."""
    power = codes.square().sum(1, keepdim=True)
    return (rows * codes).sum(1, keepdim=True) / power.clamp(min=1)


def _to_half(scale: Tensor) -> Tensor:
    """Scales rounded to float16."""
    if bool((scale.abs() > LARGEST_HALF).any()):
        raise ValueError(f"its largest scale is {float(scale.abs().max()):.3g}")
    return scale.half().float()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
