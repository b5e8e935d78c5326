"""Weights rounded to fp8 (e4m3, 4 significant bits), with a power of two as the scale of each row.

A rounded number times its scale is exact in bfloat16. The model keeps bfloat16 tensors with rounded
values, so all backends compute the same numbers; a kernel may read half the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vivace.errors import CheckpointError
from vivace.model.layers import Block, Linear

if TYPE_CHECKING:
    from vivace.model.talker import Qwen3TTS

E4M3 = torch.float8_e4m3fn
SMALLEST, LARGEST = -100, 7  # exponents of scales that leave every product a normal bfloat16


def round_weights(model: Qwen3TTS) -> None:
    """Round weights in place. Idempotent."""
    for name, layer in rounded_layers(model):
        weight = layer.weight.detach()
        on = weight.cpu() if weight.device.type == "mps" else weight  # which has no float8
        try:
            codes, exponents = to_fp8(on)
        except ValueError as error:
            raise CheckpointError(f"{name} cannot be rounded to fp8: {error}") from error
        weight.copy_(codes.float() * power_of_two(exponents))
    model.weights = "fp8"


def rounded_layers(model: Qwen3TTS) -> Iterator[tuple[str, Linear]]:
    """All linear layers of the predictor and of the talker's MLPs, by name."""
    talker = model.talker
    parts: dict[str, nn.Module] = {"talker.code_predictor": talker.code_predictor}
    for index, block in enumerate(talker.model.layers):
        assert isinstance(block, Block)
        parts[f"talker.model.layers.{index}.mlp"] = block.mlp
    for prefix, part in parts.items():
        for name, layer in part.named_modules(prefix=prefix):
            if isinstance(layer, Linear):
                yield f"{name}.weight", layer


def to_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [n, depth] to float8 [n, depth] and the exponents of their scales, int32 [n, 1].

    A scale is the smallest that keeps its row within e4m3, whose largest number is 448.
    """
    most = weight.abs().amax(1, keepdim=True).float()
    mantissas, exponents = torch.frexp(most)  # 448 is 0.875 * 2**9
    exponents = torch.where(mantissas > 0.875, exponents - 8, exponents - 9)
    if not bool(torch.isfinite(most).all()):
        raise ValueError("it holds values that are not finite")
    if bool((exponents > LARGEST).any()):
        raise ValueError(f"its largest value is {float(most.max()):.3g}")
    exponents = exponents.clamp(min=SMALLEST).int()
    return (weight.float() * power_of_two(-exponents)).to(E4M3), exponents


def power_of_two(exponents: Tensor) -> Tensor:
    """2**exponent as float32, exact; `pow` is not exact on every device."""
    return ((exponents + 127) << 23).view(torch.float32)
