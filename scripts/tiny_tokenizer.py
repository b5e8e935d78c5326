"""The tokenizer of tiny checkpoints: a few merges of Qwen2's kind, and all of its added tokens."""

from __future__ import annotations

from typing import Any

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


def tokenizer_config() -> dict[str, Any]:
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
