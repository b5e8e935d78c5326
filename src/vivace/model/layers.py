"""The transformer block that talker, predictor and codec share.

A block passes queries, keys and values to an `Attend`, which stores, masks and attends. Training,
prefill, ragged decoding and the codec's sliding window differ only in their `Attend`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace.model import ops
from vivace.model.config import GatedConfig, StackConfig
from vivace.model.lora import StackedLora, adapted, add_change


class Attend(Protocol):
    """Attention of one layer over all positions so far."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class Layer(nn.Module):
    """A module without hooks, whose lookup costs a third of the time in small models."""

    def __call__(self, *args: Any) -> Any:
        return self.forward(*args)


class Linear(Layer, nn.Linear):
    """A linear layer without initialisation; the checkpoint provides its weights."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lora: StackedLora | None = None  # changes of adapters that are chosen per row

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """An embedding without initialisation, which would import PyTorch's compiler."""

    def reset_parameters(self) -> None:
        pass


class RMSNorm(Layer):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)


class LayerScale(Layer):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Rope:
    """Cosines and sines by position, computed once in float32 and kept in the working dtype."""

    def __init__(self, head_dim: int, theta: float) -> None:
        self.head_dim = head_dim
        self.theta = theta
        self._cos = self._sin = torch.empty(0, head_dim)

    def span(self, start: int, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of consecutive positions: [length, head_dim] each."""
        self._reach(start + length, like)
        return self._cos[start : start + length], self._sin[start : start + length]

    def rows(self, positions: list[int], like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of one position per batch row: [B, 1, 1, head_dim] each."""
        self._reach(max(positions) + 1, like)
        index = torch.tensor(positions, device=like.device)
        return self._cos[index, None, None], self._sin[index, None, None]

    def _reach(self, length: int, like: Tensor) -> None:
        is_fit = self._cos.device == like.device and self._cos.dtype == like.dtype
        if is_fit and len(self._cos) >= length:
            return
        positions = torch.arange(max(256, 1 << (length - 1).bit_length()), device=like.device)
        cos, sin = ops.rope_table(positions, self.head_dim, self.theta)
        self._cos, self._sin = cos.to(like.dtype), sin.to(like.dtype)


class Attention(Layer):
    def __init__(self, config: StackConfig, *, qk_norm_eps: float | None = None) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, width, bias=False)
        self.k_proj = Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = Linear(width, config.hidden_size, bias=False)
        self.qkv_proj: Linear | None = None  # replaces the first three in a quantized model
        self.qkv_lora: StackedLora | None = None
        self.q_norm = RMSNorm(config.head_dim, qk_norm_eps) if qk_norm_eps else None
        self.k_norm = RMSNorm(config.head_dim, qk_norm_eps) if qk_norm_eps else None
        self.register_buffer("qkv_weight", None, persistent=False)
        self.register_buffer("qk_scale", None, persistent=False)

    def fuse(self) -> None:
        """One product for queries, keys and values; their parameters become views of its weight."""
        if self.qkv_proj is None:
            self.qkv_weight = _join(self.q_proj, self.k_proj, self.v_proj)
        self.qk_scale = self._qk_scale() if self.q_norm is not None else None

    def forward(
        self,
        layer: int,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        attend: Attend,
        adapters: Tensor | None = None,
    ) -> Tensor:
        batch, length, _ = x.shape
        heads = add_change(self._project(x), self.qkv_lora, x, adapters)
        heads = heads.view(batch, length, -1, self.head_dim)
        heads = heads.transpose(1, 2)  # [B, heads + 2 kv_heads, T, head_dim]
        qk, v = heads[:, : -self.num_kv_heads], heads[:, -self.num_kv_heads :]
        if self.q_norm is not None:
            qk = ops.rms_norm(qk, self._qk_scale(), self.q_norm.eps)
        qk = ops.apply_rope(qk, *rope)
        q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]
        attended = attend(layer, q, k, v).transpose(1, 2)
        return adapted(self.o_proj, attended.reshape(batch, length, -1), adapters)

    def _project(self, x: Tensor) -> Tensor:
        """Queries, keys and values: [B, T, (heads + 2 kv_heads) * head_dim]."""
        if self.qkv_proj is not None:
            return self.qkv_proj(x)
        return F.linear(x, self.joined_weight())

    def joined_weight(self) -> Tensor:
        """The weight of queries, keys and values; a copy unless the layer is fused."""
        if self.qkv_weight is not None:
            return self.qkv_weight
        return torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))

    def _qk_scale(self) -> Tensor:
        """The norm's weight of every query and key head: [heads + kv_heads, 1, head_dim]."""
        if self.qk_scale is not None:
            return self.qk_scale
        assert self.q_norm is not None
        assert self.k_norm is not None
        q = self.q_norm.weight.expand(self.num_heads, 1, -1)
        return torch.cat((q, self.k_norm.weight.expand(self.num_kv_heads, 1, -1)))


class GatedMlp(Layer):
    def __init__(self, config: GatedConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.gate_up_proj: Linear | None = None  # replaces the first two in a quantized model
        self.gate_up_lora: StackedLora | None = None
        self.register_buffer("gate_up_weight", None, persistent=False)

    def fuse(self) -> None:
        """One product for gate and up; their parameters become views of its weight."""
        if self.gate_up_proj is None:
            self.gate_up_weight = _join(self.gate_proj, self.up_proj)

    def forward(self, x: Tensor, adapters: Tensor | None = None) -> Tensor:
        gate, up = add_change(self._project(x), self.gate_up_lora, x, adapters).chunk(2, dim=-1)
        return adapted(self.down_proj, ops.gated_mlp(gate, up), adapters)

    def _project(self, x: Tensor) -> Tensor:
        """Gate and up: [B, T, 2 * intermediate_size]."""
        if self.gate_up_proj is not None:
            return self.gate_up_proj(x)
        return F.linear(x, self.joined_weight())

    def joined_weight(self) -> Tensor:
        """The weight of gate and up; a copy unless the layer is fused."""
        if self.gate_up_weight is not None:
            return self.gate_up_weight
        return torch.cat((self.gate_proj.weight, self.up_proj.weight))


def _join(*layers: Linear) -> Tensor:
    """Join the layers' weights in one tensor; each layer's parameter becomes a view of its part."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    parts = weight.split([layer.out_features for layer in layers])
    for layer, part in zip(layers, parts, strict=True):
        layer.weight = nn.Parameter(part, requires_grad=False)
    return weight


def fuse(module: nn.Module) -> None:
    """Fuse all attention and MLP layers of a module. Call once, after loading the weights."""
    for part in module.modules():
        if isinstance(part, (Attention, GatedMlp)):
            part.fuse()


def module_bytes(module: nn.Module) -> int:
    """Bytes of parameters and buffers; shared storage counts once."""
    storages = {}
    for tensor in (*module.parameters(), *module.buffers()):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class Block(Layer):
    """Pre-norm attention and gated MLP, as in the talker and the predictor.

    `adapters` has the adapter of each batch row (`StackedLora`); None: no row has one.
    """

    def __init__(self, config: GatedConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, qk_norm_eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMlp(config)

    def forward(
        self,
        layer: int,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        attend: Attend,
        adapters: Tensor | None = None,
    ) -> Tensor:
        x = x + self.self_attn(layer, self.input_layernorm(x), rope, attend, adapters)
        return x + self.mlp(self.post_attention_layernorm(x), adapters)


class ScaledBlock(Layer):
    """The codec's block: both branches are scaled per channel before they are added."""

    def __init__(
        self, config: StackConfig, mlp: nn.Module, norms: tuple[nn.Module, nn.Module]
    ) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norms
        self.self_attn = Attention(config)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.mlp = mlp
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, layer: int, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        attended = self.self_attn(layer, self.input_layernorm(x), rope, attend)
        x = x + self.self_attn_layer_scale(attended)
        mixed = self.mlp(self.post_attention_layernorm(x))
        return x + self.mlp_layer_scale(mixed)


class TextProjection(nn.Module):
    """Text embeddings to the talker's width."""

    def __init__(self, text_width: int, width: int) -> None:
        super().__init__()
        self.linear_fc1 = Linear(text_width, text_width)
        self.linear_fc2 = Linear(text_width, width)

    @property
    def is_adapted(self) -> bool:
        """Whether adapters that are chosen per row change it."""
        return self.linear_fc1.lora is not None or self.linear_fc2.lora is not None

    def forward(self, x: Tensor, adapters: Tensor | None = None) -> Tensor:
        inner = F.silu(adapted(self.linear_fc1, x, adapters))
        return adapted(self.linear_fc2, inner, adapters)
