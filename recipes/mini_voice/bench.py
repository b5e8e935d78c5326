"""Milliseconds a step of each stage in several variants, from shards and codes that are there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch

from recipes.mini_voice import encode, train_codec, train_gan, train_talker
from recipes.mini_voice.common import Step, begin_stage
from recipes.mini_voice.rows import build_examples
from recipes.mini_voice.settings import load_settings, parser
from recipes.mini_voice.snake import use_fast_snake
from recipes.mini_voice.store import Store
from vivace.text.tokenizer import TextTokenizer


def measure(name: str, make: Callable[[], Step], count: int = 40) -> None:
    try:
        step = make()
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        spent = 1000 * (time.perf_counter() - begun) / count
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"BENCH {name}: {spent:.2f} ms a step, peak {peak:.1f} GiB", flush=True)
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


def gan_step(
    settings: SimpleNamespace, store: Store, codes: torch.Tensor, **changes: object
) -> Step:
    begin_stage()
    for key, value in changes.items():
        setattr(settings.train_gan, key, value)
    stage = train_gan.Stage(settings, store, train_codec.build(settings).decoder, codes)
    return Step("gan", stage.step, stage.reset, [stage.decoder, stage.judges], use_graph=True)


def main() -> None:
    args = parser(__doc__).parse_args()
    settings = load_settings(args.smoke, args.set)
    fresh = lambda: load_settings(args.smoke, args.set)  # noqa: E731
    sized = lambda dim: load_settings(args.smoke, [*args.set, f"codec.decoder_dim={dim}"])  # noqa: E731
    store = Store(settings.data)
    store.wait(complete=True, timeout=5)
    use_fast_snake()
    codes = torch.zeros(
        store.train.num_frames, settings.codec.num_quantizers, dtype=torch.int16,
        device=store.train.audio.device,
    )  # fmt: skip
    for precision in ("bf16", "tf32"):
        measure(f"codec {precision}", lambda p=precision: codec_step(fresh(), store, precision=p))
    measure("codec bf16 B16", lambda: codec_step(fresh(), store, precision="bf16", batch=16))
    for dim in (256, 384):
        measure(f"codec bf16 dim {dim}", lambda d=dim: codec_step(sized(d), store))
        measure(f"gan tf32 dim {dim}", lambda d=dim: gan_step(sized(d), store, codes))
    for precision in ("tf32", "bf16"):
        measure(
            f"gan {precision}", lambda p=precision: gan_step(fresh(), store, codes, precision=p)
        )
    measure(
        "gan tf32, small judges",
        lambda: gan_step(
            fresh(), store, codes, period_widths=[16, 32, 64, 128, 128], resolution_width=16
        ),
    )
    measure("gan tf32 B12", lambda: gan_step(fresh(), store, codes, batch=12))
    config = settings.train_talker
    tokenizer = TextTokenizer.from_folder(Path(settings.tokenizer.folder))
    found = encode.read(Path(config.codes))
    begin_stage()
    talker = train_talker.build(settings, tokenizer)
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


if __name__ == "__main__":
    main()
