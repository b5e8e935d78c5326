"""Transformer layers as ONNX nodes. Rows are [T, width], without a batch dimension.

A class stores the weights of its layer once. Every call appends the nodes of one pass. The scale of
the attention is part of the weights of queries, and the codec's layer scales are part of the output
projections. The weights of the codec's transformer are sensitive: in int8 they alone cause an error
26 dB below the samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vivace.export.graph import Graph
from vivace.model import ops
from vivace.model.layers import Attention, Block, GatedMlp, RMSNorm, Rope, ScaledBlock

# Joins the keys and values of past rows with new ones: (layer, keys, values), [kv_heads, T, D].
ExtendCache = Callable[[int, str, str], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Pass:
    """The values that all layers of a pass share."""

    cos: str  # [1, T, head_dim / 2]
    sin: str
    mask: str | None  # float32 [group * T, S], -inf where a key is hidden; None: no key is hidden
    extend_cache: ExtendCache
    watch: Callable[[int, str], None] = lambda layer, weights: None  # [kv_heads, group * T, S]


class NormNodes:
    """RMSNorm over the last dimension."""

    def __init__(self, graph: Graph, weight: Tensor, eps: float) -> None:
        self._graph, self._weight, self._eps = graph, graph.weight(weight), eps

    @classmethod
    def of(cls, graph: Graph, module: nn.Module) -> NormNodes:
        assert isinstance(module, RMSNorm)
        return cls(graph, module.weight, module.eps)

    def __call__(self, x: str) -> str:
        return self._graph.op("RMSNormalization", x, self._weight, axis=-1, epsilon=self._eps)


class LinearNodes:
    """A linear layer with the given weight [out, in]."""

    def __init__(
        self,
        graph: Graph,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        is_sensitive: bool = False,
    ) -> None:
        self._graph = graph
        self._weight = graph.weight(weight.detach().t(), axis=1, is_sensitive=is_sensitive)
        self._bias = None if bias is None else graph.weight(bias)

    @classmethod
    def of(cls, graph: Graph, module: nn.Linear) -> LinearNodes:
        return cls(graph, module.weight, module.bias)

    def __call__(self, x: str) -> str:
        product = self._graph.op("MatMul", x, self._weight)
        return product if self._bias is None else self._graph.op("Add", product, self._bias)


class AttentionNodes:
    """Attention with RoPE, over past and new rows."""

    def __init__(self, graph: Graph, module: Attention, out_scale: Tensor | None) -> None:
        self._graph, self._width = graph, module.head_dim
        self._heads, self._kv_heads = module.num_heads, module.num_kv_heads
        q, k, v = (part.weight for part in (module.q_proj, module.k_proj, module.v_proj))
        scale = module.head_dim**-0.5
        self._norm = None
        if module.q_norm is not None and module.k_norm is not None:
            norms = [module.q_norm.weight * scale] * self._heads
            norms += [module.k_norm.weight] * self._kv_heads
            self._norm = NormNodes(graph, torch.ones(module.head_dim), module.q_norm.eps)
            self._norm_scale = graph.weight(torch.stack(norms)[:, None])
            scale = 1.0
        is_codec = out_scale is not None
        joined = torch.cat((q * scale, k, v))
        self._project = LinearNodes(graph, joined, is_sensitive=is_codec)
        weight = _scaled(module.o_proj.weight, out_scale)
        self._out = LinearNodes(graph, weight, is_sensitive=is_codec)

    def __call__(self, layer: int, x: str, shared: Pass) -> str:
        graph, heads, kv_heads, width = self._graph, self._heads, self._kv_heads, self._width
        projected = graph.reshape(self._project(x), [-1, heads + 2 * kv_heads, width])
        projected = graph.transpose(projected, [1, 0, 2])  # [heads + 2 kv_heads, T, head_dim]
        qk, v = graph.split(projected, [heads + kv_heads, kv_heads], 0)
        if self._norm is not None:
            qk = graph.op("Mul", self._norm(qk), self._norm_scale)
        q, k = graph.split(self._rotate(qk, shared), [heads, kv_heads], 0)
        keys, values = shared.extend_cache(layer, k, v)
        q = graph.reshape(q, [kv_heads, -1, width])  # [kv_heads, group * T, head_dim]
        weights = graph.op("MatMul", q, graph.transpose(keys, [0, 2, 1]))
        if shared.mask is not None:
            weights = graph.op("Add", weights, shared.mask)
        weights = graph.op("Softmax", weights, axis=-1)
        shared.watch(layer, weights)
        attended = graph.reshape(graph.op("MatMul", weights, values), [heads, -1, width])
        attended = graph.reshape(graph.transpose(attended, [1, 0, 2]), [-1, heads * width])
        return self._out(attended)

    def _rotate(self, x: str, shared: Pass) -> str:
        graph = self._graph
        batch = graph.op("Unsqueeze", x, graph.constant([0]))
        turned = graph.op("RotaryEmbedding", batch, shared.cos, shared.sin)
        return graph.op("Squeeze", turned, graph.constant([0]))


class MlpNodes:
    """The gated MLP."""

    def __init__(self, graph: Graph, module: GatedMlp, out_scale: Tensor | None) -> None:
        self._graph, self._size = graph, module.gate_proj.out_features
        both = torch.cat((module.gate_proj.weight, module.up_proj.weight))
        is_codec = out_scale is not None
        self._gate_up = LinearNodes(graph, both, is_sensitive=is_codec)
        weight = _scaled(module.down_proj.weight, out_scale)
        self._down = LinearNodes(graph, weight, is_sensitive=is_codec)

    def __call__(self, x: str) -> str:
        graph = self._graph
        gate, up = graph.split(self._gate_up(x), [self._size, self._size], 1)
        active = graph.op("Mul", gate, graph.op("Sigmoid", gate))
        return self._down(graph.op("Mul", active, up))


class BlockNodes:
    """A layer of the talker, the predictor or the codec's transformer."""

    def __init__(self, graph: Graph, module: nn.Module) -> None:
        assert isinstance(module, (Block, ScaledBlock))
        assert isinstance(module.mlp, GatedMlp)
        scales: tuple[Tensor | None, Tensor | None] = (None, None)
        if isinstance(module, ScaledBlock):
            scales = module.self_attn_layer_scale.scale, module.mlp_layer_scale.scale
        self._graph = graph
        self._first_norm = NormNodes.of(graph, module.input_layernorm)
        self._attention = AttentionNodes(graph, module.self_attn, scales[0])
        self._second_norm = NormNodes.of(graph, module.post_attention_layernorm)
        self._mlp = MlpNodes(graph, module.mlp, scales[1])

    def __call__(self, layer: int, x: str, shared: Pass) -> str:
        x = self._graph.op("Add", x, self._attention(layer, self._first_norm(x), shared))
        return self._graph.op("Add", x, self._mlp(self._second_norm(x)))


def rope_rows(graph: Graph, rope: Rope, first: str, num_rows: str) -> tuple[str, str]:
    """Cosines and sines of consecutive positions: [1, num_rows, head_dim / 2] each."""
    frequencies = ops.rope_frequencies(rope.head_dim, rope.theta, torch.device("cpu"))
    positions = graph.op("Range", first, graph.op("Add", first, num_rows), graph.constant(1))
    column = graph.reshape(graph.cast(positions, "float32"), [1, -1, 1])
    angles = graph.op("Mul", column, graph.constant(frequencies.numpy()))
    return graph.op("Cos", angles), graph.op("Sin", angles)


def hidden_keys(graph: Graph, is_seen: str) -> str:
    """A mask for the attention: 0 where a bool is true, else -inf."""
    return graph.op("Where", is_seen, graph.constant(0.0), graph.constant(float("-inf")))


def _scaled(weight: Tensor, out_scale: Tensor | None) -> Tensor:
    return weight if out_scale is None else weight * out_scale[:, None]
