"""Codec, second stage: the decoder against discriminators, from codes that no longer change.

Writes decoder.safetensors (an average over the last steps) and discriminators.safetensors.
"""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from recipes.mini_voice.codec_model import decode_part, take_part
from recipes.mini_voice.common import (
    DEVICE,
    Log,
    Step,
    TimeBox,
    autocast,
    begin_stage,
    late_decay,
    load_half,
    optimizer,
    save_half,
    set_lr,
)  # fmt: skip
from recipes.mini_voice.discriminators import Discriminators, fool_losses, judge_loss
from recipes.mini_voice.mels import MelLoss
from recipes.mini_voice.settings import FRAME
from recipes.mini_voice.snake import use_fast_snake
from recipes.mini_voice.store import Store, gather
from vivace.model.codec_decoder import CodecDecoder
from vivace.model.conv import CausalState


class Stage:
    def __init__(
        self, settings: SimpleNamespace, store: Store, decoder: CodecDecoder, codes: Tensor
    ) -> None:
        self.config, self.store, self.decoder, self.codes = (
            settings.train_gan, store, decoder, codes,
        )  # fmt: skip
        config = self.config
        self.judges = Discriminators(config).to(DEVICE)
        self.mel = MelLoss().to(DEVICE)
        self.average = copy.deepcopy(decoder).requires_grad_(False)
        self.parameters = [p for p in decoder.parameters() if p.requires_grad]
        self.averaged = [
            a
            for a, p in zip(self.average.parameters(), decoder.parameters(), strict=True)
            if p.requires_grad
        ]
        betas = tuple(config.betas)
        self.optimizer = optimizer(self.parameters, config.lr, betas, config.weight_decay)
        self.judge_parameters = list(self.judges.parameters())
        self.judge_optimizer = optimizer(
            self.judge_parameters, config.discriminator_lr, betas, config.weight_decay
        )

    def step(self) -> dict[str, Tensor]:
        config = self.config
        begin = self.store.sample_frames(config.batch, config.crop_frames, config.start_fraction)
        codes = gather(self.codes, begin, config.crop_frames).long()
        audio = gather(self.store.train.audio, begin * FRAME, config.crop_frames * FRAME)
        real = take_part(audio, config.wave_frames * FRAME).float() / 32768
        with autocast(config.precision):
            latents = self.decoder.quantizer(codes.transpose(1, 2))
            made = decode_part(self.decoder, latents, config.wave_frames)
        judged = self._train_judges(real, made.detach())
        return {"judge": judged, **self._train_decoder(real, made)}

    def _train_judges(self, real: Tensor, made: Tensor) -> Tensor:
        for parameter in self.judge_parameters:
            parameter.requires_grad_(True)
        with autocast(self.config.discriminator_precision), parametrize.cached():
            loss = judge_loss(self.judges(real), self.judges(made))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.judge_parameters, self.config.clip)
        self.judge_optimizer.step()
        return loss.detach()

    def _train_decoder(self, real: Tensor, made: Tensor) -> dict[str, Tensor]:
        config = self.config
        for parameter in self.judge_parameters:
            parameter.requires_grad_(False)
        with autocast(config.discriminator_precision), parametrize.cached():
            with torch.no_grad():
                wanted = self.judges(real)
            fool, features = fool_losses(wanted, self.judges(made))
        mel = self.mel(made, real)
        loss = config.mel_weight * mel + config.feature_weight * features + fool
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, config.clip)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.averaged, self.parameters, 1 - config.ema_decay)
        outputs = {"mel": mel, "fool": fool, "features": features, "norm": norm}
        return {name: value.detach() for name, value in outputs.items()}

    def reset(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.judge_optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def dev_mel(count: int, store: Store, decoder: CodecDecoder, codes: Tensor, mel: MelLoss) -> float:
    distances = []
    for start, frames in list(zip(store.dev.starts, store.dev.frames, strict=True))[:count]:
        samples = store.dev.audio[start * FRAME : (start + frames) * FRAME].float() / 32768
        made = decoder(codes[None, start : start + frames].long(), CausalState())
        distances.append(mel(made.float(), samples[None]))
    return float(torch.stack(distances).mean()) if distances else float("nan")


def run(
    settings: SimpleNamespace, store: Store, log: Log, out: Path, decoder: CodecDecoder,
    codes: tuple[Tensor, Tensor], *, seconds: float | None = None, use_graph: bool = True,
    resume: Path | None = None,
) -> CodecDecoder:  # fmt: skip
    """`codes` are those of the dev and of the train part. Returns the averaged decoder."""
    begin_stage()
    use_fast_snake()
    config = settings.train_gan
    box = TimeBox(seconds or config.seconds)
    num_dev = settings.train_codec.num_dev_utterances
    stage = Stage(settings, store, decoder, codes[1])
    if resume is not None and (resume / "discriminators.safetensors").exists():
        load_half(resume / "discriminators.safetensors", stage.judges)
    count = sum(p.numel() for p in stage.judge_parameters)
    log("gan", discriminators=count, dev_mel=dev_mel(num_dev, store, decoder, codes[0], stage.mel))
    set_lr(stage.optimizer, 1e-6)
    set_lr(stage.judge_optimizer, 1e-6)
    step = Step("gan", stage.step, stage.reset, [decoder, stage.judges], use_graph=use_graph)
    number, marked, mark = 0, 0, box.elapsed
    while (progress := box.progress) < 1:
        scale = late_decay(
            progress, number, config.warmup_steps, config.final_lr, config.decay_from
        )
        set_lr(stage.optimizer, config.lr * scale)
        set_lr(stage.judge_optimizer, config.discriminator_lr * scale)
        outputs = step()
        number += 1
        if number % 100 == 0 or number < 4:
            values = {name: float(value) for name, value in outputs.items()}
            rate = 1000 * (box.elapsed - mark) / max(1, number - marked)
            marked, mark = number, box.elapsed
            log("gan", step=number, ms=rate, **values)
    save_half(out / "decoder.safetensors", stage.average.state_dict())
    save_half(out / "discriminators.safetensors", stage.judges.state_dict())
    log("gan", steps=number, dev_mel=dev_mel(num_dev, store, stage.average, codes[0], stage.mel))
    return stage.average
