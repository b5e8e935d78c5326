"""The byte-level BPE tokenizer of a checkpoint's vocab.json and merges.txt.

The name of a special token inside a text is ordinary text. Prompts are built from ids elsewhere.
The decisions are explained in docs/text.md.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, cast, get_args

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from vivace.checkpoint_files import read_json, read_text
from vivace.errors import CheckpointError, RequestError, TextError

Role = Literal["assistant", "user"]

ADDED_ID = re.compile(r"[0-9]{1,9}")

MAX_KNOWN_WORDS = 2**14
MAX_KNOWN_CHARS = 32  # longer words are not cached
MAX_STRANDED = 0.01  # share of tokens without a merge; the released vocabulary has 96

# Candidates for tokens: contractions, words, single digits, punctuation, line ends, spaces.
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
# `QWEN2_PATTERN` for ASCII text, which NFC does not change.
_ASCII_WORD = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\nA-Za-z0-9]?[A-Za-z]+"
    r"|[0-9]"
    r"| ?[^\sA-Za-z0-9]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+",
    re.ASCII,
)
# The pattern that transformers 4.57.3 uses for a local folder with fix_mistral_regex.
CAMEL_CASE_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


class KnownWords:
    """Caches the ids of words of ASCII texts.

    Threads may share it: a word that one thread drops is tokenized again.
    """

    def __init__(self) -> None:
        self._ids: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def encode(self, text: str) -> list[int] | None:
        """The ids of a text; None if a word is not cached."""
        if not text.isascii():
            return None
        known = self._ids
        try:
            return [token_id for word in _ASCII_WORD.findall(text) for token_id in known[word]]
        except KeyError:
            return None

    def learn(self, text: str, ids: Sequence[int], word_of: Sequence[int | None]) -> None:
        """Add the words of a text; `word_of` is the index of each id's word."""
        if not text.isascii():
            return
        words = _ASCII_WORD.findall(text)
        found: list[list[int]] = [[] for _ in words]
        for token_id, number in zip(ids, word_of, strict=True):
            assert number is not None  # only added tokens belong to no word
            found[number].append(token_id)
        if len(self._ids) + len(words) > MAX_KNOWN_WORDS:
            self._ids.clear()
        for word, own in zip(words[:MAX_KNOWN_WORDS], found, strict=False):
            if len(word) <= MAX_KNOWN_CHARS:
                self._ids[word] = tuple(own)


class TextTokenizer:
    """Converts text to ids and back; threads may share a tokenizer."""

    def __init__(
        self,
        vocab: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        added_tokens: Mapping[str, int],
        *,
        split_camel_case: bool = False,
    ) -> None:
        self._bpe = _build_bpe(vocab, merges, split_camel_case=split_camel_case)
        self._known = None if split_camel_case else KnownWords()
        self._byte_level = decoders.ByteLevel()
        self._added_ids = dict(added_tokens)
        self._added_tokens = {token_id: token for token, token_id in added_tokens.items()}
        self._vocab_size = 1 + max(itertools.chain(vocab.values(), added_tokens.values()))
        self._role_ids = {role: self._build_role_ids(role) for role in get_args(Role)}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with {self._vocab_size:,} ids>"

    @classmethod
    def from_folder(cls, folder: Path, *, split_camel_case: bool = False) -> TextTokenizer:
        """Read the three tokenizer files; invalid files raise a CheckpointError."""
        vocab = _read_vocab(folder / "vocab.json")
        merges = _read_merges(folder / "merges.txt", vocab)
        added = _read_added_tokens(folder / "tokenizer_config.json")
        try:
            return cls(vocab, merges, added, split_camel_case=split_camel_case)
        except CheckpointError:
            raise
        except Exception:  # the library names the symbol of an unknown merge, but not its line
            _check_lines(folder / "merges.txt", vocab)
            raise

    @staticmethod
    def files_digest(folder: Path) -> str:
        """SHA-256 of all ids, merges and special tokens in the three tokenizer files."""
        vocab = _read_vocab(folder / "vocab.json")
        merges = _read_merges(folder / "merges.txt", vocab)
        added = _read_added_tokens(folder / "tokenizer_config.json")
        content = [sorted(vocab.items()), list(merges), sorted(added.items())]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        """The largest id plus one, special tokens included; embeddings may have more rows."""
        return self._vocab_size

    def encode(self, text: str) -> list[int]:
        """The ids of the text, without special tokens."""
        if self._known is not None and (known := self._known.encode(text)) is not None:
            return known
        try:
            text.encode()
        except UnicodeEncodeError as error:
            found = f"U+{ord(text[error.start]):04X}"
            raise TextError(
                f"character {error.start} of the text is half of a surrogate pair ({found}) "
                "and cannot be encoded; send valid Unicode"
            ) from None
        encoding = self._bpe.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self._known is not None:
            self._known.learn(text, ids, encoding.word_ids)
        return ids

    def encode_marked(self, text: str) -> list[int]:
        """The ids of a text in which names of special tokens become these tokens."""
        ids, start = list[int](), 0
        for name in self._marks.finditer(text):
            ids += self.encode(text[start : name.start()]) if name.start() > start else []
            ids.append(self._added_ids[name[0]])
            start = name.end()
        return ids + self.encode(text[start:])

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        names = sorted(self._added_ids, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Start and end of the characters of each id; ids of one character share it."""
        spans: list[tuple[int, int]] = self._bpe.encode(text, add_special_tokens=False).offsets
        return spans

    def has_letters(self, token_id: int) -> bool:
        """Whether the token contains a letter or a digit, or a part of one."""
        text = self.decode([token_id])
        return any(character.isalnum() or character == "\ufffd" for character in text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids: special tokens by name, broken UTF-8 as U+FFFD."""
        parts = []
        for is_added, run in itertools.groupby(ids, self._added_tokens.__contains__):
            tokens = [self._token(token_id) for token_id in run]
            parts.append("".join(tokens) if is_added else self._byte_level.decode(tokens))
        return "".join(parts)

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Special tokens such as `<|im_start|>` and their ids."""
        return self._added_ids

    def special_id(self, token: str) -> int:
        """The id of an added token such as `<|im_start|>`."""
        try:
            return self._added_ids[token]
        except KeyError:
            raise CheckpointError(f"tokenizer_config.json has no added token {token!r}") from None

    def role_ids(self, role: Role) -> list[int]:
        """The ids that open a turn: `<|im_start|>`, the role, a newline."""
        return list(self._role_ids[role])

    def _build_role_ids(self, role: Role) -> tuple[int, ...]:
        added = self._added_ids.get(role)
        name = self.encode(role) if added is None else [added]
        # Prompts expect three ids for the assistant's role.
        if role == "assistant" and len(name) != 1:
            found = ", ".join(repr(self.decode([token_id])) for token_id in name)
            raise CheckpointError(
                f"vocab.json and merges.txt: {role!r} must be one token, not {len(name)} ({found})"
            )
        return (self.special_id("<|im_start|>"), *name, *self.encode("\n"))

    def _token(self, token_id: int) -> str:
        token: str | None = self._added_tokens.get(token_id)
        if token is None and 0 <= token_id < self.vocab_size:
            token = self._bpe.id_to_token(token_id)
        if token is None:
            raise RequestError(f"no token has the id {token_id}; ids end at {self.vocab_size - 1}")
        return token


def _build_bpe(
    vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], *, split_camel_case: bool
) -> Tokenizer:
    """Build the BPE without added tokens: a text cannot contain special tokens."""
    pattern = CAMEL_CASE_PATTERN if split_camel_case else QWEN2_PATTERN
    bpe = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges)))
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return bpe


def _read_vocab(path: Path) -> dict[str, int]:
    vocab = read_json(path, checks_digits=False)
    ids = vocab.values()
    # All ids at once: a loop over 152,000 tokens would delay every start.
    if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= 2**32:
        for token, token_id in vocab.items():
            if type(token_id) is not int or not 0 <= token_id < 2**32:
                shown = reprlib.repr(token_id)
                raise CheckpointError(f"{path}: {token!r} must have an integer id, not {shown}")
    if len(set(ids)) != len(vocab):
        raise CheckpointError(f"{path}: two tokens have the same id")
    # A byte without a token would be dropped silently.
    if missing := sorted(set(pre_tokenizers.ByteLevel.alphabet()) - vocab.keys()):
        raise CheckpointError(
            f"{path}: {len(missing)} of the 256 byte symbols have no id, {missing[0]!r} first"
        )
    return vocab


def _read_merges(path: Path, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pairs of a merges file. The BPE library checks that their symbols are in the vocabulary.

    All lines at once: a loop over 151,000 lines would delay every start.
    """
    merges = [tuple(pair) for pair in map(str.split, _read_lines(path), itertools.repeat(" "))]
    stranded = vocab.keys() - set(map("".join, merges))
    num_stranded = sum([len(token) > 1 for token in stranded])
    is_short = num_stranded > MAX_STRANDED * len(vocab)
    if is_short or "" in vocab or set(map(len, merges)) - {2}:
        _check_lines(path, vocab)
    if is_short:  # it would tokenize wrongly
        first = next(token for token in vocab if token in stranded and len(token) > 1)
        raise CheckpointError(
            f"{path}: no merge makes {num_stranded} of the {len(vocab)} tokens of vocab.json, "
            f"{first!r} first; the file is cut short or belongs to another vocabulary"
        )
    return cast("list[tuple[str, str]]", merges)


def _read_lines(path: Path) -> list[str]:
    """The lines of a merges file without its version and empty lines."""
    lines = read_text(path).split("\n")
    if lines[0].startswith("#version:"):
        del lines[0]
    return [line for line in lines if line]


def _check_lines(path: Path, vocab: Mapping[str, int]) -> None:
    """Raise a CheckpointError for the first line that is not two known symbols."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version:")):
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise CheckpointError(f"{path}: line {number} must be two symbols, not {line!r}")
        for token in (left, right, left + right):
            if token not in vocab:
                raise CheckpointError(f"{path}: line {number}: {token!r} is not in vocab.json")


def _read_added_tokens(path: Path) -> dict[str, int]:
    table = read_json(path).get("added_tokens_decoder")
    if not isinstance(table, dict):
        raise CheckpointError(f"{path}: added_tokens_decoder is missing or not an object")
    added_tokens = {}
    for token_id, entry in table.items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if not (ADDED_ID.fullmatch(token_id) and isinstance(content, str)):
            raise CheckpointError(
                f"{path}: added_tokens_decoder must map ids to objects with a content, "
                f"not {reprlib.repr(token_id)} to {reprlib.repr(entry)}"
            )
        added_tokens[content] = int(token_id)
    return added_tokens
