"""`make_finetune_data` names what is missing before and after its downloads."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.support.project import ROOT, load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(ROOT / "scripts" / "make_finetune_data.py")


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which npm packs two voices."""

    def pack(*_: object, **__: object) -> SimpleNamespace:
        with tarfile.open(tmp_path / "voices.tgz", "w:gz") as archive:
            for name in ("package/voices/bm_george.bin", "package/voices/af_sky.bin"):
                member = tarfile.TarInfo(name)
                member.size = 4
                archive.addfile(member, io.BytesIO(b"data"))
        return SimpleNamespace(stdout="voices.tgz\n")

    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", pack)
    return tmp_path


def test_style_of_a_voice_is_read_from_the_package(script: ModuleType, downloads: Path) -> None:
    assert script.download_style(downloads, "bm_george") == b"data"


def test_unknown_voice_lists_the_available_ones(script: ModuleType, downloads: Path) -> None:
    with pytest.raises(SystemExit, match="'me'; available: af_sky, bm_george"):
        script.download_style(downloads, "me")


def test_missing_npm_is_named(
    script: ModuleType, downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="npm was not found"):
        script.download_style(downloads, "bm_george")


def test_missing_packages_are_named_before_a_download(
    script: ModuleType, downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "MODULES", ("json", "onnx_that_is_missing"))
    with pytest.raises(SystemExit, match="pip install onnx_that_is_missing"):
        script.prepare(downloads / "new", "bm_george")
    assert not (downloads / "new").exists()
