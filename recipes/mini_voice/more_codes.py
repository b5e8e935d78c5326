"""Synthesize and encode the lines that have no codes yet.

Audio is not kept. Reads codes and encoder from `--resume` and writes all codes to `--out`. Worker
processes synthesize; this process encodes, on a GPU if available. After `--seconds` it stops; a
later call with its output as `--resume` continues.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from recipes.mini_voice import encode
from recipes.mini_voice.codec_model import CodecTrainer
from recipes.mini_voice.common import DEVICE
from recipes.mini_voice.encode import Codes
from recipes.mini_voice.lines import SPEAKER, all_lines
from recipes.mini_voice.settings import FRAME, SAMPLE_RATE, load_settings, parser
from recipes.mini_voice.synthesize import Teacher, read_lines
from recipes.mini_voice.train_codec import build, restore

# Utterances per pass. On a GPU a new shape costs more than the pass itself: with 16 utterances of a
# new length, it encoded 38 lines per second, a tenth of what 13 workers synthesize.
PER_PASS = 256 if DEVICE.type == "cuda" else 16
GRID = 8 * FRAME if DEVICE.type == "cuda" else FRAME  # lengths of passes are multiples of this
PASSES = 8  # passes that are collected and sorted by length before encoding
Lines = list[tuple[int, str]]
Spoken = list[tuple[int, np.ndarray, np.ndarray]]


@torch.inference_mode()
def encode_waves(trainer: CodecTrainer, waves: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Encode int16 audio in whole frames to codes [frames, books], batched by length."""
    found: dict[int, np.ndarray] = {}
    order = sorted(range(len(waves)), key=lambda i: len(waves[i]))
    for begin in range(0, len(order), PER_PASS):
        chosen = order[begin : begin + PER_PASS]
        length = -(-len(waves[chosen[-1]]) // GRID) * GRID
        # A partly filled pass is padded to a common shape, but two utterances do not become 256.
        rows = PER_PASS if len(order) > PER_PASS else len(chosen)
        samples = torch.zeros(rows, length, dtype=torch.int16)
        for row, i in enumerate(chosen):
            samples[row, : len(waves[i])] = torch.from_numpy(waves[i])
        codes = trainer.encode(samples.to(DEVICE).float() / 32768).to(torch.int16).cpu().numpy()
        found |= {i: codes[row, : len(waves[i]) // FRAME] for row, i in enumerate(chosen)}
    return [found[i] for i in range(len(waves))]


def gather(spoken: Iterable[Spoken], count: int) -> Iterator[Spoken]:
    """Group the utterances into lists of at least `count`."""
    found: Spoken = []
    for part in spoken:
        found += part
        if len(found) >= count:
            yield found
            found = []
    if found:
        yield found


def codes_of(trainer: CodecTrainer, spoken: Spoken) -> Codes:
    kept, waves, labels = zip(*spoken, strict=True)
    codes = encode_waves(trainer, waves)
    return Codes(
        np.concatenate(codes),
        np.concatenate(labels),
        np.asarray(kept, np.int32),
        np.asarray([len(c) for c in codes]),
        num_dev=0,
    )


def _read(data: SimpleNamespace, speaker: int, jobs: Any, results: Any) -> None:
    """The main function of a worker process."""
    teacher = Teacher(data, speaker)
    while True:
        results.put(list(read_lines(teacher, jobs.get())))


def ahead(spoken: Iterable[Spoken]) -> Iterator[Spoken]:
    """Prefetch the parts in a thread, so that the workers never wait for the encoder."""
    taken: queue.SimpleQueue[Spoken | BaseException | None] = queue.SimpleQueue()

    def take() -> None:
        try:
            for part in spoken:
                taken.put(part)
            taken.put(None)
        except BaseException as error:  # raised again in the consumer
            taken.put(error)

    threading.Thread(target=take, daemon=True).start()
    while (part := taken.get()) is not None:
        if isinstance(part, BaseException):
            raise part
        yield part


def spoken_lines(data: SimpleNamespace, lines: Lines, seconds: float | None) -> Iterator[Spoken]:
    """The synthesized lines in order of completion, within the time limit."""
    until = time.monotonic() + (seconds or float("inf"))
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    context = multiprocessing.get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    starts = range(0, len(lines), data.lines_per_shard)
    for begin in starts:
        jobs.put(lines[begin : begin + data.lines_per_shard])
    arguments = (data, lines[0][0] // SPEAKER, jobs, results)
    workers = [
        context.Process(target=_read, args=arguments, daemon=True) for _ in range(data.num_workers)
    ]
    for worker in workers:
        worker.start()
    for number in range(1, len(starts) + 1):
        if spoken := _wait(results, workers):
            yield spoken
        if number % 10 == 0:
            print(f"{number} of {len(starts)} parts", flush=True)
        if time.monotonic() > until:
            break
    for worker in workers:
        worker.terminate()
    jobs.cancel_join_thread()  # unread jobs need not be sent


def _wait(results: Any, workers: list[Any]) -> Spoken:
    while True:
        try:
            return results.get(timeout=2)
        except queue.Empty:
            if not all(worker.is_alive() for worker in workers):
                raise SystemExit("a worker process exited; see its output above") from None


def join(parts: list[Codes]) -> Codes:
    """Concatenate without leads. The held-out utterances come from the first."""
    sizes = [int(part.frames.sum()) for part in parts]
    pairs = list(zip(parts, sizes, strict=True))
    return Codes(
        np.concatenate([part.codes[:size] for part, size in pairs]),
        np.concatenate([part.labels[: 2 * size] for part, size in pairs]),
        np.concatenate([part.lines for part in parts]),
        np.concatenate([part.frames for part in parts]),
        parts[0].num_dev,
    )


def unread(data: SimpleNamespace, known: Codes, speaker: int) -> Lines:
    """The lines after the last one of this speaker, or after the dev lines."""
    first = speaker * SPEAKER
    done = known.lines[known.lines // SPEAKER == speaker]
    begin = int(done.max()) + 1 - first if len(done) else data.num_dev
    lines = list(enumerate(all_lines(data), start=first))[begin:]
    return lines[: data.max_lines or None]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--speaker", type=int, default=0, help="index in data.speakers")
    options.set_defaults(resume=Path("build/checkpoints"))
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set)
    data, known = settings.data, encode.read(args.resume)
    if not (lines := unread(data, known, args.speaker)):
        raise SystemExit(f"{data.speakers[args.speaker]} has codes for every line of {data.lines}")
    trainer = build(settings).eval()
    restore(trainer, args.resume)
    read = spoken_lines(data, lines, args.seconds)
    parts, begun = [], time.monotonic()
    for many in gather(ahead(read), PER_PASS * PASSES):
        began = time.monotonic()
        parts.append(codes_of(trainer, many))
        rate = len(many) / (time.monotonic() - began)
        print(f"{began - begun:.0f} s: {len(many)} encoded, {rate:.0f} a second", flush=True)
    found = join([known, *parts])
    encode.write(found, args.out)
    hours = (found.frames.sum() - known.frames.sum()) * FRAME / SAMPLE_RATE / 3600
    print(f"{len(found.lines)} utterances, {hours:.1f} hours of them new")


if __name__ == "__main__":
    main()
