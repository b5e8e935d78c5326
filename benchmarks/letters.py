"""Counts how often the embedded voice reads abbreviations and one-syllable texts correctly.

    pip install -e ".[quality]"
    python benchmarks/letters.py --json benchmarks/results/letters-mini.json

Every text is spoken with seeds 1 to 4, with the shipped `letter_names` (docs/embedded-voice.md) and
without them. A run is right if Whisper-base (benchmarks/judges.py) transcribes it without a word
error.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from words import count_errors

from vivace import TTS
from vivace.checkpoint import EMBEDDED
from vivace.cli.bench.machine import machine

Recognise = Callable[[NDArray[np.float32], int], str]
SEEDS = (1, 2, 3, 4)
TEXTS = (
    "AI wrote it.",
    "The AI wrote it.",
    "He asked an AI about it.",
    "AC power is out.",
    "I need an ATM now.",
    "She has an MA degree.",
    "A.M.",
    "The train leaves at nine A.M.",
    "We like AAA games.",
    "The train leaves at nine P.M.",
    "He lives in the U.S. now.",
    "She moved to the USA.",
    "Turn off the TV.",
    "The CEO is here.",
    "The FBI called.",
    "Show me your ID.",
    "You.",
    "You are.",
)


def main() -> None:
    arguments = parse_arguments()
    from judges import Recogniser

    recognise = Recogniser(threads=1)
    with tempfile.TemporaryDirectory() as folder:
        plain = copy_without_letter_names(Path(folder) / "plain")
        runs = {
            "with_letter_names": speak(EMBEDDED, recognise, arguments.texts),
            "without": speak(plain, recognise, arguments.texts),
        }
    results: list[dict[str, Any]] = [
        {"text": text, **{kind: found[text] for kind, found in runs.items()}}
        for text in runs["without"]
    ]
    report = {
        "benchmark": "letters",
        "machine": machine(),
        "judge": "Whisper-base int8 (faster-whisper, beam 5)",
        "seeds": len(SEEDS),
        "results": results,
    }
    for row in results:
        print(f"{row['text']:<32} {row['without']['right']} {row['with_letter_names']['right']}")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=len(TEXTS), help="number of texts")
    parser.add_argument("--json", type=Path, help="where to write the report")
    return parser.parse_args()


def copy_without_letter_names(folder: Path) -> Path:
    shutil.copytree(EMBEDDED, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    del config["reading_config"]["letter_names"]
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


def speak(folder: Path, recognise: Recognise, num_texts: int) -> dict[str, dict[str, Any]]:
    """The number of right runs and all transcripts, by text."""
    found: dict[str, dict[str, Any]] = {}
    with TTS.load(folder, device="cpu") as tts:
        for text in TEXTS[:num_texts]:
            audios = [tts.speak(text, seed=seed) for seed in SEEDS]
            transcripts = [recognise(audio.samples, audio.sample_rate) for audio in audios]
            num_right = sum(count_errors(text, each).errors == 0 for each in transcripts)
            found[text] = {"right": num_right, "transcripts": transcripts}
    return found


if __name__ == "__main__":
    main()
