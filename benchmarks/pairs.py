"""Compares two voices on the same lines: word errors and naturalness with 95 % intervals.

    python benchmarks/quality.py speak benchmarks/texts/codes.txt --out build/old/codes
    python benchmarks/quality.py judge build/old/codes --json build/old/codes.json   # and build/new
    python benchmarks/pairs.py build/old/codes build/new/codes

Reads two folders with the results of `quality.py judge`. `texts/readings.tsv` lists other accepted
spellings of a text, for words that Whisper writes differently. The intervals are paired: the
bootstrap draws the same lines for both voices.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from intervals import NUM_DRAWS, interval
from quality import MANIFEST, VERDICTS, read_rows
from quality_figures import LOST
from words import Count, count_errors

Row = dict[str, Any]
Figures = np.ndarray[Any, np.dtype[np.float64]]  # [lines, (errors, words, mos)]

READINGS = Path(__file__).parent / "texts" / "readings.tsv"
ERRORS, WORDS, MOS = range(3)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    arguments = parser.parse_args()
    print(json.dumps(compare(arguments.old, arguments.new, accepted_readings()), indent=1))


def accepted_readings(path: Path = READINGS) -> dict[str, list[str]]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return {text: [text, *readings] for text, *readings in rows}


def compare(old: Path, new: Path, readings: dict[str, list[str]]) -> Row:
    """The figures over the lines that both folders have."""
    voices = judged(old, readings), judged(new, readings)
    lines = sorted(voices[0].keys() & voices[1].keys())
    if not lines:
        raise SystemExit(f"{old} and {new} have no judged line in common")
    pair = [np.array([voice[line] for line in lines]) for voice in voices]
    return {
        "lines": len(lines),
        "wer_percent": paired(pair, word_error_percent),
        "distillmos": paired(pair, lambda rows: float(rows[:, MOS].mean())),
        "lost": [int((rows[:, ERRORS] > LOST * rows[:, WORDS]).sum()) for rows in pair],
    }


def judged(folder: Path, readings: dict[str, list[str]]) -> dict[str, list[float]]:
    """Errors, words and naturalness of each text. Silence counts as naturalness 1."""
    texts = {row["line"]: row["text"] for row in read_rows(folder / MANIFEST)}
    found = {}
    for row in read_rows(folder / VERDICTS):
        text = texts[row["line"]]
        count = closest(readings.get(text, [text]), row["transcript"])
        found[text] = [count.errors, max(1, count.words), row["mos"] or 1.0]
    return found


def closest(readings: list[str], transcript: str) -> Count:
    counts = [count_errors(reading, transcript) for reading in readings]
    return min(counts, key=lambda count: (count.errors, -count.words))


def word_error_percent(rows: Figures) -> float:
    return float(100 * rows[:, ERRORS].sum() / rows[:, WORDS].sum())


def paired(pair: list[Figures], figure: Callable[[Figures], float]) -> Row:
    """A figure of both voices, and the difference (second minus first) with its interval."""
    old, new = pair
    rng = np.random.default_rng(1)
    draws = (rng.integers(0, len(old), len(old)) for _ in range(NUM_DRAWS))
    differences = [figure(new[drawn]) - figure(old[drawn]) for drawn in draws]
    return {
        "old": round(figure(old), 2),
        "new": round(figure(new), 2),
        "difference": round(figure(new) - figure(old), 2),
        "interval": interval(differences),
    }


if __name__ == "__main__":
    main()
