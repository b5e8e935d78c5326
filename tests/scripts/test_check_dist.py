"""scripts/check_dist.py detects missing and extra files in sdist and wheel."""

from __future__ import annotations

import io
import json
import re
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.project import ROOT, load_script

TRACKED = {
    "README.md",
    "constraints.txt",
    "src/vivace/tts.py",
    "src/vivace/assets/v.safetensors",
}
IN_WHEEL = {
    "vivace/tts.py", "vivace/assets/v.safetensors",
    "vivace-1.dist-info/METADATA",
    "vivace-1.dist-info/licenses/LICENSE", "vivace-1.dist-info/licenses/NOTICE",
}  # fmt: skip


@pytest.fixture(scope="module")
def check() -> ModuleType:
    return load_script(ROOT / "scripts" / "check_dist.py")


def make_sdist(folder: Path, names: Iterable[str]) -> Path:
    path = folder / "vivace-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"vivace-1/{name}"), io.BytesIO())
    return path


def make_wheel(folder: Path, names: Iterable[str]) -> Path:
    path = folder / "vivace-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def test_complete_sdist_and_wheel_pass(check: ModuleType, tmp_path: Path) -> None:
    check.check_sdist(make_sdist(tmp_path, TRACKED | {"PKG-INFO"}), TRACKED)
    check.check_wheel(make_wheel(tmp_path, IN_WHEEL), TRACKED)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"constraints.txt"}, "lacks ['constraints.txt']"), ({"left.wav"}, "has ['left.wav']")],
)
def test_sdist_with_other_files_is_rejected(
    check: ModuleType, tmp_path: Path, change: set[str], message: str
) -> None:
    path = make_sdist(tmp_path, (TRACKED | {"PKG-INFO"}) ^ change)
    with pytest.raises(check.DistError, match=re.escape(message)):
        check.check_sdist(path, TRACKED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"vivace/assets/v.safetensors"},
            "differs from src/vivace/ in ['vivace/assets/v.safetensors']",
        ),
        ({"tests/test_tts.py"}, "differs from src/vivace/ in ['tests/test_tts.py']"),
        ({"vivace-1.dist-info/licenses/NOTICE"}, "carries the licences ['LICENSE']"),
    ],
)
def test_wheel_with_other_files_is_rejected(
    check: ModuleType, tmp_path: Path, change: set[str], message: str
) -> None:
    with pytest.raises(check.DistError, match=re.escape(message)):
        check.check_wheel(make_wheel(tmp_path, IN_WHEEL ^ change), TRACKED)


def test_oversized_wheel_is_rejected(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "MAX_WHEEL_BYTES", 100)
    with pytest.raises(check.DistError, match="bytes"):
        check.check_wheel(make_wheel(tmp_path, IN_WHEEL), TRACKED)


def make_weights(folder: Path, *names: str) -> Path:
    header = json.dumps({"__metadata__": {}, **{name: {} for name in names}}).encode()
    path = folder / "vivace-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vivace/a.safetensors", len(header).to_bytes(8, "little") + header)
    return path


def test_weights_of_the_model_pass(check: ModuleType, tmp_path: Path) -> None:
    check.check_weights(make_weights(tmp_path, "talker.model.norm.weight", "schema.weight"))


@pytest.mark.parametrize("name", ["optimizer.state.0", "talker.exp_avg_sq", "ema.talker.weight"])
def test_training_tensors_are_rejected(check: ModuleType, tmp_path: Path, name: str) -> None:
    with pytest.raises(check.DistError, match="has training state"):
        check.check_weights(make_weights(tmp_path, "talker.model.norm.weight", name))


def test_training_files_are_rejected(check: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(check.DistError, match=r"has the training file vivace/last\.ckpt"):
        check.check_weights(make_wheel(tmp_path, ["vivace/last.ckpt"]))


def test_invalid_metadata_is_rejected(check: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("twine")
    with pytest.raises(check.DistError, match="twine check"):
        check.check_metadata(make_wheel(tmp_path, IN_WHEEL))
