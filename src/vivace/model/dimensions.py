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
    CodecEncoderConfig,
    ModelConfig,
    PredictorConfig,
    SpeakerEncoderConfig,
    StackConfig,
    TalkerConfig,
)

DOWNSAMPLE_STRIDE = 2  # of the encoder's last convolution, which has no field
MAX_INDEX_DIGITS = 6  # of a layer's number in a tensor's name

# Field, value according to the tensors, and the config's value if that is not the field itself.
Finding = tuple[str, object] | tuple[str, object, object]


class TensorShapes:
    """Tensor names and shapes of one folder."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], where: str) -> None:
        self._shapes = shapes
        self._where = where
        self.last_name = ""  # the tensor whose size was read last

    def size(self, name: str, axis: int = 0) -> int:
        self.last_name = name
        shape = self._shapes.get(name)
        if shape is None:
            raise CheckpointError(f"{self._where} lacks tensors: {name}")
        return shape[axis] if axis < len(shape) else 0

    def indices(self, prefix: str, inner: str = "") -> list[int]:
        """Sorted numbers n for which a tensor `prefix.n.inner…` exists."""
        self.last_name = f"{prefix}.*"
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
    talker, section = config.talker_config, f"{where}: talker_config."
    predictor, speaker = talker.code_predictor_config, config.speaker_encoder_config
    _check(talker, _talker_findings(talker, tensors), section, tensors)
    inner = f"{section}code_predictor_config."
    _check(predictor, _predictor_findings(predictor, tensors), inner, tensors)
    if speaker is not None:
        section = f"{where}: speaker_encoder_config."
        _check(speaker, _speaker_findings(speaker, tensors), section, tensors)
        if speaker.enc_dim != talker.hidden_size:
            raise CheckpointError(
                f"{section}enc_dim is {speaker.enc_dim}, and the hidden_size of the talker is "
                f"{talker.hidden_size}; they must be equal"
            )


def check_codec(config: CodecConfig, tensors: TensorShapes, where: str) -> None:
    """Raise `CheckpointError` for the first dimension that differs from the codec's tensors."""
    decoder, encoder = config.decoder_config, config.encoder_config
    _check(decoder, _decoder_findings(decoder, tensors), f"{where}: decoder_config.", tensors)
    _check(encoder, _encoder_findings(encoder, tensors), f"{where}: encoder_config.", tensors)
    _check(config, _rate_findings(config), f"{where}: ", tensors)


def _check(config: object, findings: Iterator[Finding], where: str, tensors: TensorShapes) -> None:
    tensors.last_name = ""
    for field, shown, *values in findings:
        value = values[0] if values else getattr(config, field)
        if value != shown:
            raise CheckpointError(
                f"{where}{field} is {reprlib.repr(value)}; the tensors show {reprlib.repr(shown)}"
                + (f" ({tensors.last_name})" if tensors.last_name else "")
            )


def _talker_findings(config: TalkerConfig, tensors: TensorShapes) -> Iterator[Finding]:
    yield "num_code_groups", _num_groups(tensors)
    yield from _stack_findings(config, tensors, "talker.model.layers")
    texts = "talker.model.text_embedding.weight"
    yield "text_vocab_size", tensors.size(texts)
    yield "text_hidden_size", tensors.size(texts, 1)
    yield "vocab_size", tensors.size("talker.codec_head.weight")


def _predictor_findings(config: PredictorConfig, tensors: TensorShapes) -> Iterator[Finding]:
    yield "num_code_groups", _num_groups(tensors)
    yield from _stack_findings(config, tensors, "talker.code_predictor.model.layers")
    yield "vocab_size", tensors.size("talker.code_predictor.lm_head.0.weight")


def _num_groups(tensors: TensorShapes) -> int:
    return 1 + tensors.count("talker.code_predictor.model.codec_embedding")


def _stack_findings(config: StackConfig, tensors: TensorShapes, layers: str) -> Iterator[Finding]:
    yield "num_hidden_layers", tensors.count(layers)
    if tensors.count(layers, "self_attn.qkv_proj"):
        yield from _quantized_findings(config, tensors, f"{layers}.0")
        return
    is_gated = tensors.count(layers, "mlp.gate_proj")
    inner = f"{layers}.0.mlp.{'gate_proj' if is_gated else 'fc1'}.weight"
    yield "intermediate_size", tensors.size(inner)
    yield "hidden_size", tensors.size(inner, 1)
    attention, width = f"{layers}.0.self_attn", config.head_dim
    if tensors.count(layers, "self_attn.q_norm"):
        yield "head_dim", tensors.size(f"{attention}.q_norm.weight")
    for field, name in (("num_attention_heads", "q_proj"), ("num_key_value_heads", "k_proj")):
        rows = tensors.size(f"{attention}.{name}.weight")
        yield f"{field} times head_dim", rows, getattr(config, field) * width


def _quantized_findings(
    config: StackConfig, tensors: TensorShapes, block: str
) -> Iterator[Finding]:
    yield "intermediate_size", tensors.size(f"{block}.mlp.gate_up_proj.weight") // 2
    yield "hidden_size", tensors.size(f"{block}.mlp.down_proj.weight")
    yield "head_dim", tensors.size(f"{block}.self_attn.q_norm.weight")
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    rows = tensors.size(f"{block}.self_attn.qkv_proj.weight")
    yield "num_attention_heads and num_key_value_heads", rows, heads * config.head_dim


def _speaker_findings(config: SpeakerEncoderConfig, tensors: TensorShapes) -> Iterator[Finding]:
    blocks = "speaker_encoder.blocks"
    middle = [f"{blocks}.{index}" for index in tensors.indices(blocks, "tdnn1")]
    ends = (f"{blocks}.0.conv.weight", "speaker_encoder.mfa.conv.weight")
    channels = [ends[0], *(f"{block}.tdnn1.conv.weight" for block in middle), ends[1]]
    cascade = [f"{block}.res2net_block.blocks" for block in middle]
    kernels = [ends[0], *(f"{block}.0.conv.weight" for block in cascade), ends[1]]
    yield "enc_channels", tuple(map(tensors.size, channels))
    yield "enc_kernel_sizes", tuple(tensors.size(name, 2) for name in kernels)
    yield "enc_dilations: its length", len(channels), len(config.enc_dilations)
    for block in cascade:
        yield "enc_res2net_scale", 1 + tensors.count(block)
    for block in middle:
        yield "enc_se_channels", tensors.size(f"{block}.se_block.conv1.weight")
    yield "enc_attention_channels", tensors.size("speaker_encoder.asp.tdnn.conv.weight")
    yield "mel_dim", tensors.size(ends[0], 1)
    yield "enc_dim", tensors.size("speaker_encoder.fc.weight")


def _decoder_findings(config: StackConfig, tensors: TensorShapes) -> Iterator[Finding]:
    first = "decoder.quantizer.rvq_first.vq.layers"
    num_first, num_rest = tensors.count(first), tensors.count(first.replace("first", "rest"))
    yield "num_semantic_quantizers", num_first
    yield "num_quantizers", num_first + num_rest
    yield "codebook_size", tensors.size(f"{first}.0._codebook.cluster_usage")
    yield from _stack_findings(config, tensors, "decoder.pre_transformer.layers")
    stages = [f"decoder.decoder.{i}" for i in tensors.indices("decoder.decoder", "block")]
    rates = [tensors.size(f"{stage}.block.1.conv.weight", 2) // 2 for stage in stages]
    yield "upsample_rates", tuple(rates)
    steps = [f"decoder.upsample.{i}" for i in tensors.indices("decoder.upsample")]
    yield "upsampling_ratios", tuple(tensors.size(f"{step}.0.conv.weight", 2) for step in steps)
    yield "decoder_dim", tensors.size("decoder.decoder.0.conv.weight")
    yield "latent_dim", tensors.size("decoder.pre_conv.conv.weight")
    yield "codebook_dim", tensors.size("decoder.pre_conv.conv.weight", 1)


def _rate_findings(config: CodecConfig) -> Iterator[Finding]:
    """Samples per frame, from ratios that were checked against the tensors."""
    decoder, encoder = config.decoder_config, config.encoder_config
    made = math.prod((*decoder.upsample_rates, *decoder.upsampling_ratios))
    yield "decode_upsample_rate", made
    yield "encode_downsample_rate", DOWNSAMPLE_STRIDE * math.prod(encoder.upsampling_ratios)


def _encoder_findings(config: CodecEncoderConfig, tensors: TensorShapes) -> Iterator[Finding]:
    first = "encoder.quantizer.semantic_residual_vector_quantizer.layers"
    num_first, num_rest = tensors.count(first), tensors.count(first.replace("semantic", "acoustic"))
    yield "num_semantic_quantizers", num_first
    yield "num_quantizers", num_first + num_rest
    yield "codebook_size", tensors.size(f"{first}.0.codebook.embed_sum")
    width = tensors.size(f"{first}.0.codebook.embed_sum", 1)
    yield "vector_quantization_hidden_dimension", width
    yield from _stack_findings(config, tensors, "encoder.encoder_transformer.layers")
    yield from _convolution_findings(config, tensors)


def _convolution_findings(config: CodecEncoderConfig, tensors: TensorShapes) -> Iterator[Finding]:
    """A convolution, then for each ratio some residual blocks and a strided one, then a last."""
    layers = "encoder.encoder.layers"
    plain = [f"{layers}.{index}.conv.weight" for index in tensors.indices(layers, "conv")]
    blocks = [f"{layers}.{index}.block" for index in tensors.indices(layers, "block")]
    strides = [tensors.size(name, 2) // 2 for name in plain[1:-1]]
    yield "upsampling_ratios", tuple(reversed(strides))
    yield "num_residual_layers", len(blocks) // max(1, len(strides))
    first, last = f"{layers}.0.conv.weight", plain[-1] if plain else f"{layers}.conv.weight"
    yield "num_filters", tensors.size(first)
    yield "audio_channels", tensors.size(first, 1)
    yield "kernel_size", tensors.size(first, 2)
    yield "last_kernel_size", tensors.size(last, 2)
    for block in blocks[:1]:
        yield "compress", config.num_filters // max(1, tensors.size(f"{block}.1.conv.weight"))
        yield "residual_kernel_size", tensors.size(f"{block}.1.conv.weight", 2)
