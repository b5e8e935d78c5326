"""The codec's decoder with a kernel per layer; activations are [batch, time, channels].

Products run on tensor cores. `split` is 3xTF32 emulation of float32: each float32 is split into two
TF32 numbers, and three of the four products are summed. `half` rounds weights and inputs to TF32 in
the transformer and to float16 in its attention and in later layers. Their residual sums are float16
too. Products are summed in float32.

A layer is one kernel, followed by one that updates its history. It reads past inputs from the
slot's history and writes the activated input of the next layer. Consecutive linear layers are
merged when the weights are packed.

Layers of many rows behind the transformer run in `half` on product.cu and unit.cu on Hopper
GPUs, with equal results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from vivace.backends.cuda_graph.buckets import CODEC_FRAMES
from vivace.backends.cuda_graph.codec import kernels
from vivace.backends.cuda_graph.codec.histories import Histories, Past
from vivace.backends.cuda_graph.codec.layers import (
    Activation,
    CodeSum,
    Mix,
    Product,
    Unit,
    Waveform,
    rounded,
)
from vivace.backends.cuda_graph.codec.operands import ColumnParameters
from vivace.backends.cuda_graph.codec.plain import SlotDecoder
from vivace.backends.cuda_graph.codec.product import CodecProducts, WideProduct, load_products
from vivace.backends.cuda_graph.codec.tiles import SINGLE
from vivace.backends.cuda_graph.codec.transformer import RingAttention, Rope, TransformerLayer
from vivace.backends.cuda_graph.codec.unit import UnitKernels, WideUnit, load_kernels
from vivace.model import ops
from vivace.model.codec import Codec
from vivace.model.codec_decoder import (
    CodecDecoder,
    ConvNeXt,
    PreTransformer,
    ResidualUnit,
    SnakeBeta,
    UpsampleBlock,
)
from vivace.model.conv import CausalConv1d, CausalConvTranspose1d
from vivace.model.layers import GatedMlp, RMSNorm, ScaledBlock

# Frames of up to 64 streams mostly wait for their weights. They run on the other multiprocessors.
MAX_SHARING_SLOTS, SHARE = 65, 0.5
MIN_WIDE_SLOTS = 10  # of a decoder that compiles product.cu, with the one for padding


class FusedDecoder(SlotDecoder):
    def __init__(self, codec: Codec, num_rows: int, *, is_half: bool = False) -> None:
        self.name = f"fused kernels ({'float16' if is_half else '3xTF32'})"
        has_many = is_half and num_rows >= MIN_WIDE_SLOTS
        share = SHARE if num_rows <= MAX_SHARING_SLOTS else 1.0
        units = load_kernels(codec.device, share) if has_many else None
        products = load_products(codec.device, share) if has_many else None
        packer = WeightPacker(is_half=is_half, units=units, products=products)
        decoder = codec.decoder
        self._sum = packer.code_sum(decoder)
        self._input = packer.input(decoder)
        self._rope = packer.rope(decoder.pre_transformer)
        self._layers = packer.layers(decoder.pre_transformer)
        self._stages = packer.stages(decoder)
        self._first, self._blocks, self._last = packer.vocoder(decoder)
        self._histories = packer.histories
        super().__init__(self._histories.allocate(num_rows, codec.device))

    def _clear(self, rows: Tensor) -> None:
        self._histories.clear(rows)

    def _run(self, slots: Tensor, codes: Tensor) -> Tensor:
        rotations = self._rope.rotations(slots, self._num_seen, codes.shape[1])
        past = Past(self._histories, slots, self._num_seen, rotations)
        x = self._input.run(self._sum.run(codes), past)
        for layer in self._layers:
            x = layer.run(x, past)
        for upsample, mix in self._stages:
            x = upsample.run(x, past)
            x = mix.run(x.view(len(x), -1, len(mix.bias)), past)
        x = self._first.activate(x, past, room=self._blocks[0].upsample.room(*x.shape[:2]))
        followers = [*(block.upsample for block in self._blocks[1:]), None]
        for block, follower in zip(self._blocks, followers, strict=True):
            x = block.run(x, past, follower)
        return self._last.run(x, past)


@dataclass(frozen=True, slots=True)
class UpsamplingBlock:
    upsample: Product
    num_channels: int
    units: tuple[Unit, ...]

    def run(self, active: Tensor, past: Past, follower: Product | None) -> Tensor:
        """Activated input to the activated input of `follower`."""
        batch, length = len(active), active.shape[1] * self.rate
        rooms = [unit.room(batch, length) for unit in self.units]
        rooms.append(follower.room(batch, length) if follower is not None else 0)
        x, active = self.upsample.run_both(active, past, room=rooms[0])
        x, active = (each.view(batch, length, self.num_channels) for each in (x, active))
        *units, last = self.units
        for unit, room in zip(units, rooms[1:], strict=False):
            x, active = unit.run(x, active, past, room)
        return last.activate(x, active, past, rooms[-1])

    @property
    def rate(self) -> int:
        return self.upsample.weight.shape[1] // self.num_channels


class WeightPacker:
    """Packs the decoder's weights into layers, and reserves the history of each."""

    def __init__(
        self,
        *,
        is_half: bool,
        units: UnitKernels | None = None,
        products: CodecProducts | None = None,
    ) -> None:
        self.histories = Histories()
        self._units, self._products = units, products
        self._is_half = is_half
        self._dtype = torch.float16 if is_half else torch.float32  # behind the transformer

    def code_sum(self, decoder: CodecDecoder) -> CodeSum:
        quantizer = decoder.quantizer
        layers = (*quantizer.rvq_first.vq.layers, *quantizer.rvq_rest.vq.layers)
        vectors = [layer._codebook.vectors() for layer in layers]
        return CodeSum(torch.stack(vectors).float(), quantizer.num_semantic)

    def input(self, decoder: CodecDecoder) -> Product:
        """The quantizer's projections, the first convolution and the transformer's first layer."""
        quantizer, conv = decoder.quantizer, decoder.pre_conv.conv
        last = decoder.pre_transformer.input_proj
        halves = (quantizer.rvq_first.output_proj.weight, quantizer.rvq_rest.output_proj.weight)
        projection = torch.cat(halves, dim=1)[:, :, 0].double()  # [codebook_dim, 2 * width]
        assert conv.bias is not None
        taps = conv.weight.double().permute(2, 0, 1)  # [taps, latent, codebook_dim]
        weight = last.weight.double() @ taps @ projection
        bias = last.weight.double() @ conv.bias.double() + last.bias.double()
        history = self.histories.add((len(taps) - 1) * weight.shape[2])
        return self._linear(weight, bias.float(), history=history)

    def _linear(self, weight: Tensor, bias: Tensor | None = None, **more: Any) -> Product:
        """A layer of the transformer: weight [taps, columns, in]."""
        if not self._is_half:
            return Product(weight.float().contiguous(), bias, **more)
        return Product(rounded(weight), bias, precision=SINGLE, **more)

    def layers(self, transformer: PreTransformer) -> list[TransformerLayer]:
        return [
            self._layer(cast("ScaledBlock", layer), transformer.window)
            for layer in transformer.layers
        ]

    def rope(self, transformer: PreTransformer) -> Rope:
        rope = transformer.rope
        frequencies = ops.rope_frequencies(rope.head_dim, rope.theta, torch.device("cpu"))
        return Rope(frequencies.to(transformer.norm.weight.device))

    def _layer(self, layer: ScaledBlock, window: int) -> TransformerLayer:
        attention, mlp = layer.self_attn, cast("GatedMlp", layer.mlp)
        ring_length = window - 1 + CODEC_FRAMES[0]
        ring_size = 2 * attention.num_kv_heads * ring_length * attention.head_dim
        return TransformerLayer(
            project=self._linear(
                _fused(attention.qkv_weight)[None], norm=cast("RMSNorm", layer.input_layernorm)
            ),
            attention=RingAttention(
                num_heads=attention.num_heads,
                num_kv_heads=attention.num_kv_heads,
                head_dim=attention.head_dim,
                window=window,
                ring_length=ring_length,
                ring=self.histories.add(ring_size, self._dtype),
            ),
            merge=self._linear(
                attention.o_proj.weight[None], scale=layer.self_attn_layer_scale.scale
            ),
            gate_up=self._linear(
                _fused(mlp.gate_up_weight)[None],
                norm=cast("RMSNorm", layer.post_attention_layernorm),
                is_gated=True,
            ),
            down=self._linear(mlp.down_proj.weight[None], scale=layer.mlp_layer_scale.scale),
        )

    def stages(self, decoder: CodecDecoder) -> list[tuple[Product, Mix]]:
        stages = []
        for index, stage in enumerate(decoder.upsample):
            upsample, mix = cast("nn.ModuleList", stage)
            upsample = cast("CausalConvTranspose1d", upsample)
            first = self._output(decoder.pre_transformer, upsample) if index == 0 else None
            stages.append((first or self._upsample(upsample), self._mix(cast("ConvNeXt", mix))))
        return stages

    def _output(self, transformer: PreTransformer, upsample: CausalConvTranspose1d) -> Product:
        """The transformer's norm and last layer, and the first upsampling."""
        (weight,), last = _taps(upsample).double(), transformer.output_proj  # [columns, latent]
        assert upsample.conv.bias is not None
        bias = weight @ last.bias.double() + upsample.conv.bias.double().repeat(upsample.stride)
        weight = weight @ last.weight.double()
        return self._linear(weight[None], bias.float(), norm=transformer.norm)

    def _mix(self, layer: ConvNeXt) -> Mix:
        conv, dtype = layer.dwconv.conv, self._dtype
        assert conv.bias is not None
        weight = conv.weight[:, 0].T.contiguous()
        expand, contract = layer.pwconv1, layer.pwconv2
        return Mix(
            weight=weight,
            bias=conv.bias,
            norm=layer.norm,
            history=self.histories.add((len(weight) - 1) * weight.shape[1]),
            expand=Product(
                expand.weight[None].to(dtype),
                expand.bias,
                activation=Activation(dtype, kernels.GELU.value),
            ),
            contract=Product(
                contract.weight[None].to(dtype),
                contract.bias,
                scale=layer.gamma,
                activation=Activation(dtype),
            ),
        )

    def vocoder(self, decoder: CodecDecoder) -> tuple[Product, list[UpsamplingBlock], Waveform]:
        first, *blocks, snake, last = decoder.decoder
        parts = [cast("UpsampleBlock", block).block for block in blocks]
        snakes = [*(part[0] for part in parts), snake]
        opening = self._widened(self._convolution(first, snakes[0]))
        packed = [self._block(part, after) for part, after in zip(parts, snakes[1:], strict=True)]
        return opening, packed, self._waveform(cast("CausalConv1d", last))

    def _block(self, layers: nn.ModuleList, after: nn.Module) -> UpsamplingBlock:
        _, upsample, *rest = layers
        units = [cast("ResidualUnit", unit) for unit in rest]
        following = [*(unit.act1 for unit in units[1:]), after]
        up = cast("CausalConvTranspose1d", upsample)
        return UpsamplingBlock(
            self._widened(self._upsample(up, units[0].act1)),
            up.conv.out_channels,
            tuple(map(self._unit, units, following)),
        )

    def _unit(self, unit: ResidualUnit, after: nn.Module) -> Unit:
        first = self._convolution(unit.conv1, unit.act2)
        second = self._convolution(unit.conv2, after)
        wide = WideUnit.pack(
            self._units, first.weight, second.weight,
            _parameters(first), _parameters(second), first.dilation,
        )  # fmt: skip
        if wide is None:
            first, second = self._widened(first), self._widened(second)
        return Unit(first, second, wide)

    def _widened(self, layer: Product) -> Product:
        """The layer with its kernel for many rows, where there is one."""
        parameters = _parameters(layer)
        wide = WideProduct.pack(self._products, layer.weight, parameters, layer.dilation)
        return replace(layer, wide=wide)

    def _convolution(self, layer: nn.Module, snake: nn.Module) -> Product:
        layer = cast("CausalConv1d", layer)
        return Product(
            self._filters(layer),
            layer.conv.bias,
            dilation=layer.conv.dilation[0],
            history=self._history(layer.reach, layer.conv.in_channels),
            activation=self._snake(snake),
        )

    def _waveform(self, layer: CausalConv1d) -> Waveform:
        assert layer.conv.bias is not None
        history = self._history(layer.reach, layer.conv.in_channels)
        return Waveform(self._filters(layer), layer.conv.bias, history)

    def _filters(self, layer: CausalConv1d) -> Tensor:
        """[taps, out, in]; the layer keeps a view of it where the dtype is the same."""
        weight = layer.conv.weight.detach().permute(2, 0, 1).contiguous()
        layer.conv.weight = nn.Parameter(weight.permute(1, 2, 0), requires_grad=False)  # no copy
        return weight.to(self._dtype)

    def _upsample(self, layer: CausalConvTranspose1d, snake: nn.Module | None = None) -> Product:
        weight = _taps(layer).to(self._dtype)
        history = self._history(len(weight) - 1, layer.conv.in_channels)
        activation = self._snake(snake)
        return Product(weight, layer.conv.bias, history=history, activation=activation)

    def _history(self, reach: int, num_channels: int) -> int:
        return self.histories.add(reach * num_channels, self._dtype) if reach else -1

    def _snake(self, snake: nn.Module | None) -> Activation | None:
        if snake is None:
            return None
        snake = cast("SnakeBeta", snake)
        assert snake.frequency is not None, "the codec is not folded"
        kind = kernels.SNAKE.value
        frequency = snake.frequency / math.pi  # in half turns
        return Activation(self._dtype, kind, frequency, snake.inverse_gain)


def _taps(layer: CausalConvTranspose1d) -> Tensor:
    """[taps, stride * out, in]; the tap of the current input is last."""
    taps = layer.conv.weight.permute(2, 1, 0).unflatten(0, (-1, layer.stride))
    return taps.flip(0).flatten(1, 2).contiguous()


def _parameters(layer: Product) -> ColumnParameters | None:
    snake = layer.activation
    if snake is None:
        return None
    num_columns, gain = layer.weight.shape[1], snake.inverse_gain
    return ColumnParameters.spread(num_columns, layer.bias, snake.frequency, gain)


def _fused(weight: Tensor | None) -> Tensor:
    assert weight is not None, "the codec is not folded"
    return weight
