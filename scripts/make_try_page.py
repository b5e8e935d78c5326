"""Assemble the try page (docs/browser.md): sources, an exported voice and onnxruntime-web.

    python scripts/make_try_page.py build/site/try
    python scripts/make_try_page.py public/try --model ./my-checkpoint

The folder is complete and static: copy it to any web server. `--export FOLDER` takes the result of
`vivace export --format onnx` instead of exporting `--model`. onnxruntime-web (MIT) comes from the
npm registry in the pinned version and is checked against the pinned digest; `--runtime FILE` takes
a downloaded package. Needs npm unless the package is given.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from make_text_module import write_module

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "docs" / "try"
PAGE = ROOT / "src" / "vivace" / "serve" / "page"
# Files of the server's page that this page uses, written once.
SHARED = (
    "api.js", "audio.js", "dom.js", "history.js", "playback_view.js", "ring.js", "text.js",
    "theme.js", "wave.js", "worklet.js", "style.css", "icon.svg", "newsreader.woff2",
    "newsreader-italic.woff2", "newsreader-bold-italic.woff2", "newsreader-LICENSE.txt",
)  # fmt: skip
VOICE_FILES = ("manifest.json", "vocab.json", "merges.txt", "frame.onnx", "codec.onnx")
RUNTIME = "onnxruntime-web@1.30.0"
RUNTIME_SHA512 = (
    "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
)
# Builds of the runtime, by the name that the page uses: script and WebAssembly. "jspi" has WebGPU
# too. It needs JSPI, a feature of WebAssembly, and replaces "wasm" where the page finds a GPU.
RUNTIME_FILES = {
    "wasm": (
        "package/dist/ort.wasm.bundle.min.mjs",
        "package/dist/ort-wasm-simd-threaded.wasm",
    ),
    "jspi": (
        "package/dist/ort.jspi.bundle.min.mjs",
        "package/dist/ort-wasm-simd-threaded.jspi.wasm",
    ),
}
MAX_DOWNLOAD_BYTES = 25_000_000


class BuildError(Exception):
    """The page cannot be assembled."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that the page downloads when it first speaks."""

    name: str
    body: bytes

    @classmethod
    def packed(cls, name: str, body: bytes) -> Asset:
        """Compressed here: not every web server compresses, and the page counts the bytes."""
        return cls(f"{name}.gz", gzip.compress(body, 9, mtime=0))

    def describe(self) -> dict[str, object]:
        return {"bytes": len(self.body), "sha256": hashlib.sha256(self.body).hexdigest()}


@dataclass(frozen=True, slots=True)
class Download:
    """Everything that the page may download when it first speaks."""

    files: list[Asset]
    webgpu_files: list[Asset]  # instead of the first of `files`, where there is a GPU

    @property
    def num_bytes(self) -> int:
        """The larger one of both downloads."""
        plain, *others = self.files
        runtime = max(len(plain.body), sum(len(asset.body) for asset in self.webgpu_files))
        return runtime + sum(len(asset.body) for asset in others)


def assemble(out: Path, voice: Path, runtime: Path, *, max_bytes: int = MAX_DOWNLOAD_BYTES) -> int:
    """Write the page to `out`; return the bytes of its first download."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(SOURCES, out)
    write_module(out)
    (out / "page").mkdir()
    for name in SHARED:
        shutil.copy2(PAGE / name, out / "page" / name)
    with tarfile.open(runtime) as package:
        plain, webgpu = (_copy_runtime(package, build, out / "ort") for build in RUNTIME_FILES)
    assets = [plain, *_voice_assets(voice)]
    download = Download(assets, [webgpu])
    if download.num_bytes > max_bytes:
        raise BuildError(
            f"the first download is {download.num_bytes / 1e6:.1f} MB and the limit is "
            f"{max_bytes / 1e6:.0f} MB; export the voice with --weights int8"
        )
    _write_assets(out, download, _voices(voice))
    return download.num_bytes


def _copy_runtime(package: tarfile.TarFile, build: str, folder: Path) -> Asset:
    """Copy the JavaScript of one onnxruntime build, and return its WebAssembly file."""
    script, wasm = RUNTIME_FILES[build]
    folder.mkdir(exist_ok=True)
    (folder / f"ort.{build}.bundle.min.mjs").write_bytes(_without_map(_member(package, script)))
    return Asset.packed(
        "ort.wasm" if build == "wasm" else f"ort.{build}.wasm", _member(package, wasm)
    )


def _write_assets(out: Path, download: Download, voices: list[str]) -> None:
    page = [path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()]
    folder = out / "assets"
    folder.mkdir()
    for asset in (*download.files, *download.webgpu_files):
        (folder / asset.name).write_bytes(asset.body)
    listed = {
        "voices": voices,
        "page": sorted([*page, "assets/list.json"]),
        "files": {asset.name: asset.describe() for asset in download.files},
        "webgpu_files": {asset.name: asset.describe() for asset in download.webgpu_files},
    }
    (folder / "list.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")


def _voices(voice: Path) -> list[str]:
    manifest = json.loads((voice / "manifest.json").read_text(encoding="utf-8"))
    names = list(manifest["prompt"]["before_text"])
    if not names or manifest["prompt"]["layout"] != "whole":
        raise BuildError(f"{voice}: the page needs a checkpoint with preset speakers")
    return names


def _voice_assets(voice: Path) -> Iterator[Asset]:
    for name in VOICE_FILES:
        if not (voice / name).is_file():
            raise BuildError(f"{voice} has no {name}; write it with vivace export --format onnx")
        yield Asset.packed(name, (voice / name).read_bytes())


def _member(package: tarfile.TarFile, name: str) -> bytes:
    file = package.extractfile(name)
    assert file is not None
    return file.read()


def _without_map(script: bytes) -> bytes:
    """Drop the reference to a source map, which is not copied."""
    return b"\n".join(
        line for line in script.split(b"\n") if not line.startswith(b"//# sourceMappingURL=")
    )


def check_runtime(package: Path) -> Path:
    """Raise unless the package has the pinned digest."""
    found = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if found != RUNTIME_SHA512:
        raise BuildError(f"{package} is not {RUNTIME}: its sha512 is {found}")
    return package


def fetch_runtime(folder: Path) -> Path:
    """Download the pinned onnxruntime-web from the npm registry to `folder`."""
    npm = shutil.which("npm")
    if npm is None:
        raise BuildError(f"npm is not installed; install it, or give --runtime with {RUNTIME}.tgz")
    command = [npm, "pack", RUNTIME, "--silent", "--pack-destination", str(folder)]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return next(folder.glob("*.tgz"))


def export_voice(model: str | None, folder: Path, *, weights: str = "int8") -> Path:
    target = folder / "voice"
    command = [sys.executable, "-m", "vivace", "export", *([model] if model else [])]
    command += ["--format", "onnx", "--weights", weights, "-o", str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return target


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder to write; it is replaced")
    parser.add_argument("--model", help="checkpoint to export (default: the embedded voice)")
    parser.add_argument("--export", type=Path, help="an exported voice to use instead")
    parser.add_argument("--runtime", type=Path, help=f"the package {RUNTIME}, a .tgz file")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            runtime = check_runtime(options.runtime or fetch_runtime(Path(scratch)))
            voice = options.export or export_voice(options.model, Path(scratch))
            num_bytes = assemble(options.out, voice, runtime)
    except (BuildError, subprocess.CalledProcessError) as error:
        print(f"make_try_page: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: first download {num_bytes / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
