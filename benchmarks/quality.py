"""Measures speech quality of a model: word errors, naturalness, speaker similarity and duration.

    python benchmarks/quality.py speak benchmarks/texts/hard.txt --out build/hard
    python benchmarks/quality.py judge build/hard --json benchmarks/results/quality-hard.json
    python benchmarks/quality.py table benchmarks/results/quality-*.json --png quality.png

- `speak` records every line of a text file. `--teacher FOLDER` uses an unpacked hibari-tts wheel
  instead of a model.
- `judge` rates the recordings and needs the packages of benchmarks/judges.py. `--reference` names
  recordings of the same lines for speaker similarity and duration.
- `collect` makes such a folder from arrays named GROUP_LINE in .npz files.

`speak` and `judge` resume where they stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from quality_figures import summarise
from words import count_errors

Samples = np.ndarray[Any, np.dtype[np.float32]]
Row = dict[str, Any]

MANIFEST, VERDICTS, VOICE = "manifest.jsonl", "verdicts.jsonl", "voice.json"
SAMPLE_RATE = 24_000


def main() -> None:
    arguments = parse_arguments()
    arguments.run(arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("speak", help="texts to a folder of recordings")
    command.set_defaults(run=speak)
    command.add_argument("texts", type=Path, help="one text per line")
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--model", help="a folder or hub id; default: the embedded voice")
    command.add_argument("--weights", default="full", help="full, fp8")
    command.add_argument("--voice")
    command.add_argument("--device", default="auto")
    command.add_argument("--layout", choices=("whole", "streamed"), help="default: the model's own")
    command.add_argument("--live", choices=("word", "sentence"), help="feed the text word by word")
    command.add_argument("--temperature", type=float, help="default: the model's own")
    command.add_argument("--teacher", type=Path, help="use this unpacked hibari-tts wheel")
    command.add_argument("--limit", type=int, help="number of lines; default: all")
    command = commands.add_parser("collect", help="arrays of .npz files to a folder of recordings")
    command.set_defaults(run=collect)
    command.add_argument("files", type=Path, nargs="+")
    command.add_argument("--group", required=True)
    command.add_argument("--texts", type=Path, required=True, help="the text; LINE counts from 0")
    command.add_argument("--out", type=Path, required=True)
    command = commands.add_parser("judge", help="a folder of recordings to figures")
    command.set_defaults(run=judge)
    command.add_argument("folder", type=Path)
    command.add_argument("--reference", type=Path, help="recordings of another voice")
    command.add_argument("--json", type=Path, required=True)
    command.add_argument("--name", help="name of the row; default: the folder's name")
    command.add_argument("--threads", type=int, default=2)
    command.add_argument(
        "--without-texts", action="store_true", help="the worst lines by number, not by their words"
    )
    command = commands.add_parser("table", help="several results as a picture")
    command.set_defaults(run=draw_table)
    command.add_argument("results", type=Path, nargs="+")
    command.add_argument("--png", type=Path, required=True)
    return parser.parse_args()


# -- speaking -----------------------------------------------------------------------------------


def speak(arguments: argparse.Namespace) -> None:
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()[: arguments.limit]
    check_voice(arguments)
    say = teacher_voice(arguments.teacher) if arguments.teacher else model_voice(arguments)
    done = {row["line"] for row in read_rows(arguments.out / MANIFEST)}
    for line, text in enumerate(lines):
        if line not in done:
            began = time.perf_counter()
            samples, finish_reason = say(text, line)
            seconds = time.perf_counter() - began
            keep(arguments.out, line, text, samples, finish_reason, round(seconds, 3))


def check_voice(arguments: argparse.Namespace) -> None:
    """Refuse to continue a folder that another voice began: the figures would mix both."""
    from vivace.checkpoint import EMBEDDED

    folder = Path(arguments.teacher or arguments.model or EMBEDDED)
    endings = (".safetensors", ".onnx")
    weights = sorted(path for path in folder.rglob("*") if path.suffix in endings)
    voice = {
        "settings": [
            str(folder),
            arguments.voice,
            arguments.layout,
            arguments.live,
            arguments.temperature,
            *([] if arguments.weights == "full" else [arguments.weights]),
        ],
        "weights": [hashlib.sha256(path.read_bytes()).hexdigest() for path in weights],
    }
    path = arguments.out / VOICE
    if (arguments.out / MANIFEST).exists() and (
        not path.exists() or json.loads(path.read_text(encoding="utf-8")) != voice
    ):
        raise SystemExit(f"{arguments.out} has recordings of another voice; use another folder")
    arguments.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(voice), encoding="utf-8")


def model_voice(arguments: argparse.Namespace) -> Callable[[str, int], tuple[Samples, str]]:
    """Speak with the line number as the seed, so that a run can be repeated."""
    from vivace import TTS

    tts = TTS.load(arguments.model, device=arguments.device, weights=arguments.weights)
    assert tts.sample_rate == SAMPLE_RATE
    options: dict[str, Any] = {"voice": arguments.voice, "text_layout": arguments.layout}
    if arguments.live:
        options["live"] = arguments.live
    if arguments.temperature is not None:
        options["temperature"] = arguments.temperature

    def say(text: str, line: int) -> tuple[Samples, str]:
        written = iter(re.findall(r"\S+\s*", text)) if arguments.live else text
        audio = tts.speak(written, seed=line, **options)
        return audio.samples, audio.finish_reason

    return say


def teacher_voice(folder: Path) -> Callable[[str, int], tuple[Samples, str]]:
    sys.path.insert(0, str(folder))
    from hibari import Hibari

    teacher = Hibari(threads=1)
    return lambda text, line: (teacher(text, seed=line), "stop")


def collect(arguments: argparse.Namespace) -> None:
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    done = {row["line"] for row in read_rows(arguments.out / MANIFEST)}
    for path in arguments.files:
        with np.load(path) as arrays:
            for name in arrays.files:
                group, _, line = name.rpartition("_")
                if group == arguments.group and int(line) not in done:
                    samples = arrays[name].astype(np.float32) / 32768
                    keep(arguments.out, int(line), lines[int(line)], samples, "stop", None)


def keep(
    out: Path, line: int, text: str, samples: Samples, finish_reason: str, wall_s: float | None
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with wave.open(str(out / f"{line:04d}.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes((np.clip(samples, -1, 1) * 32767).round().astype("<i2").tobytes())
    row = {"line": line, "text": text, "seconds": len(samples) / SAMPLE_RATE}
    append_row(out / MANIFEST, {**row, "finish_reason": finish_reason, "wall_s": wall_s})


# -- judging ------------------------------------------------------------------------------------


def judge(arguments: argparse.Namespace) -> None:
    path = arguments.folder / VERDICTS
    done = {row["line"] for row in read_rows(path)}
    spoken = {row["line"]: row for row in read_rows(arguments.folder / MANIFEST)}
    missing = [row for line, row in spoken.items() if line not in done]
    for verdict in verdicts(arguments, missing):
        append_row(path, verdict)
    rows = [count(spoken[row["line"]] | row) for row in read_rows(path) if row["line"] in spoken]
    if not rows:
        raise SystemExit(f"{arguments.folder} has no recordings; run `speak` first")
    from vivace.cli.bench.machine import machine  # `speak --teacher` needs no torch

    worst = sorted(rows, key=lambda row: -row["errors"] / row["words"])[:12]
    hidden = {"text", "transcript"} if arguments.without_texts else set()
    report = {
        "benchmark": "quality",
        "name": arguments.name or arguments.folder.name,
        "machine": machine(),
        "judges": "Whisper-base int8 (faster-whisper, beam 5), DistillMOS v7, Resemblyzer 0.1.4",
        "figures": summarise(rows),
        "worst": [{k: v for k, v in row.items() if k not in hidden} for row in worst],
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(report["figures"]))


def verdicts(arguments: argparse.Namespace, rows: list[Row]) -> Iterator[Row]:
    """Judge each recording. The judges are loaded only if a recording is not judged yet."""
    if not rows:
        return
    from judges import NaturalnessJudge, Recogniser, SpeakerJudge, has_speaker_judge

    recognise, rate = Recogniser(arguments.threads), NaturalnessJudge()
    embed = SpeakerJudge() if arguments.reference and has_speaker_judge() else None
    for row in rows:
        samples = read_wav(arguments.folder / f"{row['line']:04d}.wav")
        transcript = recognise(samples, SAMPLE_RATE) if len(samples) else ""
        verdict: Row = {"line": row["line"], "transcript": transcript, "mos": None}
        if len(samples):
            verdict["mos"] = round(rate(samples, SAMPLE_RATE), 3)
        if arguments.reference:
            other = read_wav(arguments.reference / f"{row['line']:04d}.wav")
            verdict |= {"span_s": span(samples), "reference_s": span(other)}
            if embed is not None and len(samples):
                likeness = embed(samples, SAMPLE_RATE) @ embed(other, SAMPLE_RATE)
                verdict["likeness"] = round(float(likeness), 3)
        yield verdict


def count(row: Row) -> Row:
    found = count_errors(row["text"], row["transcript"])
    return row | {"errors": found.errors, "words": max(1, found.words)}


def span(samples: Samples) -> float:
    """Seconds from the first sound to the last, without the silence around them."""
    loud = np.flatnonzero(np.abs(samples) > 0.01 * np.abs(samples).max(initial=1e-6))
    return round(float(loud[-1] - loud[0] + 1) / SAMPLE_RATE, 3) if len(loud) else 0.0


# -- files --------------------------------------------------------------------------------------


def read_wav(path: Path) -> Samples:
    with wave.open(str(path), "rb") as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
    found: Samples = samples.astype(np.float32) / np.float32(32768)
    return found


def read_rows(path: Path) -> list[Row]:
    """All rows. An incomplete last row is removed from the file."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        path.write_bytes(whole)
    return [json.loads(line) for line in whole.decode().split("\n")[:-1]]


def append_row(path: Path, row: Row) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


COLUMNS = {
    "lines": "lines",
    "wer_percent": "WER %",
    "distillmos": "DistillMOS",
    "runaways_and_lost_percent": "runaways\n+ lost %",
    "likeness": "likeness",
    "duration_ratio_median": "duration\nratio",
}


def draw_table(arguments: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    reports = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.results]
    cells = [[cell(report["figures"][key]) for key in COLUMNS] for report in reports]
    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.35 * len(cells)), dpi=150)
    axes.axis("off")
    names = [report["name"] for report in reports]
    table = axes.table(cells, rowLabels=names, colLabels=list(COLUMNS.values()), loc="center")
    table.scale(1, 1.5)
    for (row, _), box in table.get_celld().items():
        box.set_edgecolor("#cccccc")
        box.set_height(box.get_height() * (1.5 if row == 0 else 1))
    arguments.png.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.png, bbox_inches="tight")


def cell(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


if __name__ == "__main__":
    main()
