"""Tests of the tokenizer with small, valid and invalid vocabularies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.real_vocabulary import compact_json, symbols, tokenizer_config
from vivace.errors import CheckpointError
from vivace.text.tokenizer import TextTokenizer

# Bytes come first: the id of a byte is its value. The merges make "assistant" one token.
BYTES = symbols(bytes(range(256)))
SMALL_MERGES = [("assistant"[:end], "assistant"[end]) for end in range(1, len("assistant"))]
SMALL_ADDED = {"<|im_start|>": 300, "<|im_end|>": 301}


def small_vocab() -> dict[str, int]:
    tokens = [*BYTES, *(left + right for left, right in SMALL_MERGES)]
    return {token: token_id for token_id, token in enumerate(tokens)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A valid folder that tests then damage."""
    write_vocab(tmp_path, small_vocab())
    write_merges(tmp_path, [f"{left} {right}" for left, right in SMALL_MERGES])
    write_config(tmp_path, tokenizer_config(SMALL_ADDED))
    return tmp_path


def write_vocab(folder: Path, vocab: object) -> None:
    (folder / "vocab.json").write_bytes(compact_json(vocab))


def write_merges(folder: Path, lines: list[str]) -> None:
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")


def write_config(folder: Path, config: object) -> None:
    (folder / "tokenizer_config.json").write_bytes(compact_json(config))


def test_small_vocabulary_spells_words_without_merges(folder: Path) -> None:
    tokenizer = TextTokenizer.from_folder(folder)
    assert tokenizer.role_ids("assistant") == [300, small_vocab()["assistant"], 10]
    assert tokenizer.role_ids("user") == [300, *b"user", 10]
    assert tokenizer.encode("Zoë 🪆") == list("Zoë 🪆".encode())
    assert tokenizer.vocab_size == 302


def test_version_line_and_blank_lines_in_merges_are_skipped(folder: Path) -> None:
    expected = TextTokenizer.from_folder(folder).encode("assist")
    lines = [f"{left} {right}" for left, right in SMALL_MERGES]
    write_merges(folder, ["#version: 0.2", *lines, "", ""])
    assert TextTokenizer.from_folder(folder).encode("assist") == expected


def test_line_ends_of_windows_are_read(folder: Path) -> None:
    path = folder / "merges.txt"
    expected = TextTokenizer.from_folder(folder).encode("assist")
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert TextTokenizer.from_folder(folder).encode("assist") == expected


def test_merge_of_number_signs_is_not_a_comment(folder: Path) -> None:
    write_vocab(folder, small_vocab() | {"##": 299})
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    write_merges(folder, ["# #", *lines])
    assert TextTokenizer.from_folder(folder).encode("##") == [299]


def test_added_token_is_used_only_for_the_role(folder: Path) -> None:
    write_vocab(folder, {symbol: value for value, symbol in enumerate(BYTES)})
    write_merges(folder, [])
    write_config(folder, tokenizer_config(SMALL_ADDED | {"assistant": 302}))
    tokenizer = TextTokenizer.from_folder(folder)
    assert tokenizer.role_ids("assistant") == [300, 302, 10]
    assert tokenizer.encode("assistant") == list(b"assistant")


def test_unknown_keys_in_the_config_are_ignored(folder: Path) -> None:
    config = tokenizer_config(SMALL_ADDED) | {"chat_template": None, "future": [{"a": 1}]}
    write_config(folder, config)
    assert TextTokenizer.from_folder(folder).special_id("<|im_end|>") == 301


def test_assistant_role_of_several_tokens_is_rejected(folder: Path) -> None:
    write_vocab(folder, dict(list(small_vocab().items())[: 256 + 2]))
    write_merges(folder, ["a s", "as s"])
    with pytest.raises(CheckpointError, match=r"must be one token, not 7 \('ass', 'i', 's', 't'"):
        TextTokenizer.from_folder(folder)


def test_config_without_im_start_is_rejected(folder: Path) -> None:
    write_config(folder, tokenizer_config({"<|im_end|>": 301}))
    with pytest.raises(CheckpointError, match=r"no added token '<\|im_start\|>'"):
        TextTokenizer.from_folder(folder)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer_config.json"])
def test_missing_file_is_named(name: str, folder: Path) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        TextTokenizer.from_folder(folder)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer_config.json"])
def test_file_that_is_not_utf8_or_no_file_is_named(name: str, folder: Path) -> None:
    (folder / name).write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=f"{name} cannot be read"):
        TextTokenizer.from_folder(folder)
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(CheckpointError, match=f"{name} cannot be read"):
        TextTokenizer.from_folder(folder)


@pytest.mark.parametrize("name", ["vocab.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"a": ' + "1" * 5000 + "}", "is not JSON"),
        ("[1]", "should hold a JSON object, not a list"),
    ],
    ids=["cut short", "too deep", "too long a number", "a list"],
)
def test_file_that_is_no_json_object_is_named(
    name: str, content: str, complaint: str, folder: Path
) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"{name} {complaint}"):
        TextTokenizer.from_folder(folder)


@pytest.mark.parametrize("token_id", ["7", 7.0, True, None, -1, 2**32])
def test_vocabulary_without_integer_ids_is_rejected(token_id: object, folder: Path) -> None:
    write_vocab(folder, small_vocab() | {"zz": token_id})
    with pytest.raises(CheckpointError, match=r"vocab.json: 'zz' must have an integer id, not "):
        TextTokenizer.from_folder(folder)


def test_id_with_a_thousand_digits_is_shortened_in_the_error(folder: Path) -> None:
    write_vocab(folder, small_vocab() | {"zz": 10**1000})
    with pytest.raises(CheckpointError, match=r"'zz' must have an integer id, not 1") as caught:
        TextTokenizer.from_folder(folder)
    assert len(str(caught.value)) < 300


def test_two_tokens_with_one_id_are_rejected(folder: Path) -> None:
    write_vocab(folder, small_vocab() | {"zz": 7})
    with pytest.raises(CheckpointError, match=r"vocab.json: two tokens have the same id"):
        TextTokenizer.from_folder(folder)


def test_byte_without_a_token_is_rejected(folder: Path) -> None:
    vocab = small_vocab()
    del vocab["Ċ"]
    write_vocab(folder, vocab)
    with pytest.raises(CheckpointError, match=r"vocab.json: 1 of the 256 byte symbols .* 'Ċ'"):
        TextTokenizer.from_folder(folder)


@pytest.mark.parametrize("line", ["as", "a s s", " as", "as ", "a  s"])
def test_malformed_merge_is_named_by_its_line(line: str, folder: Path) -> None:
    write_merges(folder, ["a s", line])
    with pytest.raises(CheckpointError, match=r"merges.txt: line 2 must be two symbols"):
        TextTokenizer.from_folder(folder)


@pytest.mark.parametrize(
    ("line", "missing"),
    [("ax s", "ax"), ("s ax", "ax"), ("x y", "xy"), ("#version: 0.2", "#version:")],
)
def test_merge_of_unknown_tokens_is_named(line: str, missing: str, folder: Path) -> None:
    write_merges(folder, ["a s", line])
    with pytest.raises(CheckpointError, match=f"line 2: '{missing}' is not in vocab.json"):
        TextTokenizer.from_folder(folder)


@pytest.mark.parametrize(
    "decoder",
    [None, [], {"x": {"content": "<a>"}}, {"-1": {"content": "<a>"}}, {"1": "<a>"}, {"1": {}}],
)
def test_malformed_added_tokens_are_rejected(decoder: object, folder: Path) -> None:
    write_config(folder, {"added_tokens_decoder": decoder})
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json: added_tokens_decoder"):
        TextTokenizer.from_folder(folder)


def test_merges_file_cut_short_is_rejected(folder: Path) -> None:
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    write_merges(folder, lines[:4])
    with pytest.raises(CheckpointError, match=r"merges\.txt.*'assist'.*cut short"):
        TextTokenizer.from_folder(folder)
