"""One row through talker or predictor on a CPU, in as few operations as possible.

It computes what `layers.Block` does. In a small model the overhead per operation dominates, so
weights are plain attributes, the row is a vector, and residual sums are part of the products.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vivace.model.code_predictor import CodePredictor
from vivace.model.layers import Attend, Block, Linear
from vivace.model.lora import StackedLora
from vivace.model.talker import Talker


class RowBlock:
    """Uses the weights of a fused block without a copy."""

    def __init__(self, block: Block) -> None:
        attention, mlp = block.self_attn, block.mlp
        assert attention.qkv_weight is not None
        assert attention.qk_scale is not None
        assert mlp.gate_up_weight is not None
        self._eps = block.input_layernorm.eps
        self._first_norm = block.input_layernorm.weight
        self._second_norm = block.post_attention_layernorm.weight
        self._qkv, self._out = attention.qkv_weight, attention.o_proj.weight
        self._qk_scale = attention.qk_scale  # [heads + kv_heads, 1, head_dim]
        self._gate_up, self._down = mlp.gate_up_weight, mlp.down_proj.weight
        self._head_dim = attention.head_dim
        self._q_and_k = [attention.num_heads, attention.num_kv_heads]
        self._qk_and_v = [sum(self._q_and_k), attention.num_kv_heads]
        self._qkv_lora, self._out_lora = attention.qkv_lora, attention.o_proj.lora
        self._gate_up_lora, self._down_lora = mlp.gate_up_lora, mlp.down_proj.lora

    def __call__(
        self, layer: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend, adapter: int = 0
    ) -> Tensor:
        normed = normalise(x, self._first_norm, self._eps)
        heads = add_row_change(torch.mv(self._qkv, normed), self._qkv_lora, normed, adapter)
        heads = heads.view(1, -1, 1, self._head_dim)
        qk, v = heads.split(self._qk_and_v, 1)
        qk = torch.rms_norm(qk, (self._head_dim,), None, self._eps).mul_(self._qk_scale)
        first, second = qk.chunk(2, -1)
        turned = torch.cat((second, first), -1).mul_(sin)
        q, k = qk.mul_(cos).add_(turned).split(self._q_and_k, 1)
        attended = attend(layer, q, k, v).view(-1)
        x = torch.addmv(x, self._out, attended)
        x = add_row_change(x, self._out_lora, attended, adapter)
        normed = normalise(x, self._second_norm, self._eps)
        both = add_row_change(torch.mv(self._gate_up, normed), self._gate_up_lora, normed, adapter)
        gate, up = both.chunk(2)
        inner = F.silu(gate).mul_(up)
        return add_row_change(torch.addmv(x, self._down, inner), self._down_lora, inner, adapter)


class RowStack:
    """Optional projection, layers and final norm."""

    def __init__(self, part: Talker | CodePredictor) -> None:
        body = part.model
        self._blocks = [RowBlock(layer) for layer in body.layers if isinstance(layer, Block)]
        self._norm, self._eps = body.norm.weight, body.norm.eps
        self._rope = part.rope
        projection = getattr(part, "small_to_mtp_projection", None)
        self._projection = projection if isinstance(projection, Linear) else None

    def __call__(self, x: Tensor, position: int, attend: Attend, adapter: int = 0) -> Tensor:
        """A row [width] at this position to its hidden state after the final norm."""
        if self._projection is not None:
            x = add_row_change(self._projection(x), self._projection.lora, x, adapter)
        cos, sin = self._rope.span(position, 1, x)
        for index, block in enumerate(self._blocks):
            x = block(index, x, cos, sin, attend, adapter)
        return normalise(x, self._norm, self._eps)


def add_row_change(y: Tensor, lora: StackedLora | None, x: Tensor, adapter: int) -> Tensor:
    """y, with the change of one row x by its adapter added in place; 0: without adapter."""
    return y if adapter == 0 or lora is None else y.add_(lora.change_row(x, adapter))


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`ops.rms_norm` of one vector."""
    scale = (torch.dot(x, x).item() / len(x) + eps) ** -0.5
    return (x * scale).mul_(weight)
