"""A model with integer weights: its structure, and its tensors from those of a plain model.

| matrices | int8 model | int4 model |
|---|---|---|
| projections of attention and MLP | int8 | int4; int8 if the inputs are not whole groups |
| heads, the predictor's input projection | int8 | int8 |

Queries, keys and values are one matrix `qkv_proj`, and gate and up are `gate_up_proj`, so that they
are used where they lie in a mapped file. Embeddings are bfloat16, all other tensors float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace.model.config import IntWeights, ModelConfig
from vivace.model.layers import Attention, Block, Embedding, GatedMlp, Linear
from vivace.model.quantized import (
    GROUP,
    LARGEST_INT8,
    Bits,
    QuantizedLinear,
    can_be_int4,
    dequantize,
    quantize,
)
from vivace.model.talker import Qwen3TTS

BITS: dict[IntWeights, Bits] = {"int8": 8, "int4": 4}
MANY_ROWS = 8  # with more, a product with float32 weights is faster

Product = Callable[[Tensor], Tensor]  # float32 [rows, in] to [rows, out]


class QuantizedLayer(Linear):
    """A linear layer with integer weights, in place of one or more plain layers by name.

    Activations are not rounded, unless a backend sets a faster product for few rows with `use`.
    """

    scale: Tensor

    def __init__(self, layers: dict[str, Linear], bits: Bits) -> None:
        nn.Module.__init__(self)  # not nn.Linear's: the weight is no parameter
        self.parts = {name: layer.out_features for name, layer in layers.items()}
        self.in_features = next(iter(layers.values())).in_features
        self.out_features = sum(self.parts.values())
        self.bits: Bits = 4 if bits == 4 and can_be_int4(self.in_features) else 8
        rows, width = self.out_features, self.in_features
        if self.bits == 4:
            weight = torch.empty(rows, width // 2, dtype=torch.uint8)
            scale = torch.empty(rows, width // GROUP, dtype=torch.float16)
        else:
            weight, scale = torch.empty(rows, width, dtype=torch.int8), torch.empty(rows)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        has_bias = any(layer.bias is not None for layer in layers.values())
        self.register_buffer("bias", torch.empty(rows) if has_bias else None)
        self._product: Product = self._multiply
        self._max_rows: int | None = MANY_ROWS  # None: all

    @property
    def linear(self) -> QuantizedLinear:
        """Raises ValueError if weight and scale do not fit together."""
        return QuantizedLinear(self.weight, self.scale, self.bits)

    def use(self, product: Product, *, max_rows: int | None = MANY_ROWS) -> None:
        """Compute products of up to `max_rows` rows with a kernel. They include no bias."""
        self._product, self._max_rows = product, max_rows

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        is_kernel = self._max_rows is None or len(rows) <= self._max_rows
        out = self._product(rows) if is_kernel else self._multiply(rows)
        if self.bias is not None:
            out = out + self.bias
        return out.view(*x.shape[:-1], self.out_features)

    def _multiply(self, rows: Tensor) -> Tensor:
        if self.bits == 8 and len(rows) <= MANY_ROWS:
            return torch._weight_int8pack_mm(rows, self.weight, self.scale)
        return F.linear(rows, dequantize(self.linear))


class HalfEmbedding(Embedding):
    """An embedding whose table is bfloat16 and whose vectors are float32."""

    @classmethod
    def like(cls, table: nn.Module) -> HalfEmbedding:
        assert isinstance(table, Embedding)
        return cls(table.num_embeddings, table.embedding_dim, dtype=torch.bfloat16)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight).float()


def build_quantized(config: ModelConfig, weights: IntWeights) -> Qwen3TTS:
    """A model with integer matrices. Build it on the meta device and load its tensors."""
    model = Qwen3TTS(config)
    talker, bits = model.talker, BITS[weights]
    predictor = talker.code_predictor
    for part in list(model.modules()):
        if isinstance(part, Block):
            _quantize_block(part, bits)
    talker.codec_head = _single(talker.codec_head, "codec_head")
    heads = [_single(head, str(index)) for index, head in enumerate(predictor.lm_head)]
    predictor.lm_head = nn.ModuleList(heads)
    if isinstance(predictor.small_to_mtp_projection, Linear):
        name = "small_to_mtp_projection"
        predictor.small_to_mtp_projection = _single(predictor.small_to_mtp_projection, name)
    talker.model.codec_embedding = HalfEmbedding.like(talker.model.codec_embedding)
    talker.model.text_embedding = HalfEmbedding.like(talker.model.text_embedding)
    tables = [HalfEmbedding.like(table) for table in predictor.model.codec_embedding]
    predictor.model.codec_embedding = nn.ModuleList(tables)
    model.weights = weights
    return model


def quantized_layers(model: nn.Module) -> Iterator[tuple[str, QuantizedLayer]]:
    """All quantized layers by name."""
    for name, layer in model.named_modules():
        if isinstance(layer, QuantizedLayer):
            yield name, layer


def quantize_tensors(
    model: nn.Module, read: Callable[[str], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a quantized model, from the plain tensors that `read` returns by name.

    Raises ValueError that names a tensor that cannot be quantized.
    """
    made = set()
    for name, layer in quantized_layers(model):
        plain = _plain_names(name, layer)
        weight = torch.cat([read(f"{each}.weight") for each in plain])
        try:
            linear = quantize(weight, layer.bits)
        except ValueError as error:
            raise ValueError(f"{', '.join(plain)} cannot be quantized: {error}") from error
        yield f"{name}.weight", linear.weight
        yield f"{name}.scale", linear.scale
        made |= {f"{name}.weight", f"{name}.scale"}
    for name, like in model.state_dict().items():
        if name not in made:
            yield name, read(name).to(like.dtype)


def dequantize_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The plain tensors of a loaded quantized model, by their names in a checkpoint."""
    made = set()
    for name, layer in quantized_layers(model):
        weights = dequantize(layer.linear).split(list(layer.parts.values()))
        for each, weight in zip(_plain_names(name, layer), weights, strict=True):
            yield f"{each}.weight", weight
        made |= {f"{name}.weight", f"{name}.scale"}
    yield from ((name, each) for name, each in model.state_dict().items() if name not in made)


def check_values(model: nn.Module) -> None:
    """Raise ValueError that names the first matrix with numbers outside its format."""
    for name, layer in quantized_layers(model):
        if layer.bits == 8 and int(layer.weight.min()) < -LARGEST_INT8:
            raise ValueError(f"{name}.weight has numbers below -{LARGEST_INT8}")
        if layer.bits == 8 and float(layer.scale.min()) < 0:
            raise ValueError(f"{name}.scale has negative numbers")


def _plain_names(name: str, layer: QuantizedLayer) -> list[str]:
    """Names of the plain layers that a quantized layer replaces."""
    parent = name.rpartition(".")[0]
    return [f"{parent}.{part}" for part in layer.parts]


def _quantize_block(block: Block, bits: Bits) -> None:
    attention, mlp = block.self_attn, block.mlp
    attention.qkv_proj = _take(attention, ("q_proj", "k_proj", "v_proj"), bits)
    attention.o_proj = _take(attention, ("o_proj",), bits)
    mlp.gate_up_proj = _take(mlp, ("gate_proj", "up_proj"), bits)
    mlp.down_proj = _take(mlp, ("down_proj",), bits)


def _take(parent: Attention | GatedMlp, names: tuple[str, ...], bits: Bits) -> QuantizedLayer:
    """Remove linear layers from their parent and return the layer that replaces them."""
    layers = {name: getattr(parent, name) for name in names}
    for name in names:
        delattr(parent, name)
    return QuantizedLayer(layers, bits)


def _single(layer: nn.Module, name: str) -> QuantizedLayer:
    assert isinstance(layer, Linear)
    return QuantizedLayer({name: layer}, 8)
