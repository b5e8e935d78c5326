"""Names of checkpoints: hub ids, folders and mistakes in them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import CODEC, MODEL, shard
from vivace import TTS
from vivace.checkpoint import EMBEDDED, RELEASED, find_folder
from vivace.errors import CheckpointError


def test_hub_id_is_downloaded_with_the_given_arguments(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def download(name: str, **options: Any) -> str:
        calls.append((name, options))
        return str(tiny_folder / "custom_voice")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    tts = TTS.load(
        "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
        device="cpu",
        revision="85e237c",
        cache_dir=tmp_path,
        offline=True,
    )
    assert tts.model_type == "custom_voice"
    name, options = calls.pop()
    assert name == "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"
    patterns = options.pop("allow_patterns")
    assert options == {"revision": "85e237c", "cache_dir": tmp_path, "local_files_only": True}
    assert set(patterns) == {"*.json", "*.txt", "*.safetensors"}  # and no pickle


def test_folder_is_never_looked_up_on_the_hub(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("hub"))
    monkeypatch.chdir(tiny_folder.parent)
    name = f"{tiny_folder.name}/base"  # has the form of a hub id
    assert TTS.load(name, device="cpu").checkpoint.folder == Path(name)


def test_download_logs_the_commit(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    snapshot = tmp_path / "snapshots" / "85e237c12c02"
    shutil.copytree(tiny_folder / "custom_voice", snapshot)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(snapshot))
    with caplog.at_level("INFO", "vivace"):
        find_folder(RELEASED[1], revision=None, cache_dir=None, offline=False)
    assert f"{RELEASED[1]} is commit 85e237c12c02" in caplog.text


@pytest.mark.parametrize("lacking", ["merges.txt", MODEL, CODEC])
def test_incomplete_download_raises_with_the_missing_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    (folder / lacking).unlink()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    with pytest.raises(CheckpointError, match=f"lacks {lacking}; load it once with a connection"):
        find_folder(RELEASED[0], revision=None, cache_dir=None, offline=True)


def test_incomplete_shards_raise_with_the_missing_shard(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    with pytest.raises(CheckpointError, match=r"lacks model-00002-of-00003\.safetensors; is it"):
        find_folder(RELEASED[0], revision=None, cache_dir=None, offline=False)


def test_offline_load_without_cache_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as refusal:
        TTS.load(RELEASED[0], device="cpu", cache_dir=tmp_path, offline=True)
    assert RELEASED[0] in str(refusal.value)
    assert "offline mode is on" in str(refusal.value)


@pytest.mark.parametrize(
    ("failure", "match"),
    [
        ("LocalEntryNotFoundError", "the hub could not be reached"),
        (
            "RepositoryNotFoundError",
            "no folder or hub model is named .*; the released ones are: .*0.6B",
        ),
        ("RevisionNotFoundError", "could not be downloaded"),
        ("OSError", "could not be downloaded: no space left"),
    ],
)
def test_failed_download_raises_checkpoint_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str, match: str
) -> None:
    from huggingface_hub import errors

    kind: type[Exception] = getattr(errors, failure, OSError)

    def fail(*_: Any, **__: Any) -> str:
        error = kind.__new__(kind)  # the constructors of hub errors need a web response
        Exception.__init__(error, "no space left")
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(CheckpointError, match=match):
        find_folder("org/model", revision=None, cache_dir=tmp_path, offline=False)


@pytest.mark.parametrize(
    "name",
    ["", "nowhere", "./org/model", "/no/such/folder", "~nobody-at-all/model", "a/b/c", "x" * 5000],
)
def test_name_that_is_neither_folder_nor_hub_id_is_rejected(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("hub"))
    with pytest.raises(
        CheckpointError, match=r"no folder .*give a checkpoint folder or a model such as"
    ):
        TTS.load(name, device="cpu")


def test_mini_is_the_embedded_voice_unless_a_folder_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"revision": None, "cache_dir": None, "offline": True}
    assert find_folder("mini", **options) == EMBEDDED
    Path("mini").mkdir()
    assert find_folder("mini", **options) == Path("mini")


def test_file_instead_of_a_folder_is_rejected(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_folder)
    for name in (tiny_folder / "base" / MODEL, "base/model.safetensors"):
        with pytest.raises(CheckpointError, match="is a file; give the checkpoint folder"):
            TTS.load(name, device="cpu")


def test_home_folder_is_expanded(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tiny_folder))
    found = find_folder("~/base", revision=None, cache_dir=None, offline=True)
    assert found == tiny_folder / "base"
