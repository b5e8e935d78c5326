"""Write tiny checkpoints with random weights in the layout of the released ones.

    python scripts/make_tiny_checkpoints.py tiny

Five folders of about 1 MB, for tests and for golden values of the official package. Proportions are
those of the 0.6B and 1.7B models; names and shapes come from the classes of Vivace. Every number is
drawn from integers seeded by the name of its tensor, so all machines write the same files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vivace.model.codec import Codec
from vivace.model.config_file import parse_codec_config, parse_model_config
from vivace.model.talker import Qwen3TTS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from released import CODEC_IDS, DIALECTS, LANGUAGES, SPEAKER_DIALECTS, SPEAKERS

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]

CHECKPOINTS = {  # folder: (tts_model_type, tts_model_size, seed); 1b7 has a projection
    "custom_voice": ("custom_voice", "0b6", 0),
    "custom_voice_projected": ("custom_voice", "1b7", 1),
    "voice_design": ("voice_design", "1b7", 23),
    "base": ("base", "0b6", 12),
    "base_projected": ("base", "1b7", 32),
}
CODEC_SEED = 1000  # one codec for all folders, as released

CODEBOOK_SIZE = 64
NUM_CODEBOOKS = 16
CODEC_VOCAB_SIZE = CODEBOOK_SIZE + 1024  # the official code bans the last 1024 ids, save one
RELEASED_SHIFT = 2048 - CODEBOOK_SIZE  # released ids above the codes, moved down into 64..1087


# Left to right, each name grows by one symbol: "as", "ass", ... "assistant". Some pairs would join
# what the pre-tokenizer splits ("1 2", "n '"), so that a wrong pattern shows in the ids.
MERGED_WORDS = ["assistant", "user", "the", "ing", " the", " a", "'s", "'t", "..", "!!"]
MERGED_WORDS += ["\n\n", "  ", "12", "n'", ".\n", "AI", "é", "你好", "世界", "ский"]
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
TEXT_VOCAB_SIZE = 384  # a few rows more than there are ids, as released


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="the output folder")
    output = parser.parse_args().output
    for name in CHECKPOINTS:
        make_checkpoint(output / name)
        size = sum(path.stat().st_size for path in (output / name).rglob("*.*"))
        print(f"{output / name}: {size / 1e6:.2f} MB, weights {fingerprint(output / name)}")


def make_checkpoint(folder: Path) -> None:
    """Write the checkpoint that `folder` is named after."""
    model_type, model_size, seed = CHECKPOINTS[folder.name]
    codec = folder / "speech_tokenizer"
    codec.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    write_json(folder / "config.json", model_config(model_type, model_size))
    write_json(folder / "generation_config.json", GENERATION_CONFIG)
    write_json(folder / "preprocessor_config.json", TEXT_PREPROCESSOR_CONFIG)
    write_json(codec / "config.json", CODEC_CONFIG)
    write_json(codec / "preprocessor_config.json", AUDIO_PREPROCESSOR_CONFIG)
    write_json(codec / "configuration.json", MODELSCOPE_CONFIG)

    weights = make_weights(seed, tensor_shapes(model_config(model_type, model_size)))
    eos = CODEC_IDS["codec_eos_token_id"] - RELEASED_SHIFT
    weights["talker.codec_head.weight"][eos] *= 0.85  # about one greedy utterance in five ends
    halves = {name: tensor.bfloat16() for name, tensor in weights.items()}
    save_file(halves, folder / "model.safetensors", {"format": "pt"})
    codec_weights = make_weights(CODEC_SEED, tensor_shapes(CODEC_CONFIG))
    save_file(codec_weights, codec / "model.safetensors", {"format": "pt"})


def fingerprint(folder: Path) -> str:
    """A digest of all names and numbers in a checkpoint, independent of the file layout."""
    digest = hashlib.sha256()
    for path in (folder / "model.safetensors", folder / "speech_tokenizer" / "model.safetensors"):
        for name, tensor in sorted(load_file(path).items()):
            digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


# --- Names and shapes -------------------------------------------------------------------------


def tensor_shapes(config: Config) -> Shapes:
    """The tensors of the checkpoint, talker or codec, that this config.json belongs to."""
    with torch.device("meta"):
        model: nn.Module
        if config["model_type"] == "qwen3_tts":
            model = Qwen3TTS(parse_model_config(config))
        else:
            model = Codec(parse_codec_config(config))
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


# --- Weights ----------------------------------------------------------------------------------


def make_weights(seed: int, shapes: Shapes) -> dict[str, Tensor]:
    return {name: make_tensor(seed, name, shape) for name, shape in shapes.items()}


def make_tensor(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Numbers for one tensor, scaled so that signals neither vanish nor overflow."""
    noise = draw_noise(seed, name, shape)
    leaf = name.rpartition(".")[2]
    if leaf == "initialized":
        return torch.ones(shape)
    if leaf == "cluster_usage":
        return 1 + noise.abs()
    if leaf in ("embedding_sum", "embed_sum"):
        usage = make_tensor(seed, name.replace(leaf, "cluster_usage"), shape[:1])
        return gain(name) * usage[:, None] * noise
    if leaf in ("scale", "gamma"):
        return 0.3 + 0.05 * noise
    if leaf in ("alpha", "beta"):
        return 0.3 * noise
    if leaf == "bias":
        return 0.05 * noise
    if re.search(r"norm\.weight$", name):
        return 1 + 0.1 * noise
    return gain(name) / math.sqrt(fan_in(name, shape)) * noise


GAINS = [  # factors of weights; the first matching pattern applies
    (r"codec_head|\.lm_head\.", 2.0),  # large margins, so that rounding changes no choice
    (r"code_predictor\.model\.codec_embedding", 0.3),  # 15 are added to one code and one text
    (r"^decoder\.decoder\.6\.", 0.1),  # audible, rarely clipped
    (r"^decoder\.decoder\.\d\.block\.\d\.conv2", 0.3),  # bounds the sum of residuals
    (r"^encoder\.encoder\.layers", 1.4),  # compensates for ELU
    (r"^encoder\.quantizer.*embed_sum", 0.8),
]


def gain(name: str) -> float:
    return next((factor for pattern, factor in GAINS if re.search(pattern, name)), 1.0)


def fan_in(name: str, shape: tuple[int, ...]) -> int:
    """The number of inputs that are summed into one output."""
    if "embedding" in name:
        return 1
    if re.match(r"decoder\.upsample\.\d\.0\.conv", name):  # transposed, stride = kernel
        return shape[0]
    if re.match(r"decoder\.decoder\.\d\.block\.1\.conv", name):  # transposed, stride = kernel / 2
        return shape[0] * 2
    return math.prod(shape[1:])


def draw_noise(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Nearly normal numbers, mean 0 and variance 1: sums of four integers, equal on any machine."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    total = torch.randint(0, 2**16, (4, *shape), generator=generator).sum(0)
    return (total - 2 * (2**16 - 1)) / (2**16 / math.sqrt(3))


# --- Configuration ----------------------------------------------------------------------------


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

CODEC_CONFIG: Config = {
    "architectures": ["Qwen3TTSTokenizerV2Model"],
    "model_type": "qwen3_tts_tokenizer_12hz",
    "encoder_valid_num_quantizers": NUM_CODEBOOKS,
    "input_sample_rate": 24000,
    "output_sample_rate": 24000,
    "decode_upsample_rate": 1920,
    "encode_downsample_rate": 1920,
    "decoder_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "latent_dim": 32,
        "codebook_dim": 32,
        "codebook_size": CODEBOOK_SIZE,
        "decoder_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 24,
        "intermediate_size": 64,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
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
        "vector_quantization_hidden_dimension": 32,
    },
    "encoder_config": {
        "_frame_rate": 12.5,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "audio_channels": 1,
        "codebook_dim": 16,
        "codebook_size": CODEBOOK_SIZE,
        "compress": 2,
        "dilation_growth_rate": 2,
        "dtype": "float32",
        "head_dim": 16,
        "hidden_act": "gelu",
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 64,
        "kernel_size": 7,
        "last_kernel_size": 3,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "norm_eps": 1e-05,
        "normalize": False,
        "num_attention_heads": 2,
        "num_filters": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_quantizers": 32,
        "num_residual_layers": 1,
        "num_semantic_quantizers": 1,
        "pad_mode": "constant",
        "residual_kernel_size": 3,
        "rope_theta": 10000.0,
        "sampling_rate": 24000,
        "sliding_window": 250,
        "trim_right_ratio": 1.0,
        "upsample_groups": 32,
        "upsampling_ratios": [8, 6, 5, 4],
        "use_cache": False,
        "use_causal_conv": True,
        "use_conv_shortcut": False,
        "use_streaming": False,
        "vector_quantization_hidden_dimension": 16,
    },
    "transformers_version": "4.57.3",
}

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


# --- Text tokenizer ---------------------------------------------------------------------------


def write_tokenizer(folder: Path) -> None:
    write_json(folder / "vocab.json", make_vocab())
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in make_merges())]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", tokenizer_config())


def byte_symbols() -> list[str]:
    """The letter that stands for each byte, by byte; its place in the vocabulary is GPT-2's."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256)]


def make_merges() -> list[tuple[str, str]]:
    symbols = byte_symbols()
    merges: dict[tuple[str, str], None] = {}  # in order, each once
    for word in MERGED_WORDS:
        letters = [symbols[byte] for byte in word.encode()]
        for end in range(1, len(letters)):
            merges["".join(letters[:end]), letters[end]] = None
    return list(merges)


def make_vocab() -> dict[str, int]:
    bytes_in_order = sorted(byte_symbols())  # visible ones first: newline is 198, as released
    tokens = [*bytes_in_order, *(left + right for left, right in make_merges())]
    return {token: token_id for token_id, token in enumerate(tokens)}


def first_added_id() -> int:
    return len(make_vocab())


def tokenizer_config() -> Config:
    added = {
        str(token_id): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token not in PLAIN_ADDED_TOKENS,
        }
        for token_id, token in enumerate(ADDED_TOKENS, first_added_id())
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


def write_json(path: Path, value: Config) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
