"""`quantize_checkpoint`: complete folders or none; odd sources; the layout of the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import shard
from vivace import TTS
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.errors import CheckpointError, RequestError
from vivace.quantize import new_folder, quantize_checkpoint

MODEL = "model.safetensors"


@pytest.fixture
def source(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy of a base checkpoint that a test may change."""
    return Path(shutil.copytree(tiny_folder / "base", tmp_path / "base"))


def test_shards_become_one_file_with_the_same_tensors(source: Path, tmp_path: Path) -> None:
    quantize_checkpoint(Checkpoint.open(source), tmp_path / "whole", "int4")
    shard(source)
    quantize_checkpoint(Checkpoint.open(source), tmp_path / "sharded", "int4")
    whole, sharded = (load_file(tmp_path / name / MODEL) for name in ("whole", "sharded"))
    assert whole.keys() == sharded.keys()
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)
    names = {path.name for path in (tmp_path / "sharded").rglob("*")}
    assert not {name for name in names if "-of-" in name or "index" in name}
    assert {"vocab.json", "merges.txt", "generation_config.json", "speech_tokenizer"} <= names


def test_tensors_are_aligned_to_their_size(source: Path, tmp_path: Path) -> None:
    quantize_checkpoint(Checkpoint.open(source), tmp_path / "made", "int4")
    content = (tmp_path / "made" / MODEL).read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert (8 + length) % 64 == 0
    header = json.loads(content[8 : 8 + length])
    sizes = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1}
    for name, each in header.items():
        if name != "__metadata__":
            assert each["data_offsets"][0] % sizes[each["dtype"]] == 0, name


def test_progress_reaches_the_size_of_the_tensors(source: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    target = tmp_path / "made"
    quantize_checkpoint(
        Checkpoint.open(source), target, "int8", lambda done, total: calls.append((done, total))
    )
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1]
    assert 0 < (target / MODEL).stat().st_size - calls[-1][1] < 100_000  # the header


def test_quantized_checkpoint_is_refused(source: Path, tmp_path: Path) -> None:
    quantize_checkpoint(Checkpoint.open(source), tmp_path / "made", "int4")
    again = Checkpoint.open(tmp_path / "made")
    with pytest.raises(RequestError, match="already quantized to int4; quantize the original"):
        quantize_checkpoint(again, tmp_path / "again", "int8")
    assert not (tmp_path / "again").exists()


def test_folder_with_files_is_refused_and_kept(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "made"
    target.mkdir()
    (target / "mine").write_text("mine")
    for path in (target, target / "mine"):
        with pytest.raises(RequestError, match="exists and is not an empty folder"):
            quantize_checkpoint(Checkpoint.open(source), path, "int8")
    assert [path.name for path in target.iterdir()] == ["mine"]


def test_empty_folder_is_used(source: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    quantize_checkpoint(Checkpoint.open(source), tmp_path / "made", "int8")
    with TTS.load(tmp_path / "made") as tts:
        assert tts.model_type == "base"


def test_missing_parents_and_the_home_folder_are_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    with new_folder(Path("~/models/small")) as unfinished:
        (unfinished / "a").touch()
    assert (tmp_path / "models/small/a").is_file()


@pytest.mark.parametrize("has_target", [True, False])
def test_link_to_an_empty_folder_is_followed(
    source: Path, tmp_path: Path, has_target: bool
) -> None:
    target, link = tmp_path / "disk" / "made", tmp_path / "link"
    target.parent.mkdir()
    if has_target:
        target.mkdir()
    link.symlink_to(target)
    quantize_checkpoint(Checkpoint.open(source), link, "int8")
    assert link.is_symlink()
    assert (target / MODEL).is_file()


def test_mount_point_is_refused_at_once(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "disk"
    target.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda self: self == target)
    with pytest.raises(RequestError, match=r"disk is a mount point; give a new folder inside it"):
        quantize_checkpoint(Checkpoint.open(source), target, "int8")


def test_invalid_source_leaves_no_folder(source: Path, tmp_path: Path) -> None:
    tensors = load_file(source / MODEL)
    tensors["talker.codec_head.weight"][1, 1] = torch.nan
    save_file(tensors, source / MODEL)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=r"talker\.codec_head\.weight contains non-finite"):
        quantize_checkpoint(Checkpoint.open(source), tmp_path / "made", "int4")
    assert sorted(tmp_path.iterdir()) == before


def test_interruption_leaves_no_folder(source: Path, tmp_path: Path) -> None:
    def interrupt(num_done: int, num_bytes: int) -> None:
        if num_done > num_bytes // 2:
            raise KeyboardInterrupt

    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(Checkpoint.open(source), tmp_path / "made", "int4", interrupt)
    assert sorted(tmp_path.iterdir()) == before


def test_folder_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    target = source / "config.json" / "made"
    with pytest.raises(CheckpointError, match=f"{target} cannot be written"):
        quantize_checkpoint(Checkpoint.open(source), target, "int8")


def test_embedded_voice_speaks_with_int4(tmp_path: Path) -> None:
    quantize_checkpoint(Checkpoint.open(EMBEDDED), tmp_path / "mini", "int4")
    plain, quantized = (path / MODEL for path in (EMBEDDED, tmp_path / "mini"))
    assert quantized.stat().st_size < 0.45 * plain.stat().st_size  # float16
    with TTS.load(tmp_path / "mini") as tts:
        audio = tts.speak("Hello there.", seed=1)
    assert audio.finish_reason == "stop"
    assert 0.4 < audio.duration_s < 3
