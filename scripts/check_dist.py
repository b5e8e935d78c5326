"""Check the files and metadata of a built sdist and wheel, and that the installed wheel speaks.

    python -m build --outdir DIST && python scripts/check_dist.py DIST

The wheel is installed into a new environment that uses the dependencies of this one. It runs in an
empty folder without a network.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import wave
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "src/vivace/"
MAX_WHEEL_BYTES = 45_000_000
TRAINING_FILES = (".pt", ".pth", ".ckpt", ".pkl", ".optim", ".bin")
TRAINING_TENSOR = re.compile(r"optimizer|exp_avg|momentum|grad_scaler|(^|[._])ema([._]|$)")
NOWHERE = "http://127.0.0.1:9"  # the discard port: every network access fails
SPEAK = """
import vivace
assert vivace.__file__.startswith({folder!r}), vivace.__file__
with vivace.TTS.load(device="cpu") as tts:
    assert tts.speak("Hello.", seed=7).duration_s > 0.3
"""


class DistError(Exception):
    """A distribution lacks a file, has an extra one, or does not speak."""


def main() -> None:
    folder = Path(sys.argv[1])
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    tracked = set(_run("git", "ls-files", cwd=ROOT).splitlines())
    check_metadata(sdist, wheel)
    check_sdist(sdist, tracked)
    check_wheel(wheel, tracked)
    check_weights(wheel)
    with tempfile.TemporaryDirectory() as empty:
        check_speech(wheel, Path(empty))
    megabytes = [f"{path.stat().st_size / 1e6:.1f} MB" for path in (sdist, wheel)]
    print(f"{sdist.name}: {megabytes[0]}; {wheel.name}: {megabytes[1]}; the wheel speaks")


def check_metadata(*paths: Path) -> None:
    """The package index must accept the metadata and render the description."""
    _run(sys.executable, "-m", "twine", "check", "--strict", *paths)


def check_sdist(path: Path, tracked: set[str]) -> None:
    """The sdist must have exactly the tracked files."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if missing := sorted(tracked - names):
        raise DistError(f"{path.name} lacks {missing[:10]}")
    if surplus := sorted(name for name in names - tracked - {"PKG-INFO", ""} if "." in name):
        raise DistError(f"{path.name} has {surplus[:10]}, which git does not track")


def check_wheel(path: Path, tracked: set[str]) -> None:
    """The wheel must have the package, the embedded voice and the licences, and nothing else."""
    wanted = {name.removeprefix("src/") for name in tracked if name.startswith(PACKAGE)}
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = {name.rpartition("/")[2] for name in archive.namelist() if "/licenses/" in name}
    if names != wanted:
        raise DistError(f"{path.name} differs from {PACKAGE} in {sorted(names ^ wanted)[:10]}")
    if licences != {"LICENSE", "NOTICE"}:
        raise DistError(f"{path.name} carries the licences {sorted(licences)}")
    if path.stat().st_size > MAX_WHEEL_BYTES:
        raise DistError(f"{path.name} has {path.stat().st_size:,} bytes")


def check_weights(path: Path) -> None:
    """The wheel must not have training state: other weight files, or tensors of an optimizer."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(TRAINING_FILES):
                raise DistError(f"{path.name} has the training file {name}")
            if name.endswith(".safetensors"):
                with archive.open(name) as file:
                    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
                if surplus := sorted(filter(TRAINING_TENSOR.search, header)):
                    raise DistError(f"{name} in {path.name} has training state: {surplus[:10]}")


def check_speech(wheel: Path, folder: Path) -> None:
    """`vivace "Hello."` in an empty folder must write speech.wav and nothing else."""
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    site = Path(
        _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    # After the new environment's own: this one's dependencies, but none of its .pth files
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel)
    home, empty = folder / "home", folder / "empty"
    home.mkdir()
    empty.mkdir()
    environment = {
        "PATH": str(python.parent),
        "HOME": str(home),
        **dict.fromkeys(["http_proxy", "https_proxy", "HTTPS_PROXY", "HTTP_PROXY"], NOWHERE),
    }
    _run(python, "-c", SPEAK.format(folder=str(site)), cwd=empty, env=environment)
    if found := os.listdir(empty):
        raise DistError(f"speaking from Python left {found}")
    _run(python.parent / "vivace", "Hello.", "--device", "cpu", cwd=empty, env=environment)
    if os.listdir(empty) != ["speech.wav"]:
        raise DistError(f'vivace "Hello." left {os.listdir(empty)}, not speech.wav')
    with wave.open(str(empty / "speech.wav")) as file:
        if file.getframerate() != 24_000 or not any(file.readframes(file.getnframes())):
            raise DistError("speech.wav is silent")


def _run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        words = " ".join(map(str, command))
        raise DistError(f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
