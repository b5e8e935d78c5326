"""Plots a training run: loss curves of log.jsonl, spectrograms of samples.npz.

    python -m recipes.mini_voice.curves --log log.jsonl … --samples samples.npz --out FOLDER

Needs matplotlib, which nothing else here does.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

SAMPLE_RATE = 24_000
WINDOW, HOP = 1024, 256


def read_curves(paths: list[Path]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Points (step, value) of every figure of every stage, one log after the other."""
    curves: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if "step" not in row:
                continue
            for name, value in row.items():
                if isinstance(value, float) and name not in ("t", "hours"):
                    curves[row["stage"]][name].append((row["step"], value))
    return curves


def spectrogram(samples: np.ndarray) -> np.ndarray:
    """Decibels [bins, time]."""
    padded = np.pad(samples.astype(np.float32) / 32768, WINDOW // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    magnitude = np.abs(np.fft.rfft(frames * np.hanning(WINDOW).astype(np.float32)))
    return 20 * np.log10(magnitude.T * (4 / WINDOW) + 1e-5)  # type: ignore[no-any-return]


def draw_curves(paths: list[Path], out: Path) -> None:
    from matplotlib import pyplot

    for stage, figures in read_curves(paths).items():
        rows = -(-len(figures) // 3)
        figure, axes = pyplot.subplots(rows, 3, figsize=(12, 2.6 * rows), squeeze=False)
        for axis, (name, points) in zip(axes.flat, figures.items(), strict=False):
            steps, values = zip(*points, strict=True)
            axis.plot(steps, values, linewidth=0.8)
            axis.set_title(name)
        figure.tight_layout()
        figure.savefig(out / f"curves_{stage}.png", dpi=90)


def draw_spectrograms(path: Path, out: Path, count: int) -> None:
    """Each utterance as it was and as it was made, one above the other."""
    from matplotlib import pyplot

    with np.load(path) as data:
        lines = [name.removeprefix("true_") for name in data.files if name.startswith("true_")]
        chosen = lines[:count]
        figure, axes = pyplot.subplots(2, len(chosen), figsize=(5 * len(chosen), 6), squeeze=False)
        for column, line in enumerate(chosen):
            for row, group in enumerate(("true", "made")):
                samples = data[f"{group}_{line}"]
                axes[row, column].imshow(
                    spectrogram(samples), origin="lower", aspect="auto", vmin=-90, vmax=-20,
                    extent=(0, len(samples) / SAMPLE_RATE, 0, SAMPLE_RATE / 2000),
                )  # fmt: skip
                axes[row, column].set_title(f"{group} {line}")
    figure.tight_layout()
    figure.savefig(out / "spectrograms.png", dpi=60)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--log", type=Path, nargs="+", default=[])
    options.add_argument("--samples", type=Path)
    options.add_argument("--count", type=int, default=3, help="utterances in the picture")
    options.add_argument("--out", type=Path, default=Path("build/mini_voice"))
    args = options.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    draw_curves(args.log, args.out)
    if args.samples is not None:
        draw_spectrograms(args.samples, args.out, args.count)


if __name__ == "__main__":
    main()
