"""Milliseconds a step of each stage in several variants, from shards and codes that are there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch

from recipes.mini_voice import encode, talker_files, train_codec, train_gan, train_talker
from recipes.mini_voice.common import Step, begin_stage, load_half
from recipes.mini_voice.rows import build_examples
from recipes.mini_voice.settings import load_settings, parser
from recipes.mini_voice.snake import use_fast_snake
from recipes.mini_voice.store import Store
from vivace.text.tokenizer import TextTokenizer


def measure(name: str, make: Callable[[], Step], count: int = 40) -> None:
    try:
        begun = time.perf_counter()
        step = make()
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        ready = time.perf_counter() - begun
        begun = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        spent = 1000 * (time.perf_counter() - begun) / count
        peak = torch.cuda.max_memory_allocated() / 2**30
        values = {key: round(float(value), 3) for key, value in step.outputs.items()}
        print(
            f"BENCH {name}: {spent:.2f} ms a step, ready in {ready:.1f} s, {peak:.1f} GiB, "
            f"{values}",
            flush=True,
        )
    except Exception as error:
        print(f"BENCH {name}: failed, {type(error).__name__}: {error}", flush=True)


def codec_step(settings: SimpleNamespace, store: Store, **changes: object) -> Step:
    begin_stage()
    for key, value in changes.items():
        setattr(settings.train_codec, key, value)
    stage = train_codec.Stage(settings, store, train_codec.build(settings))
    return Step(
        "codec", lambda: stage.step(is_quantised=True), stage.reset, [stage.trainer], use_graph=True
    )


def gan_step(settings: SimpleNamespace, store: Store, **changes: object) -> Step:
    begin_stage()
    for key, value in changes.items():
        setattr(settings.train_gan, key, value)
    torch.backends.cudnn.benchmark = settings.train_gan.benchmark
    decoder = train_codec.build(settings).decoder
    load_half(Path(settings.train_gan.codes) / "decoder.safetensors", decoder)
    stage = train_gan.Stage(settings, store, decoder)
    modules = [stage.decoder, stage.judges, stage.listener]
    return Step("gan", stage.step, stage.reset, modules, use_graph=True)


def profile(step: Step, count: int = 5) -> None:
    """The kernels of a captured step that take longest."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(count):
            step()
        torch.cuda.synchronize()
    kernels = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in kernels) / count / 1000
    print(f"PROFILE {total:.2f} ms in {sum(r.count for r in kernels) / count:.0f} kernels a step")
    for row in kernels[:28]:
        spent = row.self_device_time_total / count / 1000
        print(f"  {spent:6.3f} ms {row.count / count:5.0f} x {row.key[:110]}", flush=True)


def bench_codec(fresh: Callable[[], SimpleNamespace]) -> None:
    store = Store(fresh().data, fresh().codec.num_quantizers)
    store.wait(complete=True, timeout=5)
    for precision in ("bf16", "tf32"):
        measure(f"codec {precision}", lambda p=precision: codec_step(fresh(), store, precision=p))
    measure("codec bf16 B16", lambda: codec_step(fresh(), store, batch=16, num_starts=4))


GAN_VARIANTS: list[dict[str, object]] = [
    {},
    {"precision": "bf16"},
    {"period_widths": [32, 64, 128, 256, 256]},
    {"resolution_width": 64},
    {"batch": 24, "num_starts": 6},
]


def bench_gan(fresh: Callable[[], SimpleNamespace]) -> None:
    known = encode.read(Path(fresh().train_gan.codes)).by_line()
    store = Store(fresh().data, fresh().codec.num_quantizers, known)
    store.wait(complete=True, timeout=2)
    for changes in GAN_VARIANTS:
        measure(f"gan {changes}", lambda c=changes: gan_step(fresh(), store, **c))
    profile(gan_step(fresh(), store))


def bench_talker(fresh: Callable[[], SimpleNamespace]) -> None:
    settings = fresh()
    tokenizer = TextTokenizer.from_folder(Path(settings.tokenizer.folder))
    found = encode.read(Path(settings.train_talker.codes))
    begin_stage()
    talker = talker_files.build(settings, tokenizer)
    examples = build_examples(
        found, tokenizer, talker.config, settings, range(found.num_dev, len(found.lines))
    )
    stage = train_talker.Stage(settings, talker, found)
    data = stage.load(examples)
    for bucket in stage.buckets(examples)[::3]:
        measure(
            f"talker {bucket.length} x {bucket.batch}",
            lambda b=bucket: Step(
                "talker", lambda: stage.step(data, b), stage.reset, [talker], use_graph=True
            ),
        )


STAGES = {"codec": bench_codec, "gan": bench_gan, "talker": bench_talker}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    args = options.parse_args()
    use_fast_snake()
    for name in args.stages:
        STAGES[name](lambda: load_settings(args.smoke, args.set))


if __name__ == "__main__":
    main()
