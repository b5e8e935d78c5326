"""The vocabulary of tiny checkpoints: the bytes and a few merges of Qwen2's kind."""

from __future__ import annotations

# Left to right, each name grows by one symbol: "as", "ass", ... "assistant". Some pairs would join
# what the pre-tokenizer splits ("1 2", "n '"), so that a wrong pattern shows in the ids.
MERGED_WORDS = ["assistant", "user", "the", "ing", " the", " a", "'s", "'t", "..", "!!"]
MERGED_WORDS += ["\n\n", "  ", "12", "n'", ".\n", "AI", "é", "你好", "世界", "ский"]


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
