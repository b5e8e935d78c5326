"""Train talker and predictor on the codes of `encode`; writes talker_{a,b}.safetensors.

Examples are sorted into buckets by their number of rows, with one captured step per bucket.
`--take-over FOLDER` continues from a run that is still training there: this run prepares its
examples first and then stops the other one, so that the GPU does not wait.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from torch import Tensor

from recipes.mini_voice import encode
from recipes.mini_voice.common import BEGUN, Log, Step, TimeBox, begin_stage, cosine, set_lr
from recipes.mini_voice.lines import SPEAKER
from recipes.mini_voice.rows import Examples, build_examples
from recipes.mini_voice.settings import load_settings, parser
from recipes.mini_voice.speak import write_speech
from recipes.mini_voice.talker_files import build, load, save
from recipes.mini_voice.talker_stage import Bucket, Stage
from vivace.model.talker import Talker
from vivace.text.tokenizer import TextTokenizer

STOP = "stop"  # a file that requests a run to stop
DONE = "done"  # a file that exists when the weights are written


def stop(folder: Path) -> None:
    """Stop the run in `folder` and wait for its weights."""
    (folder / STOP).touch()
    while not (folder / DONE).exists():
        time.sleep(0.1)


def divide(codes: encode.Codes, settings: SimpleNamespace) -> tuple[list[list[int]], list[int]]:
    """Held-out utterances of every speaker, and training utterances."""
    held_out: dict[int, list[int]] = {}
    trained = []
    for utterance, number in enumerate(codes.lines.tolist()):
        speaker, line = divmod(number, SPEAKER)
        if utterance < codes.num_dev or (speaker and line < settings.data.num_dev):
            held_out.setdefault(speaker, []).append(utterance)
        else:
            trained.append(utterance)
    most = settings.train_talker.num_dev
    return [own[:most] for _, own in sorted(held_out.items())], trained


def run(
    settings: SimpleNamespace, log: Log, out: Path, *, seconds: float | None = None,
    until: float | None = None, use_graph: bool = True, resume: Path | None = None,
    is_take_over: bool = False,
) -> None:  # fmt: skip
    begin_stage()
    random.seed(9)
    config = settings.train_talker
    tokenizer = TextTokenizer.from_folder(Path(settings.tokenizer.folder))
    codes = encode.read(Path(config.codes))
    talker = build(settings, tokenizer)
    begun = time.perf_counter()
    held_out, trained = divide(codes, settings)
    dev = [
        build_examples(codes, tokenizer, talker.config, settings, each, variants=1)
        for each in held_out
    ]
    train = build_examples(codes, tokenizer, talker.config, settings, trained)
    if is_take_over and resume is not None:
        stop(resume)
    if resume is not None:
        load(talker, resume)
    stage = Stage(settings, talker, codes)
    data, buckets = stage.load(train), stage.buckets(train)
    judge = Judge(stage, dev, log)
    log_size(log, talker, train, buckets, time.perf_counter() - begun)
    if until is not None:
        seconds = max(5.0, until - (time.perf_counter() - BEGUN))
    box = TimeBox(seconds or config.seconds)
    number = train_steps(stage, data, buckets, judge, box, out, use_graph=use_graph)
    save(talker, out)
    (out / DONE).touch()
    judge(steps=number)
    stage.dropout.is_on = False
    if config.num_samples:
        write_speech(settings, talker, tokenizer, codes, out, log)


class Judge:
    """Logs the losses on the held-out examples of every speaker."""

    def __init__(self, stage: Stage, dev: Sequence[Examples], log: Log) -> None:
        self.log = log
        self._stage, self._data = stage, [(stage.load(examples), examples) for examples in dev]

    def __call__(self, **values: int) -> None:
        for speaker, examples in enumerate(self._data):
            name = ("talker dev", f"talker dev, speaker {speaker}")[speaker > 0]
            self.log(name, **values, **self._stage.evaluate(*examples))


def log_size(
    log: Log, talker: Talker, train: Examples, buckets: Sequence[Bucket], build_s: float
) -> None:
    count = {
        "talker": sum(p.numel() for p in talker.parameters()),
        "predictor": sum(p.numel() for p in talker.code_predictor.parameters()),
    }
    sizes = str([(b.length, b.batch, b.count) for b in buckets])
    num_rows = len(train.text)
    log(
        "talker", parameters=str(count), examples=len(train.lengths), rows=num_rows,
        buckets=sizes, build_s=build_s,
    )  # fmt: skip


def train_steps(
    stage: Stage, data: dict[str, Tensor], buckets: Sequence[Bucket], judge: Judge,
    box: TimeBox, out: Path, *, use_graph: bool,
) -> int:  # fmt: skip
    """Train until the time is over or a file requests the end. Returns the number of steps."""
    config, talker = stage.config, stage.talker
    set_lr(stage.optimizer, 1e-6)
    steps = [
        Step(
            f"talker {bucket.length}x{bucket.batch}", partial(stage.step, data, bucket),
            stage.reset, [talker, stage.phonemes], use_graph=use_graph,
        )
        for bucket in reversed(buckets)
    ][::-1]  # fmt: skip
    weights = [bucket.count / bucket.batch for bucket in buckets]
    number, marked, mark, evaluated = 0, 0, box.elapsed, 0.0
    while (progress := box.progress) < 1 and not (out / STOP).exists():
        rate = cosine(progress, number, config.warmup_steps, config.final_lr)
        set_lr(stage.optimizer, config.lr * rate)
        outputs = random.choices(steps, weights)[0]()
        number += 1
        if number % 200 == 0 or number < 4:
            values = {name: float(value) for name, value in outputs.items()}
            step_ms = 1000 * (box.elapsed - mark) / max(1, number - marked)
            marked, mark = number, box.elapsed
            judge.log("talker", step=number, ms=step_ms, **values)
        if progress > evaluated + 0.1:
            evaluated = progress
            judge(step=number)
            save(talker, out)
    return number


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--until", type=float, help="time limit in seconds")
    options.add_argument("--take-over", type=Path, metavar="FOLDER")
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set)
    run(
        settings, Log(args.out / "log.jsonl"), args.out, seconds=args.seconds, until=args.until,
        use_graph=not args.no_graph, resume=args.take_over or args.resume,
        is_take_over=args.take_over is not None,
    )  # fmt: skip


if __name__ == "__main__":
    main()
