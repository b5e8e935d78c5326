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

    def __call__(self, layer: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        heads = torch.mv(self._qkv, normalise(x, self._first_norm, self._eps))
        heads = heads.view(1, -1, 1, self._head_dim)
        qk, v = heads.split(self._qk_and_v, 1)
        qk = torch.rms_norm(qk, (self._head_dim,), None, self._eps).mul_(self._qk_scale)
        first, second = qk.chunk(2, -1)
        turned = torch.cat((second, first), -1).mul_(sin)
        q, k = qk.mul_(cos).add_(turned).split(self._q_and_k, 1)
        attended = attend(layer, q, k, v)
        x = torch.addmv(x, self._out, attended.view(-1))
        gate, up = torch.mv(self._gate_up, normalise(x, self._second_norm, self._eps)).chunk(2)
        return torch.addmv(x, self._down, F.silu(gate).mul_(up))


class RowStack:
    """Optional projection, layers and final norm."""

    def __init__(self, part: Talker | CodePredictor) -> None:
        body = part.model
        self._blocks = [RowBlock(layer) for layer in body.layers if isinstance(layer, Block)]
        self._norm, self._eps = body.norm.weight, body.norm.eps
        self._rope = part.rope
        projection = getattr(part, "small_to_mtp_projection", None)
        self._projection = projection if isinstance(projection, Linear) else None

    def __call__(self, x: Tensor, position: int, attend: Attend) -> Tensor:
        """A row [width] at this position to its hidden state after the final norm."""
        if self._projection is not None:
            x = self._projection(x)
        cos, sin = self._rope.span(position, 1, x)
        for index, block in enumerate(self._blocks):
            x = block(index, x, cos, sin, attend)
        return normalise(x, self._norm, self._eps)


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`ops.rms_norm` of one vector."""
    scale = (torch.dot(x, x).item() / len(x) + eps) ** -0.5
    return (x * scale).mul_(weight)
