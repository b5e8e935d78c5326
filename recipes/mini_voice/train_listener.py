"""Train the listener on real speech before the adversarial stage; a CPU is sufficient.

Starts with the first shards and adds others as they appear. Writes listener.safetensors for
`train_gan --resume`.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.mini_voice.common import (
    DEVICE,
    Log,
    TimeBox,
    begin_stage,
    cosine,
    optimizer,
    save_half,
    set_lr,
)
from recipes.mini_voice.listener import Listener
from recipes.mini_voice.settings import FRAME, load_settings, parser
from recipes.mini_voice.store import Part, Store, gather
from recipes.mini_voice.synthesize import start_synthesis


def main() -> None:
    args = parser(__doc__).parse_args()
    settings = load_settings(args.smoke, args.set)
    synthesis = start_synthesis(args)
    log = Log(args.out / "log.jsonl")
    store = Store(settings.data, settings.codec.num_quantizers)
    seconds = args.seconds or settings.train_listener.seconds
    train(settings, store, log, args.out, seconds)
    synthesis.wait()


def train(settings: SimpleNamespace, store: Store, log: Log, out: Path, seconds: float) -> None:
    begin_stage()
    config = settings.train_listener
    store.wait()
    listener = Listener(settings.train_gan).to(DEVICE)
    optimiser = optimizer(
        list(listener.parameters()), config.lr, tuple(config.betas), config.weight_decay
    )
    box, number = TimeBox(seconds), 0
    while (progress := box.progress) < 1:
        set_lr(
            optimiser, config.lr * cosine(progress, number, config.warmup_steps, config.final_lr)
        )
        begin = store.sample_frames(config.batch, config.crop_frames, 0)
        heard, labels = predict(listener, store.train, begin, config, settings.train_gan.dither)
        loss = F.cross_entropy(heard, labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        number += 1
        if number % 25 == 0 and not store.is_complete:
            store.poll()
        if number % 250 == 0:
            right = accuracy(listener, store, config)
            log("listener", step=number, loss=float(loss.detach()), dev=right)
    log("listener", steps=number, dev=accuracy(listener, store, config))
    save_half(out / "listener.safetensors", listener.state_dict())


def predict(
    listener: Listener, part: Part, begin: Tensor, config: SimpleNamespace, dither: float
) -> tuple[Tensor, Tensor]:
    """Predictions for noisy crops [B, phonemes, T], and the labels [B, T]."""
    audio = gather(part.audio, begin * FRAME, config.crop_frames * FRAME).float() / 32768
    labels = gather(part.labels, begin * 2, config.crop_frames * 2).long()
    return listener(audio + dither * torch.randn_like(audio))[-1].float(), labels


@torch.no_grad()
def accuracy(listener: Listener, store: Store, config: SimpleNamespace) -> float:
    """Share of correct labels in dev speech."""
    last = store.dev.num_frames - config.crop_frames
    if last <= 0:
        return float("nan")
    begin = torch.linspace(0, last, min(64, last), device=DEVICE).long()
    heard, labels = predict(listener, store.dev, begin, config, dither=0.0)
    return float((heard.argmax(1) == labels).float().mean())


if __name__ == "__main__":
    main()
