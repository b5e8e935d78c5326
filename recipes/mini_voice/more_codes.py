"""The teacher reads the lines that have no codes yet, and they are encoded as they come: CPUs do.

No audio is kept. Reads the codes of `--resume` and its encoder; writes all codes to `--out`.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from recipes.mini_voice import encode
from recipes.mini_voice.codec_model import CodecTrainer
from recipes.mini_voice.encode import Codes
from recipes.mini_voice.lines import all_lines
from recipes.mini_voice.settings import FRAME, SAMPLE_RATE, load_settings, parser
from recipes.mini_voice.synthesize import Teacher, read_lines
from recipes.mini_voice.train_codec import build, restore

PER_PASS = 16  # utterances encoded together


@torch.inference_mode()
def encode_waves(trainer: CodecTrainer, waves: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Int16 audio in whole frames to codes [frames, books], those of like length together."""
    found: dict[int, np.ndarray] = {}
    order = sorted(range(len(waves)), key=lambda i: len(waves[i]))
    for begin in range(0, len(order), PER_PASS):
        chosen = order[begin : begin + PER_PASS]
        samples = torch.zeros(len(chosen), len(waves[chosen[-1]]))
        for row, i in enumerate(chosen):
            samples[row, : len(waves[i])] = torch.from_numpy(waves[i]).float() / 32768
        codes = trainer.encode(samples).to(torch.int16).numpy()
        found |= {i: codes[row, : len(waves[i]) // FRAME] for row, i in enumerate(chosen)}
    return [found[i] for i in range(len(waves))]


def codes_of(teacher: Teacher, trainer: CodecTrainer, lines: list[tuple[int, str]]) -> Codes:
    kept, waves, labels = zip(*read_lines(teacher, lines), strict=True)
    codes = encode_waves(trainer, waves)
    return Codes(
        np.concatenate(codes),
        np.concatenate(labels),
        np.asarray(kept, np.int32),
        np.asarray([len(c) for c in codes]),
        num_dev=0,
    )


def work(settings: SimpleNamespace, folder: Path, lines: list[tuple[int, str]]) -> Codes:
    """One worker's share."""
    torch.set_num_threads(1)
    teacher, trainer = Teacher(settings.data), build(settings).eval()
    restore(trainer, folder)
    size, parts = settings.data.lines_per_shard, []
    for begin in range(0, len(lines), size):
        parts.append(codes_of(teacher, trainer, lines[begin : begin + size]))
        print(f"{min(begin + size, len(lines))} of {len(lines)}", flush=True)
    return join(parts)


def join(parts: list[Codes]) -> Codes:
    """One after another; the first brings the held-out utterances."""
    names = ("codes", "labels", "lines", "frames")
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Codes(**arrays, num_dev=parts[0].num_dev)


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(resume=Path("build/checkpoints"))
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set)
    data, known = settings.data, encode.read(args.resume)
    lines = list(enumerate(all_lines(data)))[known.lines.max() + 1 :][: data.max_lines or None]
    os.environ["OMP_NUM_THREADS"] = "1"
    shares = [lines[i :: data.num_workers] for i in range(min(data.num_workers, len(lines)))]
    with ProcessPoolExecutor(data.num_workers, multiprocessing.get_context("spawn")) as pool:
        found = join([known, *pool.map(partial(work, settings, args.resume), shares)])
    encode.write(found, args.out)
    hours = (found.frames.sum() - known.frames.sum()) * FRAME / SAMPLE_RATE / 3600
    print(f"{len(found.lines)} utterances, {hours:.1f} hours of them new")


if __name__ == "__main__":
    main()
