"""Train the encoder of the released layout to give the codes of the training encoder.

    python -m recipes.mini_voice.train_encoder --resume FOLDER --out FOLDER

Reads the shards of `synthesize`, and encoder.safetensors and decoder.safetensors in `--resume`.
Codebooks and projections are those of the codec and do not change. Writes
codec_encoder.safetensors, which `export` reads; a file in `--out` is continued, and only judged
with `--seconds 0`.

The training encoder looks up to eight frames ahead. The released layout is causal: its vector i
depends on the samples up to the end of frame i. It therefore learns to give the vector of frame i
`codec_encoder.delay` frames later. The decoded speech is compared too, so that codes that differ
still give similar speech.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.mini_voice import train_codec
from recipes.mini_voice.codec_model import CodecTrainer, decode_part, take_part
from recipes.mini_voice.common import (
    DEVICE,
    Log,
    Step,
    add_noise,
    autocast,
    begin_stage,
    change_gain,
    load_half,
    optimizer,
    save_half,
    set_lr,
    train,
)  # fmt: skip
from recipes.mini_voice.export import CODEC_ENCODER
from recipes.mini_voice.mels import MelLoss
from recipes.mini_voice.released_encoder import (
    agreement,
    build,
    codebook_vectors,
    copy_quantizer,
)
from recipes.mini_voice.settings import FRAME, SAMPLE_RATE, load_settings, parser
from recipes.mini_voice.snake import use_fast_snake
from recipes.mini_voice.store import MAX_UTTERANCES, Part, Store, gather
from vivace.model.codec_encoder import CodecEncoder
from vivace.model.conv import CausalState

FIRST_SHARPNESS = 4.0  # half the number of dimensions in which the error is assumed to lie


@dataclass(frozen=True, slots=True)
class Target:
    """The vectors and codes that the training encoder gives for a batch of crops."""

    first: Tensor  # [B, T, width], before the semantic codebook
    rest: Tensor  # [B, T, width], before the acoustic codebooks
    codes: Tensor  # [B, T, books]


def book_inputs(first: Tensor, rest: Tensor, codes: Tensor, tables: Tensor) -> list[Tensor]:
    """The input of every codebook, if all codebooks before it chose `codes`: [B, T, width] each.

    `tables` are the vectors of all codebooks, [books, size, width].
    """
    found = [first]
    for book in range(1, len(tables)):
        found.append(rest)
        rest = rest - F.embedding(codes[..., book], tables[book])
    return found


class Stage:
    def __init__(
        self, settings: SimpleNamespace, store: Store, trainer: CodecTrainer, encoder: CodecEncoder
    ) -> None:
        self.config, self.store, self.encoder = settings.train_encoder, store, encoder
        self.delay = settings.codec_encoder.delay
        if not 0 <= self.delay <= self.config.lookahead_frames:
            raise SystemExit("codec_encoder.delay must be from 0 to train_encoder.lookahead_frames")
        self.trainer = trainer.eval().requires_grad_(False)
        self.trainer.dropout = 0.0
        self.tables = codebook_vectors(encoder)
        self.mel = MelLoss().to(DEVICE)
        count, config = len(self.tables), self.config
        self.errors = torch.ones(count, device=DEVICE)  # mean squared errors of quantization
        self.log_factors = nn.Parameter(torch.zeros(count, device=DEVICE))
        body = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
        self.parameters = [*body, self.log_factors]
        self.optimizer = optimizer(
            self.parameters, config.lr, tuple(config.betas), config.weight_decay
        )
        at = torch.arange(config.crop_frames, device=DEVICE)
        is_start = torch.arange(config.batch, device=DEVICE) < config.num_starts
        is_judged = is_start[:, None] | (at >= config.context_frames)
        self.weights = is_judged / is_judged.sum()  # [B, T], their sum is one

    def crop(self) -> Tensor:
        """Samples of crops and of the frames after them, from anywhere, with another gain."""
        config = self.config
        frames = config.crop_frames + config.lookahead_frames
        begin = self.store.sample_frames(config.batch, frames + 1, config.num_starts)
        shift = (torch.rand(config.batch, device=DEVICE) * FRAME).long()
        samples = gather(self.store.train.audio, begin * FRAME + shift, frames * FRAME)
        return change_gain(samples.float() / 32768, config.gain_db)

    @torch.no_grad()
    def target(self, samples: Tensor) -> Target:
        """Targets of the first `crop_frames` frames. The training encoder reads all samples."""
        first, rest = self.trainer.branches(self.trainer.encoder(samples))
        codes, size = self.trainer.codes(first, rest), self.config.crop_frames
        return Target(first[:, :size], rest[:, :size], codes[:, :size])

    @torch.no_grad()
    def measure_errors(self) -> None:
        """Measure the quantization error of each codebook."""
        target = self.target(self.crop())
        inputs = book_inputs(target.first, target.rest, target.codes, self.tables)
        for book, (x, table) in enumerate(zip(inputs, self.tables, strict=True)):
            error = (x - F.embedding(target.codes[..., book], table)).square().sum(-1).mean()
            self.errors[book] = error

    def latent_loss(self, first: Tensor, rest: Tensor, target: Target) -> Tensor:
        """Squared distance to the vectors, relative to their variance; the mean of both."""
        pairs = ((first, target.first), (rest, target.rest))
        losses = [
            ((made - true).square().mean(-1) * self.weights).sum() / true.var()
            for made, true in pairs
        ]
        return torch.stack(losses).mean()

    def code_loss(self, first: Tensor, rest: Tensor, target: Target) -> Tensor:
        """Cross entropy of the codes, if the codes before are those of the target.

        A logit is minus the squared distance of a code, relative to the present error of the
        vectors, times a trained factor. So the loss is moderate from the first step on.
        """
        inputs, losses = book_inputs(first, rest, target.codes, self.tables), []
        scales = (
            FIRST_SHARPNESS * self.log_factors.exp() / self._present_errors(first, rest, target)
        )
        for book, (x, table) in enumerate(zip(inputs, self.tables, strict=True)):
            logits = (2 * x @ table.T - table.square().sum(-1)) * scales[book]
            entropy = F.cross_entropy(
                logits.transpose(1, 2), target.codes[..., book], reduction="none"
            )
            losses.append((entropy * self.weights).sum())
        return torch.stack(losses).mean()

    @torch.no_grad()
    def _present_errors(self, first: Tensor, rest: Tensor, target: Target) -> Tensor:
        """Mean squared distance to the target's vectors, at least the error of quantization."""
        of_first, of_rest = (
            ((made - true).square().sum(-1) * self.weights).sum()
            for made, true in ((first, target.first), (rest, target.rest))
        )
        errors = torch.cat((of_first[None], of_rest.expand(len(self.errors) - 1)))
        return torch.maximum(errors, self.errors)

    def mel_loss(self, first: Tensor, rest: Tensor, samples: Tensor) -> Tensor:
        """Distance of the decoded speech. The gradient passes the quantizer unchanged."""
        config, trainer = self.config, self.trainer
        first, rest, _ = trainer.quantise(first, rest, learn=False)
        with autocast(config.precision):
            latents = trainer.join(first, rest)
            made = decode_part(trainer.decoder, latents, config.wave_frames, config.num_starts)
        return self.mel(made, take_part(samples, config.wave_frames * FRAME, config.num_starts))

    def step(self) -> dict[str, Tensor]:
        config, samples = self.config, self.crop()
        target = self.target(samples)
        heard = samples[:, : (config.crop_frames + self.delay) * FRAME]
        samples = samples[:, : config.crop_frames * FRAME]
        with autocast(config.precision):
            latents = self.encoder.latents(add_noise(heard, config.noise_db))[..., self.delay :]
        first, rest = self.trainer.branches(latents.float())
        latent = self.latent_loss(first, rest, target)
        code = self.code_loss(first, rest, target)
        mel = self.mel_loss(first, rest, samples)
        loss = config.latent_weight * latent + config.code_weight * code + config.mel_weight * mel
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, config.clip)
        self.optimizer.step()
        outputs = {"latent": latent, "code": code, "mel": mel, "norm": norm}
        return {name: value.detach() for name, value in outputs.items()}

    def reset(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)


def dev_recordings(settings: SimpleNamespace, part: Part) -> list[Tensor]:
    """Samples of dev utterances of all speakers."""
    count = min(settings.train_encoder.num_dev_utterances, len(part.starts))
    chosen = [index * len(part.starts) // count for index in range(count)]
    return [
        part.audio[part.starts[i] * FRAME : (part.starts[i] + part.frames[i]) * FRAME].float()
        / 32768
        for i in chosen
    ]


@torch.no_grad()
def decoded_mel(
    encoder: CodecEncoder, trainer: CodecTrainer, recordings: list[Tensor], mel: MelLoss, delay: int
) -> tuple[float, float]:
    """Mean mel distance after the codec, with the codes of each encoder."""
    found = []
    for samples in recordings:
        codes = encoder(samples, len(trainer.books.usage), delay)
        made = trainer.decoder(codes[None], CausalState())[0].float()
        of_both = (made, train_codec.round_trip(trainer, samples))
        found.append(torch.stack([mel(one[None], samples[None]) for one in of_both]))
    own, training = torch.stack(found).mean(0).tolist()
    return own, training


def judge(settings: SimpleNamespace, store: Store, stage: Stage, log: Log, steps: int) -> None:
    """Log the agreement of codes on dev utterances, alone and joined, and the mel distances."""
    recordings = dev_recordings(settings, store.dev)
    if not recordings:
        log("encoder", steps=steps)
        return
    encoder, trainer = stage.encoder.eval(), stage.trainer
    num_frames = int(settings.train_encoder.long_s * SAMPLE_RATE) // FRAME
    joined = torch.cat(recordings)[: num_frames * FRAME]
    own, training = decoded_mel(encoder, trainer, recordings, stage.mel, stage.delay)
    log(
        "encoder", steps=steps, mel_encoder=own, mel_training_encoder=training,
        agreement=str(_rounded(agreement(encoder, trainer, recordings, stage.delay))),
        agreement_long=str(_rounded(agreement(encoder, trainer, [joined], stage.delay))),
    )  # fmt: skip


def _rounded(shares: Tensor) -> list[float]:
    return [round(share, 3) for share in shares.tolist()]


def run(
    settings: SimpleNamespace, store: Store, log: Log, out: Path, *,
    resume: Path, seconds: float | None = None, use_graph: bool = True,
) -> CodecEncoder:  # fmt: skip
    begin_stage()
    config, path = settings.train_encoder, out / CODEC_ENCODER
    trainer = train_codec.build(settings)
    if train_codec.restore(trainer, resume) != settings.codec.num_quantizers:
        raise SystemExit(f"{resume}: the codec has another number of codebooks")
    encoder = build(settings, trainer)
    if path.exists():
        load_half(path, encoder)
        copy_quantizer(encoder, trainer)  # the codec may have changed
    use_fast_snake()
    stage = Stage(settings, store, trainer, encoder)
    stage.measure_errors()
    count = sum(parameter.numel() for parameter in encoder.parameters())
    log("encoder", parameters=count, hours=store.hours)
    set_lr(stage.optimizer, 1e-6)
    step = Step("encoder", stage.step, stage.reset, [encoder, trainer], use_graph=use_graph)
    number = train(
        "encoder", step, stage.optimizer, config,
        config.seconds if seconds is None else seconds, log,
        lambda: save_half(path, encoder.state_dict()),
    )  # fmt: skip
    judge(settings, store, stage, log, number)
    return encoder


def main() -> None:
    args = parser(__doc__).parse_args()
    if args.resume is None:
        raise SystemExit("--resume: the folder of the trained codec is needed")
    settings = load_settings(args.smoke, args.set)
    store = Store(settings.data, settings.codec.num_quantizers)
    store.poll(most=MAX_UTTERANCES)
    store.close()
    store.wait()  # fails without audio
    run(
        settings, store, Log(args.out / "encoder.jsonl"), args.out,
        resume=args.resume, seconds=args.seconds, use_graph=not args.no_graph,
    )  # fmt: skip


if __name__ == "__main__":
    main()
