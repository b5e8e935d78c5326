"""The training stages of `adapt_codec`: decoder, then encoder."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.mini_voice.adapt_data import Speech
from recipes.mini_voice.codec_model import CodecTrainer, decode_part, part_begins
from recipes.mini_voice.common import DEVICE, Log, Step, autocast, cosine, optimizer, set_lr
from recipes.mini_voice.mels import TimbreLoss, change_timbre
from recipes.mini_voice.settings import FRAME
from recipes.mini_voice.store import gather
from vivace.model.codec_decoder import CodecDecoder

COLUMNS = 8  # mel columns of a frame
BETAS = (0.9, 0.99)


class Learner:
    """The parameters that a stage trains, and their optimizer."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, config: SimpleNamespace):
        self.parameters, self.lr, self.clip = list(parameters), lr, config.clip
        self.optimizer = optimizer(self.parameters, lr, BETAS, config.weight_decay)

    def reset(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def update(self) -> None:
        nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()


class Stage(Protocol):
    config: SimpleNamespace
    learner: Learner
    trained: list[nn.Module]

    def losses(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss to minimise, and figures for the log."""
        ...


Pair = tuple[Tensor, Tensor]  # mels [mels, frames * COLUMNS], codes [frames, books]


@torch.no_grad()
def code_pairs(trainer: CodecTrainer, speech: Speech) -> list[Pair]:
    """Mels and codes of each utterance."""
    mels = [trainer.encoder.mels(one[None])[0] for one in speech.split()]
    return list(zip(mels, speech.split_codes(), strict=True))


class EncoderStage:
    """Trains the encoder to find the codes of `recorded` and `decoded` speech.

    Half of a batch is speech of the new decoder. The other half, recordings and speech of the
    decoder, has a randomly changed timbre.
    """

    def __init__(
        self, config: SimpleNamespace, trainer: CodecTrainer, recorded: list[Pair],
        decoded: list[Pair],
    ) -> None:  # fmt: skip
        self.config, self.trainer = config, trainer
        self.learner = Learner(trainer.encoder.parameters(), config.encoder_lr, config)
        self.trained: list[nn.Module] = [trainer.encoder]
        mels, codes = zip(*recorded, *decoded, strict=True)
        self.mels, self.codes = torch.cat(mels, 1), torch.cat(codes)
        self.num_recorded = sum(len(one) for _, one in recorded)
        books = trainer.books
        pairs = zip(self.codes.T, books.vectors, strict=True)
        self.first, *rest = [vectors[codes] for codes, vectors in pairs]
        self.rest = torch.stack(rest).sum(0) - books.marks[0]
        self.first_size, self.rest_size = (
            part.square().sum(-1).mean() for part in (self.first, self.rest)
        )
        self.weight = torch.ones(config.batch, 1, device=DEVICE)  # of the acoustic vectors
        self.weight[: config.batch // 2] = config.changed_weight

    def losses(self) -> tuple[Tensor, dict[str, Tensor]]:
        config, trainer, half = self.config, self.trainer, self.config.batch // 2
        frames = self._crops()
        within = torch.arange(config.crop_frames * COLUMNS, device=DEVICE)
        mels = self.mels[:, frames[:, :1] * COLUMNS + within].transpose(0, 1)
        others = change_timbre(mels[:half], config.frequency_range, config.level_change)
        with autocast(config.precision):
            first, rest = trainer.branches(
                trainer.encoder.encode_mels(torch.cat((others, mels[half:])))
            )
        codes = self.codes[frames]
        semantic = self._cross_entropy(0, first, codes[..., 0])
        acoustic = self._cross_entropy(1, rest, codes[..., 1])
        far = (rest - self.rest[frames]).square().sum(-1) / self.rest_size
        near = (first - self.first[frames]).square().sum(-1) / self.first_size
        loss = (near + semantic + self.weight * (far + 0.3 * acoustic)).mean()
        return loss, {
            "semantic_changed": semantic[:half].mean(), "semantic": semantic[half:].mean(),
            "far_changed": far[:half].mean(), "far": far[half:].mean(),
        }  # fmt: skip

    def _crops(self) -> Tensor:
        """Frames [B, crop_frames] of random crops."""
        config, size = self.config, self.config.crop_frames
        count = round(config.recorded_share * config.batch / 2)
        recorded = torch.randint(self.num_recorded - size, (count,), device=DEVICE)
        decoded = torch.randint(
            self.num_recorded, len(self.codes) - size, (config.batch - count,), device=DEVICE
        )
        return torch.cat((recorded, decoded))[:, None] + torch.arange(size, device=DEVICE)

    def _cross_entropy(self, book: int, x: Tensor, codes: Tensor) -> Tensor:
        """Cross entropy [B, T] of codes, with distances as logits."""
        table = self.trainer.books.vectors[book]
        logits = (2 * (x @ table.T) - table.square().sum(-1)) / self.config.temperature
        return F.cross_entropy(logits.flatten(0, 1), codes.flatten(), reduction="none").view(
            codes.shape
        )


class DecoderStage:
    """Trains the decoder to speak the preset's codes with the timbre of the recordings.

    `recorded` are the samples of the recordings, aligned with the `preset`'s speech of the same
    sentences.
    """

    def __init__(
        self, config: SimpleNamespace, trainer: CodecTrainer, preset: Speech, recorded: Tensor
    ) -> None:
        self.config, self.decoder = config, trainer.decoder
        self.preset, self.recorded = preset, recorded
        self.loss = TimbreLoss(config.timbre_seconds).to(DEVICE)
        self.learner = Learner(decoder_parameters(trainer.decoder), config.decoder_lr, config)
        self.trained: list[nn.Module] = [trainer.decoder]

    def losses(self) -> tuple[Tensor, dict[str, Tensor]]:
        config, preset = self.config, self.preset
        begin, judged = crop_begins(config, preset)
        codes = gather(preset.codes, begin, config.decoder_crop_frames)
        latents = self.decoder.quantizer(codes.transpose(1, 2))
        made = decode_part(self.decoder, latents, config.decoder_wave_frames, config.num_starts)
        true = [gather(one, judged, made.shape[1]) for one in (preset.audio, self.recorded)]
        loss = self.loss(made, *true)
        return loss, {"mel": loss}


def decoder_parameters(decoder: CodecDecoder) -> list[nn.Parameter]:
    """All parameters of the decoder except those of the quantizer, which are frozen."""
    return [parameter for parameter in decoder.parameters() if parameter.requires_grad]


def crop_begins(config: SimpleNamespace, speech: Speech) -> tuple[Tensor, Tensor]:
    """The first frames of random crops, and the first samples of their decoded parts.

    The first crops begin where an utterance begins.
    """
    size, part, cold = config.decoder_crop_frames, config.decoder_wave_frames, config.num_starts
    last = len(speech.codes) - size
    chosen = torch.randint(len(speech.num_frames), (cold,), device=DEVICE)
    others = torch.randint(last, (config.decoder_batch - cold,), device=DEVICE)
    begin = torch.cat((speech.starts[chosen].clamp(max=last), others))
    return begin, part_begins(begin, size, part, cold) * FRAME


@dataclass(frozen=True)
class Length:
    """When a stage ends: after a number of steps, or earlier if its time is over."""

    num_steps: int
    seconds: float = math.inf

    def progress(self, number: int, elapsed_s: float) -> float:
        return max(number / self.num_steps, elapsed_s / self.seconds) if self.num_steps else 1.0


class MeanWeights:
    """The mean of parameters over the last steps, which has less noise than the last values."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.means = [torch.zeros_like(one) for one in self.parameters]
        self.count = 0

    def add(self) -> None:
        self.count += 1
        torch._foreach_lerp_(self.means, [one.data for one in self.parameters], 1 / self.count)

    def write(self) -> None:
        """Replace the parameters by their means."""
        if self.count:
            torch._foreach_copy_([one.data for one in self.parameters], self.means)


def train(stage: Stage, name: str, length: Length, log: Log) -> None:
    """Take steps with a cosine schedule, and keep the mean of the last weights."""
    config, learner = stage.config, stage.learner

    def step() -> dict[str, Tensor]:
        loss, figures = stage.losses()
        loss.backward()
        learner.update()
        return {key: value.detach() for key, value in figures.items()}

    set_lr(learner.optimizer, 0.0)  # capturing a graph takes steps
    begun, number, mean = time.perf_counter(), 0, MeanWeights(learner.parameters)
    take = Step(name, step, learner.reset, stage.trained, use_graph=length.num_steps > 0)
    while (progress := length.progress(number, time.perf_counter() - begun)) < 1:
        scale = cosine(progress, number, config.warmup_steps, config.final_lr)
        set_lr(learner.optimizer, learner.lr * scale)
        outputs = take()
        number += 1
        if progress >= config.average_from:
            mean.add()
        if number % config.log_every == 0:
            ms = 1000 * (time.perf_counter() - begun) / number
            log(
                name,
                step=number,
                of=length.num_steps,
                ms=ms,
                **{key: float(one) for key, one in outputs.items()},
            )
    mean.write()
