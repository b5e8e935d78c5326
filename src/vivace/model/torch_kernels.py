"""PyTorch's own kernels for integer matrices, for machines without the C++ kernels.

| machine | int8 | int4 |
|---|---|---|
| x86-64 | fbgemm, activations in int8 with one scale per row | as int8 |
| ARM with KleidiAI | activations in float32 | KleidiAI, activations in int8 per row |
| others | activations in float32 | as int8 |

Down projections keep float32 activations in int8: their outliers need more than one scale per row.
A row's result does not depend on other rows if the rows are computed one at a time.
"""

from __future__ import annotations

import platform
import warnings

import torch
from torch import Tensor, nn

from vivace.model.quantized import QuantizedLinear, dequantize, quantize, unpack
from vivace.model.quantized_layers import Product, QuantizedLayer, quantized_layers

SMALLEST_SCALE = 1e-20  # of rows and outputs that are 0


def use_torch_kernels(model: nn.Module) -> str:
    """Prepare every quantized layer. Returns the names of the kernels."""
    names = set()
    for name, layer in quantized_layers(model):
        kernel, product = _pick(layer, has_outliers=name.endswith("down_proj"))
        layer.use(product)
        names.add(kernel)
    return ", ".join(sorted(names))


def describe_kernels() -> str:
    """The kernels of this machine for int8 and int4, for `vivace doctor`."""
    int8 = "fbgemm" if has_fbgemm() else "float32 activations"
    return f"int8 {int8}, int4 {'KleidiAI' if has_kleidi() else 'as int8'}"


def _pick(layer: QuantizedLayer, *, has_outliers: bool) -> tuple[str, Product]:
    linear = layer.linear
    if linear.bits == 4 and has_kleidi():
        return "KleidiAI int4", KleidiProduct(linear)
    if linear.bits == 4:
        linear = quantize(dequantize(linear), 8)
    if has_fbgemm() and not has_outliers:
        return "fbgemm int8", FbgemmProduct(linear)
    return "int8 weights", WeightOnlyProduct(linear)


def has_fbgemm() -> bool:
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return is_x86 and "fbgemm" in torch.backends.quantized.supported_engines


def has_kleidi() -> bool:
    """Elsewhere PyTorch computes the same operator a hundred times as slowly."""
    kleidi = getattr(torch.backends, "kleidiai", None)
    return kleidi is not None and bool(kleidi.is_available())


class WeightOnlyProduct:
    """int8 weights, float32 activations."""

    def __init__(self, linear: QuantizedLinear) -> None:
        self._linear = linear

    def __call__(self, rows: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(rows, self._linear.weight, self._linear.scale)


class FbgemmProduct:
    """int8 weights and activations.

    fbgemm has one scale for all rows of a call. Rows are therefore divided by their largest
    magnitudes, and one more row fixes the range: a result depends on its own row only.
    """

    def __init__(self, linear: QuantizedLinear) -> None:
        zeros = torch.zeros(linear.out_features, dtype=torch.int64)
        with warnings.catch_warnings():  # PyTorch announces the end of its quantized tensors
            warnings.simplefilter("ignore")
            weight = torch._make_per_channel_quantized_tensor(
                linear.weight, linear.scale.clamp(min=SMALLEST_SCALE).double(), zeros, 0
            )
            before = torch.backends.quantized.engine
            torch.backends.quantized.engine = "fbgemm"
            try:
                self._packed = torch.ops.quantized.linear_prepack(weight, None)
            finally:
                torch.backends.quantized.engine = before
        self._range = torch.zeros(1, linear.in_features)
        self._range[0, :2] = torch.tensor([1.0, -1.0])
        # Without VNNI, sums of pairs saturate unless activations have 7 bits.
        self._is_reduced = not torch.cpu._is_vnni_supported()

    def __call__(self, rows: Tensor) -> Tensor:
        scale = rows.abs().amax(1, keepdim=True).clamp_(min=SMALLEST_SCALE)
        ranged = torch.cat((rows / scale, self._range))
        out: Tensor = torch.ops.quantized.linear_dynamic(ranged, self._packed, self._is_reduced)
        return out[:-1] * scale


class KleidiProduct:
    """int4 weights in groups of 32, with bfloat16 scales."""

    def __init__(self, linear: QuantizedLinear) -> None:
        nibbles = (unpack(linear.weight) + 8).to(torch.uint8)
        self._sizes = 32, linear.in_features, linear.out_features
        self._packed = torch.ops.aten._dyn_quant_pack_4bit_weight(
            nibbles[:, 1::2] << 4 | nibbles[:, ::2],
            linear.scale.to(torch.bfloat16),
            None,
            *self._sizes,
        )

    def __call__(self, rows: Tensor) -> Tensor:
        out: Tensor = torch.ops.aten._dyn_quant_matmul_4bit(rows, self._packed, *self._sizes)
        return out
