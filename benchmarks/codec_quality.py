"""Quality of the codec's kernels: word errors and naturalness of the same codes.

    python benchmarks/codec_quality.py decode benchmarks/texts/hard.txt --first 41 --lines 26 \
        --kernels avx512 bf16 --out build/codec_quality
    python benchmarks/codec_quality.py judge build/codec_quality --kernels avx512 bf16 \
        --json benchmarks/results/codec-quality.json

`decode` speaks lines with the embedded voice, and decodes their codes with every set of kernels.
`judge` compares the first set with the others, with paired intervals. It needs the packages of
benchmarks/judges.py and may run on another machine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pairs import accepted_readings, compare
from quality import MANIFEST, VERDICTS, append_row, keep, read_rows, read_wav, verdicts
from report import write_report

from vivace import TTS
from vivace.backends.cpu.build import load_library
from vivace.backends.cpu.codec import KERNELS, NativeCodecDecoder
from vivace.checkpoint import EMBEDDED, load_codec
from vivace.cli.bench.machine import machine

FACTS = "machine.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("decode", help="texts to folders of recordings")
    command.set_defaults(run=decode)
    command.add_argument("texts", type=Path, help="one text per line")
    command.add_argument("--first", type=int, default=1, help="the line to begin with")
    command.add_argument("--lines", type=int, default=26, help="number of spoken lines")
    command.add_argument("--kernels", nargs="+", required=True, choices=KERNELS)
    command.add_argument("--out", type=Path, required=True)
    command = commands.add_parser("judge", help="folders of recordings to figures")
    command.set_defaults(run=judge, reference=None)
    command.add_argument("folder", type=Path)
    command.add_argument("--kernels", nargs="+", required=True, choices=KERNELS)
    command.add_argument("--threads", type=int, default=2)
    command.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.run(arguments)


def decode(arguments: argparse.Namespace) -> None:
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    codec = load_codec(EMBEDDED, torch.device("cpu"))
    library = load_library()
    decoders = {
        name: NativeCodecDecoder(codec.decoder, library, 1, name) for name in arguments.kernels
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / FACTS).write_text(json.dumps(machine()))
    with TTS.load(device="cpu") as tts:
        for line in range(arguments.first - 1, arguments.first - 1 + arguments.lines):
            codes = tts.speak(lines[line], seed=line, trim=False).codes
            for name, decoder in decoders.items():
                samples = decoder.decode(codes, decoder.new_state())
                keep(arguments.out / name, line, lines[line], samples, "stop", None)


def judge(arguments: argparse.Namespace) -> None:
    root, (exact, *others) = arguments.folder, arguments.kernels
    for name in arguments.kernels:
        arguments.folder = root / name
        done = {row["line"] for row in read_rows(arguments.folder / VERDICTS)}
        rows = read_rows(arguments.folder / MANIFEST)
        for verdict in verdicts(arguments, [row for row in rows if row["line"] not in done]):
            append_row(arguments.folder / VERDICTS, verdict)
    report = {
        "benchmark": "codec_quality",
        "machine": machine(),
        "decoded_on": json.loads((root / FACTS).read_text()),
        "judges": "Whisper-base int8 (faster-whisper, beam 5), DistillMOS v7",
        "exact": exact,
        "results": {name: measure(root / exact, root / name) for name in others},
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.json, report)
    print(json.dumps(report["results"]))


def measure(exact: Path, other: Path) -> dict[str, Any]:
    """The second folder against the first one."""
    paths = sorted(exact.glob("*.wav"))
    signal = np.concatenate([read_wav(path) for path in paths])
    error = np.concatenate([read_wav(other / path.name) for path in paths]) - signal
    size = float(np.linalg.norm(error))
    db = round(20 * float(np.log10(np.linalg.norm(signal) / size)), 1) if size else None  # equal
    return {"db": db, **compare(exact, other, accepted_readings())}


if __name__ == "__main__":
    main()
