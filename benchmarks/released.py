"""The configurations of the released checkpoints, whose shapes benchmarks use without weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
}
DIALECTS = {"beijing_dialect": 2074, "sichuan_dialect": 2062}
SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
SPEAKER_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
CODEC_IDS = {
    "codec_pad_id": 2148,
    "codec_bos_id": 2149,
    "codec_eos_token_id": 2150,
    "codec_think_id": 2154,
    "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
}


@dataclass(frozen=True)
class ReleasedModel:
    """Published facts of one checkpoint."""

    model_type: str
    size: str
    num_tensors: int
    num_parameters: int


RELEASED_MODELS = {
    "0.6B-Base": ReleasedModel("base", "0b6", 478, 914_643_008),
    "0.6B-CustomVoice": ReleasedModel("custom_voice", "0b6", 402, 905_788_672),
    "1.7B-Base": ReleasedModel("base", "1b7", 480, 1_928_677_440),
    "1.7B-CustomVoice": ReleasedModel("custom_voice", "1b7", 404, 1_916_676_352),
    "1.7B-VoiceDesign": ReleasedModel("voice_design", "1b7", 404, 1_916_676_352),
}


def is_released(model: str) -> bool:
    """Whether `model` names a released shape; `:half` may follow the name."""
    return model.partition(":")[0] in RELEASED_MODELS


def released_config(name: str) -> dict[str, Any]:
    """config.json of a released checkpoint, by the last part of its name."""
    facts = RELEASED_MODELS[name]
    width, inner = {"0b6": (1024, 3072), "1b7": (2048, 6144)}[facts.size]
    is_custom = facts.model_type == "custom_voice"
    config: dict[str, Any] = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": facts.size,
        "tts_model_type": facts.model_type,
        "assistant_token_id": 77091,
        "im_start_token_id": 151644,
        "im_end_token_id": 151645,
        "tts_pad_token_id": 151671,
        "tts_bos_token_id": 151672,
        "tts_eos_token_id": 151673,
        "talker_config": {
            **_transformer(width, inner, num_layers=28),
            "vocab_size": 3072,
            "text_vocab_size": 151936,
            "text_hidden_size": 2048,
            "num_code_groups": 16,
            "rope_scaling": {
                "interleaved": True,
                "mrope_section": [24, 20, 20],
                "rope_type": "default",
                "type": "default",
            },
            "max_position_embeddings": 32768,
            **CODEC_IDS,
            "codec_language_id": {**LANGUAGES, **(DIALECTS if is_custom else {})},
            "spk_id": SPEAKERS if is_custom else {},
            "spk_is_dialect": {
                name: SPEAKER_DIALECTS.get(name, False) for name in SPEAKERS if is_custom
            },
            "code_predictor_config": {
                **_transformer(1024, 3072, num_layers=5),
                "vocab_size": 2048,
                "num_code_groups": 16,
                "rope_scaling": None,
                "max_position_embeddings": 65536,
                "layer_types": ["full_attention"] * 5,
            },
        },
    }
    if facts.model_type == "base":
        config["speaker_encoder_config"] = {"enc_dim": width, "sample_rate": 24000}
    return config


def _transformer(width: int, inner: int, num_layers: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "attention_bias": False,
        "attention_dropout": 0,
        "use_sliding_window": False,
        "sliding_window": None,
    }


RELEASED_CODEC: dict[str, Any] = {
    "model_type": "qwen3_tts_tokenizer_12hz",
    "encoder_valid_num_quantizers": 16,
    "input_sample_rate": 24000,
    "output_sample_rate": 24000,
    "decode_upsample_rate": 1920,
    "encode_downsample_rate": 1920,
    "decoder_config": {
        "latent_dim": 1024,
        "codebook_dim": 512,
        "codebook_size": 2048,
        "decoder_dim": 1536,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "head_dim": 64,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_hidden_layers": 8,
        "sliding_window": 72,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000,
        "max_position_embeddings": 8000,
        "hidden_act": "silu",
        "layer_scale_initial_scale": 0.01,
        "num_quantizers": 16,
        "num_semantic_quantizers": 1,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
    },
    "encoder_config": {
        "audio_channels": 1,
        "num_filters": 64,
        "kernel_size": 7,
        "last_kernel_size": 3,
        "residual_kernel_size": 3,
        "num_residual_layers": 1,
        "dilation_growth_rate": 2,
        "compress": 2,
        "upsampling_ratios": [8, 6, 5, 4],
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "norm_eps": 1e-5,
        "rope_theta": 10000,
        "codebook_size": 2048,
        "codebook_dim": 256,
        "vector_quantization_hidden_dimension": 256,
        "num_quantizers": 32,
        "num_semantic_quantizers": 1,
    },
}
