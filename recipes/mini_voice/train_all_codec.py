"""Train the codec in one process: synthesis beside stage 1, encoding, stage 2.

Later runs use `train_gan` only: encoder, codebooks and codes stay unchanged.
"""

from __future__ import annotations

from pathlib import Path

import torch

from recipes.mini_voice import encode, train_codec, train_gan
from recipes.mini_voice.common import Log
from recipes.mini_voice.settings import load_settings, parser
from recipes.mini_voice.store import Store
from recipes.mini_voice.synthesize import STOP, start_synthesis


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--codec-seconds", type=float)
    options.add_argument("--as-read", action="store_true", help="another process synthesizes")
    options.add_argument("--wait", type=float, default=300.0, help="seconds more for synthesis")
    options.add_argument("--codec-only", action="store_true", help="without stage 2")
    options.add_argument("--until", type=float, help="time limit in seconds")
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set)
    log, use_graph = Log(args.out / "log.jsonl"), not args.no_graph
    synthesis = None if args.as_read else start_synthesis(args)
    store = Store(settings.data, settings.codec.num_quantizers)
    trainer = train_codec.run(
        settings, store, log, args.out,
        seconds=args.codec_seconds, use_graph=use_graph, resume=args.resume,
    )  # fmt: skip
    store.wait(complete=True, timeout=args.wait)
    store.close()
    (Path(settings.data.shards) / STOP).touch()
    log("encode", hours=store.hours, utterances=len(store.train.lines))
    for part in (store.dev, store.train):
        part.codes = encode.encode_part(trainer, part)
    encode.write(encode.of_store(store), args.out)
    used = [len(torch.unique(book)) for book in store.train.codes.T]
    log("encode", frames=len(store.train.codes), used=str(used))
    if not args.codec_only:
        trainer.encoder.cpu()
        train_gan.run(
            settings, store, log, args.out, trainer.decoder,
            until=args.until or settings.train_gan.seconds, use_graph=use_graph, resume=args.resume,
        )  # fmt: skip
    if synthesis is not None:
        synthesis.wait()
    log("done")


if __name__ == "__main__":
    main()
