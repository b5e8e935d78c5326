"""The teacher reads the lines that have no codes yet, and they are encoded as they come.

No audio is kept. Reads the codes of `--resume` and its encoder; writes all codes to `--out`.
Workers read, this process encodes, on a GPU if there is one. With `--seconds` it stops after as
many, and another call, with that as `--resume`, goes on.
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

# Utterances encoded together. A GPU spends more on a pass of a new shape than on the pass itself:
# with 16, each of its own length, it encoded 38 lines a second, a tenth of what 13 workers read.
PER_PASS = 256 if DEVICE.type == "cuda" else 16
GRID = 8 * FRAME if DEVICE.type == "cuda" else FRAME  # lengths of passes are multiples of it
PASSES = 8  # read before they are encoded, so that those of like length are together
Lines = list[tuple[int, str]]
Spoken = list[tuple[int, np.ndarray, np.ndarray]]


@torch.inference_mode()
def encode_waves(trainer: CodecTrainer, waves: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Int16 audio in whole frames to codes [frames, books], those of like length together."""
    found: dict[int, np.ndarray] = {}
    order = sorted(range(len(waves)), key=lambda i: len(waves[i]))
    for begin in range(0, len(order), PER_PASS):
        chosen = order[begin : begin + PER_PASS]
        length = -(-len(waves[chosen[-1]]) // GRID) * GRID
        # A pass that is not full is so for its shape; two utterances make one of two, not of 256.
        rows = PER_PASS if len(order) > PER_PASS else len(chosen)
        samples = torch.zeros(rows, length, dtype=torch.int16)
        for row, i in enumerate(chosen):
            samples[row, : len(waves[i])] = torch.from_numpy(waves[i])
        codes = trainer.encode(samples.to(DEVICE).float() / 32768).to(torch.int16).cpu().numpy()
        found |= {i: codes[row, : len(waves[i]) // FRAME] for row, i in enumerate(chosen)}
    return [found[i] for i in range(len(waves))]


def gather(spoken: Iterable[Spoken], count: int) -> Iterator[Spoken]:
    """The same utterances, `count` or more at a time."""
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
    """One worker."""
    teacher = Teacher(data, speaker)
    while True:
        results.put(list(read_lines(teacher, jobs.get())))


def ahead(spoken: Iterable[Spoken]) -> Iterator[Spoken]:
    """The same, taken by a thread of its own: the workers never wait for the encoding."""
    taken: queue.SimpleQueue[Spoken | BaseException | None] = queue.SimpleQueue()

    def take() -> None:
        try:
            for part in spoken:
                taken.put(part)
            taken.put(None)
        except BaseException as error:  # raised where it is read
            taken.put(error)

    threading.Thread(target=take, daemon=True).start()
    while (part := taken.get()) is not None:
        if isinstance(part, BaseException):
            raise part
        yield part


def spoken_lines(data: SimpleNamespace, lines: Lines, seconds: float | None) -> Iterator[Spoken]:
    """What the workers read, in the order in which they are done, within the time."""
    until = time.monotonic() + (seconds or float("inf"))
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    context = multiprocessing.get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    starts = range(0, len(lines), data.lines_per_shard)
    for begin in starts:
        jobs.put(lines[begin : begin + data.lines_per_shard])
    told = (data, lines[0][0] // SPEAKER, jobs, results)
    workers = [
        context.Process(target=_read, args=told, daemon=True) for _ in range(data.num_workers)
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
    jobs.cancel_join_thread()  # what nobody will read need not be sent


def _wait(results: Any, workers: list[Any]) -> Spoken:
    while True:
        try:
            return results.get(timeout=2)  # type: ignore[no-any-return]
        except queue.Empty:
            if not all(worker.is_alive() for worker in workers):
                raise SystemExit("a worker ended; what it said is above") from None


def join(parts: list[Codes]) -> Codes:
    """One after another, without leads; the first brings the held-out utterances."""
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
    """What comes after the last line that the speaker has read, or after the dev lines."""
    first = speaker * SPEAKER
    done = known.lines[known.lines // SPEAKER == speaker]
    begin = int(done.max()) + 1 - first if len(done) else data.num_dev
    lines = list(enumerate(all_lines(data), start=first))[begin:]
    return lines[: data.max_lines or None]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--speaker", type=int, default=0, help="its place in data.speakers")
    options.set_defaults(resume=Path("build/checkpoints"))
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set)
    data, known = settings.data, encode.read(args.resume)
    if not (lines := unread(data, known, args.speaker)):
        raise SystemExit(f"{data.speakers[args.speaker]} has read every line of {data.lines}")
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
