"""A whole codec sitting in one process: synthesis beside stage 1, encoding, stage 2, samples.

Later sittings go on with `--resume FOLDER`: with --codec-seconds 0 the encoder and the codebooks
stay as they are and only the adversarial stage runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from recipes.mini_voice import encode, train_codec, train_gan
from recipes.mini_voice.common import BEGUN, Log
from recipes.mini_voice.settings import FRAME, load_settings, parser
from recipes.mini_voice.store import Store
from vivace.model.codec_decoder import CodecDecoder
from vivace.model.conv import CausalState


def start_synthesis(args: SimpleNamespace) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "recipes.mini_voice.synthesize"]
    command += ["--smoke"] * args.smoke
    for item in args.set:
        command += ["--set", item]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})


@torch.no_grad()
def write_samples(store: Store, decoder: CodecDecoder, codes: torch.Tensor, path: Path) -> None:
    """Dev utterances as they were and after the codec, int16, in one file."""
    arrays = {}
    for index in range(min(24, len(store.dev.starts))):
        start, frames = store.dev.starts[index], store.dev.frames[index]
        line = store.dev.lines[index]
        made = decoder(codes[None, start : start + frames].long(), CausalState())[0]
        arrays[f"true_{line}"] = (
            store.dev.audio[start * FRAME : (start + frames) * FRAME].cpu().numpy()
        )
        arrays[f"made_{line}"] = (made.float() * 32767).round().to(torch.int16).cpu().numpy()
    np.savez(path, **arrays)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--codec-seconds", type=float)
    options.add_argument("--gan-seconds", type=float)
    options.add_argument("--until", type=float, help="seconds after which the GAN stage must end")
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set)
    log, use_graph = Log(args.out / "log.jsonl"), not args.no_graph
    synthesis = start_synthesis(args)
    store = Store(settings.data)
    if args.codec_seconds == 0:
        trainer = train_codec.build(settings)
        train_codec.restore(trainer, args.resume)
    else:
        trainer = train_codec.run(
            settings, store, log, args.out,
            seconds=args.codec_seconds, use_graph=use_graph, resume=args.resume,
        )  # fmt: skip
    store.wait(complete=True)
    log("encode", hours=store.hours, utterances=len(store.train.lines))
    dev = encode.encode_part(trainer, store.dev)
    train = encode.encode_part(trainer, store.train)
    encode.write(store, dev, train, args.out)
    used = [len(torch.unique(train[:, book])) for book in range(train.shape[1])]
    log("encode", frames=len(train), used=str(used))
    seconds = args.gan_seconds
    if args.until is not None:
        seconds = max(5.0, args.until - (time.perf_counter() - BEGUN) - 8.0)
    trainer.encoder.cpu()
    decoder = train_gan.run(
        settings, store, log, args.out, trainer.decoder, (dev, train),
        seconds=seconds, use_graph=use_graph, resume=args.resume,
    )  # fmt: skip
    write_samples(store, decoder, dev, args.out / "samples.npz")
    synthesis.wait()
    log(
        "done",
        peak_gib=torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0,
    )


if __name__ == "__main__":
    main()
