"""The released vocabulary without a download, and a reference tokenizer.

The `dashscope` wheel carries Qwen's byte-pair ranks. The vocab.json and merges.txt that are derived
from them here are byte for byte the released ones: a test checks their SHA-256.
"""

from __future__ import annotations

import base64
import importlib.metadata
import itertools
import json
from pathlib import Path

import tiktoken

Ranks = dict[bytes, int]

# Copies of the two patterns, on purpose: as transformers 4.57.3 has them.
QWEN2_REGEX = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""  # noqa: E501
MISTRAL_REGEX = r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""  # noqa: E501

_ADDED_TOKENS = (
    *(f"<|{name}|>" for name in ("endoftext", "im_start", "im_end")),
    *(f"<|{name}_{end}|>" for name in ("object_ref", "box", "quad") for end in ("start", "end")),
    *(f"<|{name}|>" for name in ("vision_start", "vision_end", "vision_pad")),
    *("<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>"),
    *(f"<|fim_{part}|>" for part in ("prefix", "middle", "suffix", "pad")),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>"),
    *("<tts_text_eod>", "<tts_text_bos_single>", "<|audio_pad|>"),
)
ADDED_IDS = {token: token_id for token_id, token in enumerate(_ADDED_TOKENS, start=151_643)}


def read_ranks() -> Ranks:
    """Each token's bytes and its id; dashscope itself is not imported, which would be slow."""
    wheel = importlib.metadata.distribution("dashscope")
    path = Path(str(wheel.locate_file("dashscope/resources/qwen.tiktoken")))
    lines = (line.split() for line in path.read_bytes().splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def reference_encoding(ranks: Ranks, *, split_camel_case: bool) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        "reference",
        pat_str=MISTRAL_REGEX if split_camel_case else QWEN2_REGEX,
        mergeable_ranks=ranks,
        special_tokens=ADDED_IDS,
    )


def write_tokenizer(folder: Path, ranks: Ranks) -> None:
    """The three files of a released checkpoint that the tokenizer reads."""
    vocab = {symbols(token): rank for token, rank in ranks.items()}
    merges = (last_merge(token, ranks) for token in ranks if len(token) > 1)
    lines = "".join(f"{symbols(left)} {symbols(right)}\n" for left, right in merges)
    (folder / "vocab.json").write_bytes(compact_json(vocab))
    (folder / "merges.txt").write_bytes(lines.encode())
    (folder / "tokenizer_config.json").write_bytes(compact_json(tokenizer_config(ADDED_IDS)))


def last_merge(token: bytes, ranks: Ranks) -> tuple[bytes, bytes]:
    """The last merge of a token: its bytes merged with all lower-ranked pairs."""
    limit = ranks[token]
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pair_ranks = [ranks.get(a + b, limit) for a, b in itertools.pairwise(parts)]
        lowest = min(pair_ranks)
        assert lowest < limit, f"no merge leads to {token!r}"
        at = pair_ranks.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    left, right = parts
    return left, right


def symbols(token: bytes) -> str:
    """GPT-2's byte symbols: printable bytes map to themselves, the others to U+0100 onwards."""
    return token.decode("latin-1").translate(_SYMBOLS)


def tokenizer_config(added_tokens: dict[str, int]) -> dict[str, object]:
    decoder = {str(token_id): {"content": token} for token, token_id in added_tokens.items()}
    return {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": decoder}


def compact_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_SYMBOLS = {byte: 0x100 + place for place, byte in enumerate(_OTHERS)}
