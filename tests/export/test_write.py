"""`export_onnx`: complete folders or none, the manifest, and sources that are refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import soundfile

from tests.export.conftest import Exported, Opened
from tests.support.project import ROOT
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.cli.main import main
from vivace.errors import RequestError, install_command
from vivace.export.write import MAX_BYTES, export_onnx
from vivace.quantize import quantize_checkpoint

MAX_DOWNLOAD = 25_000_000


def read_manifest(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return manifest


def test_manifest_lists_every_other_file(exported: Exported) -> None:
    folder = exported("mini")
    files = read_manifest(folder)["files"]
    assert {path.name for path in folder.iterdir()} == {*files, "manifest.json"}
    for name, facts in files.items():
        content = (folder / name).read_bytes()
        assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_manifest_of_the_embedded_voice_has_its_prompts_and_sampling(exported: Exported) -> None:
    manifest = read_manifest(exported("mini"))
    assert set(manifest["prompt"]["before_text"]) == {"heart", "michael"}
    assert set(manifest["prompt"]["before_text"]["heart"]) == {"auto", "english"}
    assert manifest["first_codes"] == [*range(512), manifest["end_code"]]
    assert (manifest["sampling"]["temperature"], manifest["sampling"]["min_frames"]) == (0.7, 2)
    assert manifest["license"] == "Apache-2.0"
    assert "label" in manifest["marking"]


def test_license_of_another_checkpoint_is_unknown(exported: Exported) -> None:
    assert read_manifest(exported("custom_voice"))["license"] is None


def test_int8_export_is_small_and_speaks_like_float32(opened: Opened, tmp_path: Path) -> None:
    runner = pytest.importorskip("vivace.export.runner")
    export_onnx(Checkpoint.open(EMBEDDED), tmp_path / "int8", "int8")
    sizes = [path.stat().st_size for path in (tmp_path / "int8").iterdir()]
    assert sum(sizes) < MAX_DOWNLOAD
    small, full = runner.OnnxVoice(tmp_path / "int8", num_threads=1), opened("mini")
    codes = np.array(list(full.frames([40, 41, 42, 43], sampling(full), voice="heart")))
    samples, reference = (each.decode(codes, each.new_stream()) for each in (small, full))
    error = np.square(samples - reference).mean() / np.square(reference).mean()
    assert 1e-8 < error < 10**-2.5  # 25 dB; the rounding has an effect


def sampling(voice: Any) -> Any:
    return dataclasses.replace(voice.sampling, seed=4, min_frames=20, max_frames=20)


def test_too_large_checkpoint_is_refused_with_its_size(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpoint, "num_bytes", property(lambda self: MAX_BYTES + 1_000_000))
    with pytest.raises(RequestError, match=r"has 401 MB of weights.*at most 400 MB"):
        export_onnx(Checkpoint.open(tiny_folder / "base"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_quantized_checkpoint_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    quantize_checkpoint(Checkpoint.open(tiny_folder / "base"), tmp_path / "small", "int8")
    with pytest.raises(RequestError, match="quantized to int8; export the original"):
        export_onnx(Checkpoint.open(tmp_path / "small"), tmp_path / "out")


def test_damaged_checkpoint_leaves_no_folder(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    source = Path(shutil.copytree(tiny_folder / "custom_voice", tmp_path / "source"))
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert main(["export", str(source), "-o", str(tmp_path / "out")]) == 1
    assert "model.safetensors" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_codec_folder_is_refused(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tiny_folder / "base" / "speech_tokenizer"
    assert main(["export", str(source), "-o", str(tmp_path / "out")]) == 1
    assert "config.json" in capsys.readouterr().err


def test_folder_with_files_is_refused(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    (tmp_path / "note.txt").write_text("mine")
    assert main(["export", str(tiny_folder / "base"), "-o", str(tmp_path)]) == 1
    assert "not an empty folder" in capsys.readouterr().err
    assert (tmp_path / "note.txt").read_text() == "mine"


def test_missing_extra_names_its_install_command(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in list(sys.modules):
        if name.startswith(("vivace.export.", "onnx")):
            monkeypatch.delitem(sys.modules, name)
    for name in ("codec", "frame", "manifest"):
        monkeypatch.delattr(f"vivace.export.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", str(tiny_folder / "base"), "-o", str(tmp_path / "out")]) == 1
    assert install_command("onnx") in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_command_writes_the_weights_it_is_given(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = pytest.importorskip("vivace.export.graph")
    sizes = []
    for weights in get_args(graph.StoredWeights):
        target = tmp_path / weights
        source = str(tiny_folder / "custom_voice")
        command = ["export", source, "-o", str(target), "--format", "onnx", "--weights", weights]
        assert main(command) == 0
        assert capsys.readouterr().out.strip() == str(target)
        assert read_manifest(target)["weights"] == weights
        sizes.append((target / "frame.onnx").stat().st_size)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] < sizes[1] < sizes[0]


def test_documented_example_speaks(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "voice-onnx").symlink_to(exported("mini"))
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    samples, rate = soundfile.read("hello.wav")
    assert 0.5 < len(samples) / rate < 10
    assert np.sqrt(np.square(samples).mean()) > 0.01
