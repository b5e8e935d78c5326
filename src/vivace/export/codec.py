"""The graph of the codec's decoder: codes of T frames to samples, continuing a stream.

The state is one vector: the last input columns of every causal layer, one after another.
"""

from __future__ import annotations

import math

import onnx
import torch
from torch import nn

from vivace.export.blocks import (
    BlockNodes,
    LinearNodes,
    NormNodes,
    Pass,
    hidden_keys,
    rope_rows,
)
from vivace.export.graph import Graph, StoredWeights
from vivace.model.codec import Codec
from vivace.model.codec_decoder import (
    CausalSequence,
    CodecDecoder,
    ConvNeXt,
    PreTransformer,
    ResidualUnit,
    SnakeBeta,
    UpsampleBlock,
)
from vivace.model.conv import CausalConv1d, CausalConvTranspose1d
from vivace.model.quantizer import DecoderLayer, DecoderQuantizer

# sin²(πr) = r²·(c0 + c1·r² + c2·r⁴ + …) for r from -0.5 to 0.5, with an error below 5e-7. In a
# browser onnxruntime's sine has no SIMD code, and these products take half of its time.
SINE_SQUARE = (9.8695248067, -32.465139308, 42.643423388, -29.426261329, 10.581279129)


def build_codec_graph(codec: Codec, weights: StoredWeights) -> onnx.ModelProto:
    with torch.inference_mode():
        return _CodecBuilder(codec.decoder, weights).build()


class _CodecBuilder:
    def __init__(self, decoder: CodecDecoder, weights: StoredWeights) -> None:
        self.graph = Graph("codec", weights)
        self.decoder, self.config = decoder, decoder.config
        self._old: list[str] = []  # flat parts of the state
        self._new: list[str] = []
        self._sizes: list[int] = []

    def build(self) -> onnx.ModelProto:
        graph = self.graph
        codes = graph.input("codes", "int32", ["frames", self.config.num_quantizers])
        x = self._quantized(codes)  # [1, codebook_dim, T]
        x = self._conv(x, self.decoder.pre_conv)
        x = self._transform(x, self.decoder.pre_transformer)
        for stage in self.decoder.upsample:
            x = self._run(x, stage)
        samples = self._run(x, self.decoder.decoder)
        limits = graph.constant(-1.0), graph.constant(1.0)
        samples = graph.op("Clip", graph.reshape(samples, [-1]), *limits)
        graph.output("samples", samples, "float32", ["samples"])
        self._close_state()
        return graph.build()

    # -- the state ---------------------------------------------------------------------------

    def _extend(self, x: str, shape: list[int], axis: int) -> str:
        """Prepend the stored columns, of this shape, to `x`, and store the last ones."""
        graph, width = self.graph, shape[axis]
        name = f"state_{len(self._old)}"
        self._old.append(name)
        self._sizes.append(math.prod(shape))
        joined = graph.concat([graph.reshape(name, shape), x], axis)
        tail = graph.slice(joined, -width, axis)
        self._new.append(graph.reshape(tail, [-1]))
        return joined

    def _close_state(self) -> None:
        graph, size = self.graph, sum(self._sizes)
        graph.output("new_state", graph.concat(self._new, 0), "float32", [size])
        state = graph.input("state", "float32", [size])
        graph.prepend_slices(state, self._sizes, self._old)

    # -- layers ------------------------------------------------------------------------------

    def _quantized(self, codes: str) -> str:
        graph, quantizer = self.graph, self.decoder.quantizer
        num_first = self.config.num_semantic_quantizers
        parts = graph.split(codes, [num_first, self.config.num_quantizers - num_first], 1)
        sums = [
            self._codebooks(part, module)
            for part, module in zip(parts, (quantizer.rvq_first, quantizer.rvq_rest), strict=True)
        ]
        vectors = graph.op("Add", *sums)  # [T, codebook_dim]
        return graph.op("Unsqueeze", graph.transpose(vectors, [1, 0]), graph.constant([0]))

    def _codebooks(self, codes: str, module: DecoderQuantizer) -> str:
        graph, size = self.graph, self.config.codebook_size
        tables = []
        for layer in module.vq.layers:
            assert isinstance(layer, DecoderLayer)
            tables.append(layer._codebook.vectors())
        offsets = [index * size for index in range(len(tables))]
        places = graph.op("Add", codes, graph.constant_of(offsets, "int32"))
        vectors = graph.op("Gather", graph.weight(torch.cat(tables)), places, axis=0)
        summed = graph.op("ReduceSum", vectors, graph.constant([1]), keepdims=0)
        return LinearNodes(graph, module.output_proj.weight[:, :, 0])(summed)

    def _transform(self, x: str, module: PreTransformer) -> str:
        """[1, latent_dim, T] to the same shape."""
        graph = self.graph
        x = graph.transpose(graph.op("Squeeze", x, graph.constant([0])), [1, 0])
        num_rows = graph.size(x, 0)
        position = graph.input("num_frames", "int32", [1])
        first = graph.op("Squeeze", graph.cast(position, "int64"), graph.constant([0]))
        cos, sin = rope_rows(graph, module.rope, first, num_rows)
        shared = Pass(cos, sin, self._window_mask(first, num_rows), self._remember)
        x = LinearNodes.of(graph, module.input_proj)(x)
        for index, layer in enumerate(module.layers):
            x = BlockNodes(graph, layer)(index, x, shared)
        x = LinearNodes.of(graph, module.output_proj)(NormNodes.of(graph, module.norm)(x))
        return graph.op("Unsqueeze", graph.transpose(x, [1, 0]), graph.constant([0]))

    def _remember(self, layer: int, keys: str, values: str) -> tuple[str, str]:
        config = self.config
        shape = [config.num_key_value_heads, config.sliding_window - 1, config.head_dim]
        return self._extend(keys, shape, 1), self._extend(values, shape, 1)

    def _window_mask(self, first: str, num_rows: str) -> str:
        """[T, window - 1 + T]: rows see the last frames including themselves, none before 0."""
        graph, window = self.graph, self.config.sliding_window
        zero, one = graph.constant_of(0, "int64"), graph.constant_of(1, "int64")
        end = graph.op("Add", first, num_rows)
        start = graph.op("Sub", first, graph.constant_of(window - 1, "int64"))
        columns = graph.op("Range", start, end, one)
        rows = graph.reshape(graph.op("Range", first, end, one), [-1, 1])
        oldest = graph.op("Sub", rows, graph.constant_of(window - 1, "int64"))
        is_recent = graph.op("GreaterOrEqual", columns, graph.op("Max", oldest, zero))
        is_past = graph.op("LessOrEqual", columns, rows)
        mask = hidden_keys(graph, graph.op("And", is_recent, is_past))
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        return graph.concat([mask] * group, 0)

    def _run(self, x: str, module: nn.Module) -> str:
        if isinstance(module, CausalSequence):
            for layer in module:
                x = self._run(x, layer)
            return x
        if isinstance(module, UpsampleBlock):
            return self._run(x, module.block)
        if isinstance(module, ResidualUnit):
            hidden = self._conv(self._snake(x, module.act1), module.conv1)
            hidden = self._conv(self._snake(hidden, module.act2), module.conv2)
            return self.graph.op("Add", x, hidden)
        if isinstance(module, ConvNeXt):
            return self._conv_next(x, module)
        if isinstance(module, SnakeBeta):
            return self._snake(x, module)
        if isinstance(module, CausalConvTranspose1d):
            return self._conv_transposed(x, module)
        assert isinstance(module, CausalConv1d)
        return self._conv(x, module)

    def _conv(self, x: str, module: CausalConv1d) -> str:
        conv = module.conv
        if module.reach:
            x = self._extend(x, [1, conv.in_channels, module.reach], 2)
        inputs = [x, self.graph.weight(conv.weight)]
        if conv.bias is not None:
            inputs.append(self.graph.weight(conv.bias))
        return self.graph.op("Conv", *inputs, dilations=list(conv.dilation), group=conv.groups)

    def _conv_transposed(self, x: str, module: CausalConvTranspose1d) -> str:
        """A plain convolution with `stride` outputs per column, which onnxruntime runs faster."""
        graph, conv, stride = self.graph, module.conv, module.stride
        assert conv.bias is not None
        if module.has_overlap:
            x = self._extend(x, [1, conv.in_channels, 1], 2)
        taps = conv.weight.unflatten(2, (-1, stride)).flip(2)  # [in, out, taps, stride]
        weight = taps.permute(1, 3, 0, 2).flatten(0, 1)  # [out * stride, in, taps]
        bias = conv.bias.repeat_interleave(stride)
        columns = graph.op("Conv", x, graph.weight(weight), graph.weight(bias))
        columns = graph.reshape(columns, [conv.out_channels, stride, -1])
        return graph.reshape(graph.transpose(columns, [0, 2, 1]), [1, conv.out_channels, -1])

    def _snake(self, x: str, module: SnakeBeta) -> str:
        """x + sin²(x·e^α) / e^β, with the square of the sine as a polynomial."""
        graph = self.graph
        frequency, inverse_gain = module.exponentials()
        turns = graph.op("Mul", x, graph.weight(frequency / math.pi))
        rest = graph.op("Sub", turns, graph.op("Round", turns))  # from -0.5 to 0.5
        square = graph.op("Mul", rest, rest)
        wave = graph.constant(SINE_SQUARE[-1])
        for factor in reversed(SINE_SQUARE[:-1]):
            wave = graph.op("Add", graph.op("Mul", wave, square), graph.constant(factor))
        wave = graph.op("Mul", graph.op("Mul", wave, square), graph.weight(inverse_gain))
        return graph.op("Add", x, wave)

    def _conv_next(self, x: str, module: ConvNeXt) -> str:
        graph = self.graph
        hidden = graph.transpose(self._conv(x, module.dwconv), [0, 2, 1])
        scale, shift = graph.weight(module.norm.weight), graph.weight(module.norm.bias)
        eps = module.norm.eps
        hidden = graph.op("LayerNormalization", hidden, scale, shift, axis=-1, epsilon=eps)
        hidden = graph.op("Gelu", LinearNodes.of(graph, module.pwconv1)(hidden))
        gamma, second = module.gamma, module.pwconv2
        out = LinearNodes(graph, second.weight * gamma[:, None], second.bias * gamma)
        return graph.op("Add", x, graph.transpose(out(hidden), [0, 2, 1]))
