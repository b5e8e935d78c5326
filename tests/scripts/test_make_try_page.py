"""Assembling the page that speaks in the browser."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.support.project import ROOT, load_script
from tests.support.try_page import write_tone_runtime, write_tone_voice

script = load_script(ROOT / "scripts" / "make_try_page.py")


def test_page_has_every_file_that_it_names(tmp_path: Path) -> None:
    voice, runtime = write_tone_voice(tmp_path / "voice"), write_tone_runtime(tmp_path / "ort.tgz")
    num_bytes = script.assemble(tmp_path / "out", voice, runtime)
    out = tmp_path / "out"
    sources = [*out.glob("*.js"), *(out / "page").glob("*.js"), out / "index.html"]
    assert len(sources) > 15
    for source in sources:
        text = source.read_text("utf-8")
        named = re.findall(r'from "(\.[^"]+)"|(?:src|href)="([^".#]+\.[^"]+)"', text)
        for module, file in named:
            assert (source.parent / (module or file)).exists(), (source.name, module or file)
    listed = json.loads((out / "assets" / "list.json").read_text("utf-8"))
    assert listed["voices"] == ["heart", "michael"]
    assert listed["page"] == sorted(
        path.relative_to(out).as_posix()
        for path in out.rglob("*")
        if path.is_file() and path.suffix != ".gz"
    )
    for name, entry in (listed["files"] | listed["webgpu_files"]).items():
        body = (out / "assets" / name).read_bytes()
        assert entry == {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    plain, webgpu = listed["files"]["ort.wasm.gz"], listed["webgpu_files"]["ort.jspi.wasm.gz"]
    others = sum(entry["bytes"] for entry in listed["files"].values()) - plain["bytes"]
    assert num_bytes == others + max(plain["bytes"], webgpu["bytes"])
    packed = (out / "assets" / "codec.onnx.gz").read_bytes()
    assert gzip.decompress(packed) == b"codec"


def test_download_above_the_limit_is_rejected(tmp_path: Path) -> None:
    voice, runtime = write_tone_voice(tmp_path / "voice"), write_tone_runtime(tmp_path / "ort.tgz")
    with pytest.raises(script.BuildError, match="the limit is"):
        script.assemble(tmp_path / "out", voice, runtime, max_bytes=1_000)


def test_other_runtime_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runtime = write_tone_runtime(tmp_path / "ort.tgz")
    assert script.main([str(tmp_path / "out"), "--runtime", str(runtime)]) == 1
    assert "its sha512 is" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_folder_without_a_graph_is_rejected(tmp_path: Path) -> None:
    voice, runtime = write_tone_voice(tmp_path / "voice"), write_tone_runtime(tmp_path / "ort.tgz")
    (voice / "codec.onnx").unlink()
    with pytest.raises(script.BuildError, match=r"has no codec\.onnx"):
        script.assemble(tmp_path / "out", voice, runtime)


def test_site_without_a_voice_has_neither_the_page_nor_links_to_it(tmp_path: Path) -> None:
    load_script(ROOT / "scripts" / "leave_out_try_page.py").leave_out(tmp_path)
    link = re.compile(r"""(?:\]\(|src="|href=")(?:\.\./)*try/""")
    names = [path.relative_to(ROOT / "docs") for path in sorted((ROOT / "docs").rglob("*.md"))]
    assert len(names) > 30
    linking = [name for name in names if link.search((ROOT / "docs" / name).read_text("utf-8"))]
    assert {"README.md", "browser.md"} == {str(name) for name in linking}
    for name in names:
        text = (tmp_path / "docs" / name).read_text("utf-8")
        assert not link.search(text), name
        assert len(text) > 100
    assert not (tmp_path / "docs" / "try").exists()
    config = (tmp_path / "mkdocs.yml").read_text("utf-8")
    assert "\ndocs_dir: docs\nsite_dir: site\n" in config
