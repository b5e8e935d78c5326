"""Missing and invalid files of a checkpoint raise CheckpointError; pickles are never loaded."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.checkpoints import CODEC, MODEL, load
from vivace.errors import CheckpointError

NEEDED = (
    "config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    MODEL,
    "speech_tokenizer/config.json",
    CODEC,
)


@pytest.mark.parametrize("name", NEEDED)
def test_missing_file_raises_with_its_name(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{folder / name} is missing"):
        load(folder)


CUTS = [(name, share) for name in NEEDED for share in (0.0, 0.5, 0.999)]
# A list of merges can only be detected as truncated inside a line.
CUTS = [cut for cut in CUTS if cut not in (("merges.txt", 0.0), ("merges.txt", 0.5))]


@pytest.mark.parametrize(("name", "share"), CUTS)
def test_truncated_file_raises_with_its_name(folder: Path, name: str, share: float) -> None:
    content = (folder / name).read_bytes().rstrip()
    (folder / name).write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match=str(folder / name)):
        load(folder)


@pytest.mark.parametrize("name", NEEDED)
def test_folder_instead_of_a_file_raises_with_its_name(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(CheckpointError, match=str(folder / name)):
        load(folder)


@pytest.mark.parametrize("name", ["preprocessor_config.json", "generation_config.json"])
def test_optional_file_may_be_missing(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert load(folder).model_type == "base"


@pytest.mark.parametrize("name", [MODEL, CODEC])
def test_weights_file_of_other_bytes_is_rejected(folder: Path, name: str) -> None:
    for content in (b"\xff" * 64, b"{}", b"version https://git-lfs.github.com/spec/v1\n"):
        (folder / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=f"{name} is damaged or not safetensors"):
            load(folder)


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("name", [MODEL, CODEC])
def test_pickle_named_safetensors_is_rejected_unopened(
    folder: Path, tmp_path: Path, name: str, is_zip: bool
) -> None:
    mark = tmp_path / "unpickled"
    torch.save(
        {"w": torch.ones(2), "bomb": Bomb(mark)},
        folder / name,
        _use_new_zipfile_serialization=is_zip,
    )
    with pytest.raises(CheckpointError, match=f"{name} is a pickle, not safetensors"):
        load(folder)
    assert not mark.exists()
    with (folder / name).open("rb") as file:
        torch.load(file, weights_only=False)
    assert mark.exists(), "the bomb should work, or the test shows nothing"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_of_any_binary_protocol_is_detected(folder: Path, protocol: int) -> None:
    (folder / MODEL).write_bytes(pickle.dumps({"w": [1.0] * 100}, protocol=protocol))
    with pytest.raises(CheckpointError, match="is a pickle, not safetensors"):
        load(folder)


def test_truncated_file_whose_header_size_looks_like_a_pickle_is_damaged(folder: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}})
    content = header.ljust(0x0280).encode()
    (folder / MODEL).write_bytes(len(content).to_bytes(8, "little") + content + bytes(8))
    with pytest.raises(CheckpointError, match=r"is damaged or .*before the end of w"):
        load(folder)


def test_checkpoint_with_only_a_pickle_raises_with_advice_to_convert(folder: Path) -> None:
    torch.save(load_file(folder / MODEL), folder / "pytorch_model.bin")
    (folder / MODEL).unlink()
    with pytest.raises(CheckpointError, match=r"missing; pytorch_model\.bin is a pickle, .*never"):
        load(folder)
