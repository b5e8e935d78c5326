"""Checks the dimensions of config.json against the names and shapes of the tensors.

Runs before a model is built, so that a config.json cannot allocate more memory than its weights
need.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence

from vivace.errors import CheckpointError
from vivace.model.config import (
    CodecConfig,
    CodecDecoderConfig,
    CodecEncoderConfig,
    ModelConfig,
    SpeakerEncoderConfig,
    StackConfig,
)

DOWNSAMPLE_STRIDE = 2  # of the encoder's last convolution, which has no field
MAX_INDEX_DIGITS = 6  # of a layer's number in a tensor's name

Finding = tuple[str, object, object]  # field, its value, value according to the tensors


class TensorShapes:
    """Tensor names and shapes of one folder."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], where: str) -> None:
        self._shapes = shapes
        self._where = where

    def size(self, name: str, axis: int = 0) -> int:
        shape = self._shapes.get(name)
        if shape is None:
            raise CheckpointError(f"{self._where} lacks tensors: {name}")
        return shape[axis] if axis < len(shape) else 0

    def indices(self, prefix: str, inner: str = "") -> list[int]:
        """Sorted numbers n for which a tensor `prefix.n.inner…` exists."""
        found = set()
        for name in self._shapes:
            if name.startswith(f"{prefix}."):
                index, _, rest = name[len(prefix) + 1 :].partition(".")
                if index.isdecimal() and len(index) <= MAX_INDEX_DIGITS and rest.startswith(inner):
                    found.add(int(index))
        return sorted(found)

    def count(self, prefix: str, inner: str = "") -> int:
        return len(self.indices(prefix, inner))


def check_model(config: ModelConfig, tensors: TensorShapes, where: str) -> None:
    """Raise `CheckpointError` for the first dimension that differs from the talker's tensors."""
    _check(_model_findings(config, tensors), where)


def check_codec(config: CodecConfig, tensors: TensorShapes, where: str) -> None:
    """Raise `CheckpointError` for the first dimension that differs from the codec's tensors."""
    _check(_decoder_findings(config.decoder_config, tensors), where)
    _check(_encoder_findings(config.encoder_config, tensors), where)
    _check(_rate_findings(config), where)


def _check(findings: Iterator[Finding], where: str) -> None:
    for field, value, shown in findings:
        if value != shown:
            raise CheckpointError(
                f"{where}: {field} is {reprlib.repr(value)}; the tensors show {reprlib.repr(shown)}"
            )


def _model_findings(config: ModelConfig, tensors: TensorShapes) -> Iterator[Finding]:
    talker = config.talker_config
    predictor = talker.code_predictor_config
    section, inner = "talker_config", "talker_config.code_predictor_config"
    num_groups = 1 + tensors.count("talker.code_predictor.model.codec_embedding")
    yield f"{section}.num_code_groups", talker.num_code_groups, num_groups
    yield f"{inner}.num_code_groups", predictor.num_code_groups, num_groups
    yield from _layer_findings(section, talker, tensors, "talker.model.layers")
    yield from _layer_findings(inner, predictor, tensors, "talker.code_predictor.model.layers")
    texts = "talker.model.text_embedding.weight"
    yield f"{section}.text_vocab_size", talker.text_vocab_size, tensors.size(texts)
    yield f"{section}.text_hidden_size", talker.text_hidden_size, tensors.size(texts, 1)
    for where, part, head in (
        (section, talker, "talker.codec_head.weight"),
        (inner, predictor, "talker.code_predictor.lm_head.0.weight"),
    ):
        yield f"{where}.vocab_size", part.vocab_size, tensors.size(head)
    if config.speaker_encoder_config is not None:
        yield from _speaker_findings(config.speaker_encoder_config, tensors)


def _layer_findings(
    section: str, config: StackConfig, tensors: TensorShapes, layers: str
) -> Iterator[Finding]:
    yield f"{section}.num_hidden_layers", config.num_hidden_layers, tensors.count(layers)
    is_gated = tensors.count(layers, "mlp.gate_proj")
    inner = f"{layers}.0.mlp.{'gate_proj' if is_gated else 'fc1'}.weight"
    yield f"{section}.intermediate_size", config.intermediate_size, tensors.size(inner)
    yield f"{section}.hidden_size", config.hidden_size, tensors.size(inner, 1)
    if tensors.count(layers, "self_attn.q_norm"):
        width = tensors.size(f"{layers}.0.self_attn.q_norm.weight")
        yield f"{section}.head_dim", config.head_dim, width
    for field, heads, name in (
        ("num_attention_heads", config.num_attention_heads, "q_proj"),
        ("num_key_value_heads", config.num_key_value_heads, "k_proj"),
    ):
        rows = tensors.size(f"{layers}.0.self_attn.{name}.weight")
        yield f"{section}.{field} times head_dim", heads * config.head_dim, rows


def _speaker_findings(config: SpeakerEncoderConfig, tensors: TensorShapes) -> Iterator[Finding]:
    section, blocks = "speaker_encoder_config", "speaker_encoder.blocks"
    middle = [f"{blocks}.{index}" for index in tensors.indices(blocks, "tdnn1")]
    ends = (f"{blocks}.0.conv.weight", "speaker_encoder.mfa.conv.weight")
    channels = [ends[0], *(f"{block}.tdnn1.conv.weight" for block in middle), ends[1]]
    cascade = [f"{block}.res2net_block.blocks" for block in middle]
    kernels = [ends[0], *(f"{block}.0.conv.weight" for block in cascade), ends[1]]
    yield f"{section}.enc_channels", config.enc_channels, tuple(map(tensors.size, channels))
    yield (
        f"{section}.enc_kernel_sizes",
        config.enc_kernel_sizes,
        tuple(tensors.size(name, 2) for name in kernels),
    )
    yield f"{section}.enc_dilations: its length", len(config.enc_dilations), len(channels)
    for block in cascade:
        scale = 1 + tensors.count(block)
        yield f"{section}.enc_res2net_scale", config.enc_res2net_scale, scale
    for block in middle:
        squeezed = tensors.size(f"{block}.se_block.conv1.weight")
        yield f"{section}.enc_se_channels", config.enc_se_channels, squeezed
    attention = tensors.size("speaker_encoder.asp.tdnn.conv.weight")
    yield f"{section}.enc_attention_channels", config.enc_attention_channels, attention
    yield f"{section}.mel_dim", config.mel_dim, tensors.size(ends[0], 1)
    yield f"{section}.enc_dim", config.enc_dim, tensors.size("speaker_encoder.fc.weight")


def _decoder_findings(config: CodecDecoderConfig, tensors: TensorShapes) -> Iterator[Finding]:
    section, first = "decoder_config", "decoder.quantizer.rvq_first.vq.layers"
    num_first, num_rest = tensors.count(first), tensors.count(first.replace("first", "rest"))
    yield f"{section}.num_semantic_quantizers", config.num_semantic_quantizers, num_first
    yield f"{section}.num_quantizers", config.num_quantizers, num_first + num_rest
    codebook = f"{first}.0._codebook.cluster_usage"
    yield f"{section}.codebook_size", config.codebook_size, tensors.size(codebook)
    layers = "decoder.pre_transformer.layers"
    yield from _layer_findings(section, config, tensors, layers)
    stages = [f"decoder.decoder.{i}" for i in tensors.indices("decoder.decoder", "block")]
    rates = tuple(tensors.size(f"{stage}.block.1.conv.weight", 2) // 2 for stage in stages)
    yield f"{section}.upsample_rates", config.upsample_rates, rates
    steps = [f"decoder.upsample.{i}" for i in tensors.indices("decoder.upsample")]
    ratios = tuple(tensors.size(f"{step}.0.conv.weight", 2) for step in steps)
    yield f"{section}.upsampling_ratios", config.upsampling_ratios, ratios
    width = tensors.size("decoder.decoder.0.conv.weight")
    yield f"{section}.decoder_dim", config.decoder_dim, width
    yield f"{section}.latent_dim", config.latent_dim, tensors.size("decoder.pre_conv.conv.weight")
    codebook_dim = tensors.size("decoder.pre_conv.conv.weight", 1)
    yield f"{section}.codebook_dim", config.codebook_dim, codebook_dim


def _rate_findings(config: CodecConfig) -> Iterator[Finding]:
    """Samples per frame, from ratios that were checked against the tensors."""
    decoder, encoder = config.decoder_config, config.encoder_config
    made = math.prod((*decoder.upsample_rates, *decoder.upsampling_ratios))
    yield "decode_upsample_rate", config.decode_upsample_rate, made
    taken = DOWNSAMPLE_STRIDE * math.prod(encoder.upsampling_ratios)
    yield "encode_downsample_rate", config.encode_downsample_rate, taken


def _encoder_findings(config: CodecEncoderConfig, tensors: TensorShapes) -> Iterator[Finding]:
    section, first = "encoder_config", "encoder.quantizer.semantic_residual_vector_quantizer.layers"
    num_first, num_rest = tensors.count(first), tensors.count(first.replace("semantic", "acoustic"))
    yield f"{section}.num_semantic_quantizers", config.num_semantic_quantizers, num_first
    yield f"{section}.num_quantizers", config.num_quantizers, num_first + num_rest
    for field, value, axis in (
        ("codebook_size", config.codebook_size, 0),
        ("vector_quantization_hidden_dimension", config.vector_quantization_hidden_dimension, 1),
    ):
        yield f"{section}.{field}", value, tensors.size(f"{first}.0.codebook.embed_sum", axis)
    yield from _layer_findings(section, config, tensors, "encoder.encoder_transformer.layers")
    yield from _convolution_findings(config, tensors)


def _convolution_findings(config: CodecEncoderConfig, tensors: TensorShapes) -> Iterator[Finding]:
    """A convolution, then for each ratio some residual blocks and a strided one, then a last."""
    section, layers = "encoder_config", "encoder.encoder.layers"
    plain = [f"{layers}.{index}.conv.weight" for index in tensors.indices(layers, "conv")]
    blocks = [f"{layers}.{index}.block" for index in tensors.indices(layers, "block")]
    strides = [tensors.size(name, 2) // 2 for name in plain[1:-1]]
    yield f"{section}.upsampling_ratios", config.upsampling_ratios, tuple(reversed(strides))
    num_residual = len(blocks) // max(1, len(strides))
    yield f"{section}.num_residual_layers", config.num_residual_layers, num_residual
    ends = (f"{layers}.0.conv.weight", plain[-1] if plain else f"{layers}.conv.weight")
    for field, value, name, axis in (
        ("num_filters", config.num_filters, ends[0], 0),
        ("audio_channels", config.audio_channels, ends[0], 1),
        ("kernel_size", config.kernel_size, ends[0], 2),
        ("last_kernel_size", config.last_kernel_size, ends[1], 2),
    ):
        yield f"{section}.{field}", value, tensors.size(name, axis)
    for block in blocks[:1]:
        narrow = tensors.size(f"{block}.1.conv.weight")
        yield f"{section}.compress", config.compress, config.num_filters // max(1, narrow)
        kernel = tensors.size(f"{block}.1.conv.weight", 2)
        yield f"{section}.residual_kernel_size", config.residual_kernel_size, kernel
