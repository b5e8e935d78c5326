"""The configurations of tiny checkpoints, in the layout of the released ones."""

from __future__ import annotations

import sys
from pathlib import Path

from tiny_tokenizer import first_added_id, make_vocab

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from released import CODEC_IDS, DIALECTS, LANGUAGES, SPEAKER_DIALECTS, SPEAKERS

from recipes.mini_voice.released_layout import ADDED_TOKENS, Config, codec_config

CODEBOOK_SIZE = 64
NUM_CODEBOOKS = 16
CODEC_VOCAB_SIZE = CODEBOOK_SIZE + 1024  # the official code bans the last 1024 ids, save one
RELEASED_SHIFT = 2048 - CODEBOOK_SIZE  # released ids above the codes, moved down into 64..1087
TEXT_VOCAB_SIZE = 384  # a few rows more than there are ids, as released
EOS_ID = CODEC_IDS["codec_eos_token_id"] - RELEASED_SHIFT


def model_config(model_type: str, model_size: str) -> Config:
    ids = {token: token_id for token_id, token in enumerate(ADDED_TOKENS, first_added_id())}
    config: Config = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "assistant_token_id": make_vocab()["assistant"],
        "im_end_token_id": ids["<|im_end|>"],
        "im_start_token_id": ids["<|im_start|>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": model_size,
        "tts_model_type": model_type,
        "talker_config": talker_config(model_type, model_size),
        "transformers_version": "4.57.3",
    }
    if model_type == "base":
        config["speaker_encoder_config"] = {
            "enc_dim": config["talker_config"]["hidden_size"],
            "sample_rate": 24000,
            "mel_dim": 128,
            "enc_channels": [16, 16, 16, 16, 48],
            "enc_attention_channels": 8,
            "enc_res2net_scale": 8,
            "enc_se_channels": 8,
        }
    return config


def talker_config(model_type: str, model_size: str) -> Config:
    """Hidden sizes are 1/32 of the released ones, so attention is wider than a 0b6's hidden."""
    has_speakers = model_type == "custom_voice"
    hidden_size = {"0b6": 32, "1b7": 64}[model_size]
    return {
        "attention_bias": False,
        "attention_dropout": 0,
        "code_predictor_config": CODE_PREDICTOR_CONFIG,
        **shift_down(CODEC_IDS),
        "codec_language_id": shift_down(LANGUAGES | (DIALECTS if has_speakers else {})),
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": 3 * hidden_size,
        "max_position_embeddings": 32768,
        "model_type": "qwen3_tts_talker",
        "num_attention_heads": 4,
        "num_code_groups": NUM_CODEBOOKS,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "position_id_per_seconds": 13,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": [4, 2, 2],
            "rope_type": "default",
            "type": "default",
        },
        "rope_theta": 1000000,
        "sliding_window": None,
        "spk_id": shift_down(SPEAKERS) if has_speakers else {},
        "spk_is_dialect": (
            {name: SPEAKER_DIALECTS.get(name, False) for name in SPEAKERS} if has_speakers else {}
        ),
        "text_hidden_size": 64,
        "text_vocab_size": TEXT_VOCAB_SIZE,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": CODEC_VOCAB_SIZE,
    }


def shift_down(ids: dict[str, int]) -> dict[str, int]:
    return {name: token_id - RELEASED_SHIFT for name, token_id in ids.items()}


CODE_PREDICTOR_CONFIG: Config = {
    "attention_bias": False,
    "attention_dropout": 0,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 65536,
    "max_window_layers": 28,
    "model_type": "qwen3_tts_talker_code_predictor",
    "num_attention_heads": 4,
    "num_code_groups": NUM_CODEBOOKS,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": CODEBOOK_SIZE,
}

CODEC_CONFIG = codec_config(
    decoder={
        "latent_dim": 32,
        "codebook_dim": 32,
        "codebook_size": CODEBOOK_SIZE,
        "decoder_dim": 32,
        "hidden_size": 24,
        "intermediate_size": 64,
        "head_dim": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_quantizers": NUM_CODEBOOKS,
        "num_semantic_quantizers": 1,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "semantic_codebook_size": 2 * CODEBOOK_SIZE,
        "sliding_window": 72,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
    },
    encoder={
        "head_dim": 16,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_filters": 4,
        "num_hidden_layers": 2,
        "num_quantizers": 32,
    },
)

GENERATION_CONFIG: Config = {
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}
