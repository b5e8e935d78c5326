"""The files beside the weights of a checkpoint, in the layout of the released ones.

They are those of the embedded voice and of the tiny checkpoints of `scripts/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = dict[str, Any]

ADDED_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>",
    "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
    "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
    "<tts_text_bos_single>", "<|audio_pad|>",
]  # fmt: skip
PLAIN_ADDED_TOKENS = ADDED_TOKENS[14:26]  # "special" is false for these

TEXT_PREPROCESSOR_CONFIG: Config = {
    "padding_side": "left",
    "padding_value": 0.0,
    "processor_class": "Qwen3TTSProcessor",
    "return_attention_mask": True,
}
AUDIO_PREPROCESSOR_CONFIG: Config = {
    "chunk_length_s": None,
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "overlap": None,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 24000,
}
MODELSCOPE_CONFIG: Config = {
    "framework": "pytorch",
    "task": "feature-extraction",
    "allow_remote": True,
}


def tokenizer_config(first_added_id: int) -> Config:
    """`tokenizer_config.json`; the added tokens follow the vocabulary."""
    added = {
        str(token_id): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token not in PLAIN_ADDED_TOKENS,
        }
        for token_id, token in enumerate(ADDED_TOKENS, first_added_id)
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": [
            token for token in ADDED_TOKENS[1:] if token not in PLAIN_ADDED_TOKENS
        ],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def codec_config(
    decoder: Mapping[str, Any], encoder: Mapping[str, Any], *, encoder_delay: int = 0
) -> Config:
    """`speech_tokenizer/config.json`; the mappings have the dimensions of decoder and encoder."""
    semantic_size = decoder.get("semantic_codebook_size", decoder["codebook_size"])
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": decoder["num_quantizers"],
        **({"encoder_delay": encoder_delay} if encoder_delay else {}),
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decode_upsample_rate": 1920,
        "encode_downsample_rate": 1920,
        "decoder_config": {
            **decoder,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "layer_scale_initial_scale": 0.01,
            "max_position_embeddings": 8000,
            "semantic_codebook_size": semantic_size,
            "vector_quantization_hidden_dimension": decoder["codebook_dim"],
        },
        "encoder_config": _encoder_config(decoder, encoder),
        "transformers_version": "4.57.3",
    }


def _encoder_config(decoder: Mapping[str, Any], encoder: Mapping[str, Any]) -> Config:
    width = decoder["codebook_dim"] // 2
    return {
        "_frame_rate": 12.5,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "audio_channels": 1,
        "codebook_dim": width,
        "codebook_size": decoder["codebook_size"],
        "compress": 2,
        "dilation_growth_rate": 2,
        "dtype": "float32",
        "hidden_act": "gelu",
        "initializer_range": 0.02,
        "kernel_size": 7,
        "last_kernel_size": 3,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "norm_eps": 1e-05,
        "normalize": False,
        "num_key_value_heads": encoder["num_attention_heads"],
        "num_quantizers": decoder["num_quantizers"],
        "num_residual_layers": 1,
        "num_semantic_quantizers": 1,
        "pad_mode": "constant",
        "residual_kernel_size": 3,
        "rope_theta": 10000.0,
        "sampling_rate": 24000,
        "sliding_window": 250,
        "trim_right_ratio": 1.0,
        "upsample_groups": encoder["hidden_size"],
        "upsampling_ratios": [8, 6, 5, 4],
        "use_cache": False,
        "use_causal_conv": True,
        "use_conv_shortcut": False,
        "use_streaming": False,
        "vector_quantization_hidden_dimension": width,
        **encoder,
    }
