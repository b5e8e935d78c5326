"""On the meta device, every released checkpoint has the published tensors and parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.project import ROOT, load_script
from vivace.model.codec import Codec
from vivace.model.config_file import parse_codec_config, parse_model_config
from vivace.model.talker import Qwen3TTS

released = load_script(ROOT / "benchmarks" / "released.py")
RELEASED_MODELS, RELEASED_CODEC = released.RELEASED_MODELS, released.RELEASED_CODEC
released_config = released.released_config


def build(kind: type[nn.Module], config: Any) -> nn.Module:
    with torch.device("meta"):
        return kind(config)


def count(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.state_dict().values())


@pytest.mark.parametrize("name", RELEASED_MODELS)
def test_released_model_has_published_size(name: str) -> None:
    facts = RELEASED_MODELS[name]
    model = build(Qwen3TTS, parse_model_config(released_config(name)))
    assert len(model.state_dict()) == facts.num_tensors
    assert count(model) == facts.num_parameters


@pytest.mark.parametrize(
    ("name", "part", "size"),
    [
        ("0.6B-CustomVoice", "talker.model.layers", 440_466_432),
        ("1.7B-CustomVoice", "talker.model.layers", 1_409_408_000),
        ("0.6B-CustomVoice", "talker.model.text_embedding", 311_164_928),
        ("0.6B-CustomVoice", "talker.text_projection", 6_294_528),
        ("1.7B-CustomVoice", "talker.text_projection", 8_392_704),
        ("0.6B-CustomVoice", "talker.codec_head", 3_145_728),
        ("1.7B-CustomVoice", "talker.code_predictor.lm_head", 31_457_280),
        ("0.6B-CustomVoice", "talker.code_predictor.small_to_mtp_projection", 0),
        ("1.7B-CustomVoice", "talker.code_predictor.small_to_mtp_projection", 2_098_176),
        ("0.6B-CustomVoice", "talker.code_predictor.model.codec_embedding", 31_457_280),
        ("1.7B-CustomVoice", "talker.code_predictor.model.codec_embedding", 62_914_560),
        ("0.6B-Base", "speaker_encoder", 8_854_336),
        ("1.7B-Base", "speaker_encoder", 12_001_088),
    ],
)
def test_released_model_part_has_published_size(name: str, part: str, size: int) -> None:
    model = build(Qwen3TTS, parse_model_config(released_config(name)))
    assert count(model.get_submodule(part)) == size


@pytest.mark.parametrize(
    ("part", "size"),
    [
        ("", 170_557_441),
        ("decoder", 114_323_137),
        ("decoder.quantizer", 8_945_664),
        ("decoder.pre_conv", 1_573_888),
        ("decoder.pre_transformer", 30_427_136),
        ("decoder.upsample", 21_006_336),
        ("decoder.decoder", 52_370_113),
        ("encoder", 56_234_304),
        ("encoder.encoder", 12_628_256),
        ("encoder.encoder_transformer", 25_190_400),
        ("encoder.downsample", 1_048_576),
        ("encoder.quantizer", 17_367_072),
    ],
)
def test_codec_has_published_sizes(part: str, size: int) -> None:
    codec = build(Codec, parse_codec_config(RELEASED_CODEC))
    assert count(codec.get_submodule(part)) == size


def test_codec_has_published_tensors() -> None:
    codec = build(Codec, parse_codec_config(RELEASED_CODEC))
    names = set(codec.state_dict())
    assert len(names) == 496
    assert len([name for name in names if name.startswith("decoder.")]) == 271
    assert names >= PUBLISHED_CODEC_NAMES


def test_models_have_published_names_and_shapes() -> None:
    for name in RELEASED_MODELS:
        config = parse_model_config(released_config(name))
        shapes = {k: tuple(v.shape) for k, v in build(Qwen3TTS, config).state_dict().items()}
        width = config.talker_config.hidden_size
        for key, shape in published_shapes(width, config.talker_config.intermediate_size).items():
            assert shapes[key] == shape, (name, key)


def published_shapes(width: int, inner: int) -> dict[str, tuple[int, ...]]:
    """Published tensor names and shapes."""
    layer = "talker.model.layers.27."
    small = "talker.code_predictor.model.layers.4."
    return {
        "talker.model.text_embedding.weight": (151936, 2048),
        "talker.model.codec_embedding.weight": (3072, width),
        "talker.text_projection.linear_fc1.weight": (2048, 2048),
        "talker.text_projection.linear_fc1.bias": (2048,),
        "talker.text_projection.linear_fc2.weight": (width, 2048),
        f"{layer}input_layernorm.weight": (width,),
        f"{layer}self_attn.q_proj.weight": (2048, width),
        f"{layer}self_attn.k_proj.weight": (1024, width),
        f"{layer}self_attn.v_proj.weight": (1024, width),
        f"{layer}self_attn.o_proj.weight": (width, 2048),
        f"{layer}self_attn.q_norm.weight": (128,),
        f"{layer}mlp.gate_proj.weight": (inner, width),
        f"{layer}mlp.down_proj.weight": (width, inner),
        "talker.model.norm.weight": (width,),
        "talker.codec_head.weight": (3072, width),
        "talker.code_predictor.model.codec_embedding.14.weight": (2048, width),
        f"{small}mlp.up_proj.weight": (3072, 1024),
        "talker.code_predictor.lm_head.14.weight": (2048, 1024),
    }


PUBLISHED_CODEC_NAMES = {
    "decoder.quantizer.rvq_first.vq.layers.0._codebook.embedding_sum",
    "decoder.quantizer.rvq_rest.vq.layers.14._codebook.cluster_usage",
    "decoder.quantizer.rvq_rest.input_proj.weight",
    "decoder.pre_conv.conv.bias",
    "decoder.pre_transformer.layers.7.self_attn_layer_scale.scale",
    "decoder.upsample.1.1.dwconv.conv.weight",
    "decoder.upsample.0.0.conv.bias",
    "decoder.decoder.4.block.4.act2.beta",
    "decoder.decoder.1.block.1.conv.weight",
    "decoder.decoder.5.alpha",
    "decoder.decoder.6.conv.bias",
    "encoder.encoder.layers.14.conv.weight",
    "encoder.encoder.layers.10.block.3.conv.bias",
    "encoder.encoder_transformer.layers.7.mlp.fc2.weight",
    "encoder.downsample.conv.weight",
    "encoder.quantizer.acoustic_residual_vector_quantizer.layers.30.codebook.initialized",
    "encoder.quantizer.semantic_residual_vector_quantizer.layers.0.codebook.embed_sum",
}
