"""Add a speaker: train its encoder with fixed codebooks, and the decoder of all speakers.

Reads encoder, decoder and codes from `share_books`, and the shards of both speakers. Half of every
batch is the first speaker's, from its codes. Writes the new speaker's encoder.safetensors,
decoder.safetensors for `train_gan`, and all codes. `--seconds 0` trains nothing: the encoder of an
earlier run encodes the shards.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.mini_voice import encode, train_codec
from recipes.mini_voice.codec_model import CodecTrainer, decode_part, part_begins
from recipes.mini_voice.common import (
    DEVICE,
    Log,
    Step,
    TimeBox,
    autocast,
    begin_stage,
    cosine,
    optimizer,
    set_lr,
)  # fmt: skip
from recipes.mini_voice.encode import Codes
from recipes.mini_voice.lines import SPEAKER
from recipes.mini_voice.mels import MelLoss
from recipes.mini_voice.more_codes import join
from recipes.mini_voice.settings import FRAME, load_settings, parser
from recipes.mini_voice.snake import use_fast_snake
from recipes.mini_voice.store import MAX_UTTERANCES, Part, Store, gather


class Stage:
    def __init__(self, settings: SimpleNamespace, store: Store, trainer: CodecTrainer) -> None:
        self.config, self.store, self.trainer = settings.train_speaker, store, trainer
        config, self.mel = self.config, MelLoss().to(DEVICE)
        # The projections to the codebooks are shared by all encoders.
        self.decoder_parameters = [
            parameter
            for name, parameter in trainer.decoder.named_parameters()
            if parameter.requires_grad and "input_proj" not in name.removeprefix("pre_transformer.")
        ]
        self.parameters = [*trainer.encoder.parameters(), *trainer.phonemes.parameters()]
        self.optimizer = optimizer(self.parameters, config.lr, (0.9, 0.99), config.weight_decay)
        self.decoder_optimizer = optimizer(
            self.decoder_parameters, config.decoder_lr, (0.9, 0.99), config.weight_decay
        )
        half, starts = config.batch // 2, config.num_starts
        # Utterance starts of both speakers first, as `decode_part` expects.
        self.order = torch.tensor(
            [
                *(*range(starts), *range(half, half + starts)),
                *(*range(starts, half), *range(half + starts, 2 * half)),
            ],
            device=DEVICE,
        )

    def step(self) -> dict[str, Tensor]:
        config, trainer = self.config, self.trainer
        samples, labels, codes, begins = self._crops()
        with autocast(config.precision):
            first, rest = trainer.branches(trainer.encoder(samples))
            with torch.autocast(DEVICE.type, enabled=False):
                first, rest, commit = trainer.quantise(first, rest, learn=False)
            phonemes = trainer.phonemes(first).unflatten(-1, (2, -1)).flatten(1, 2)
            known = trainer.decoder.quantizer(codes.transpose(1, 2))
            latents = torch.cat((trainer.join(first, rest), known.to(first)))[self.order]
            made = decode_part(trainer.decoder, latents, config.wave_frames, 2 * config.num_starts)
        phoneme = F.cross_entropy(phonemes.float().flatten(0, 1), labels.flatten())
        real = gather(self.store.train.audio, begins * FRAME, config.wave_frames * FRAME)
        mel = self.mel(made, real.float() / 32768)
        (mel + config.commit_weight * commit + config.phoneme_weight * phoneme).backward()
        clip = torch.nn.utils.clip_grad_norm_
        norm = clip(self.parameters, config.clip)
        decoder_norm = clip(self.decoder_parameters, config.clip)
        self.optimizer.step()
        self.decoder_optimizer.step()
        outputs = {
            "mel": mel, "commit": commit, "phoneme": phoneme, "norm": norm,
            "decoder_norm": decoder_norm,
        }  # fmt: skip
        return {name: value.detach() for name, value in outputs.items()}

    def _crops(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The new speaker's samples and labels, the first speaker's codes, and the starts of the
        judged parts of both, in `order`."""
        config, train = self.config, self.store.train
        half, size = config.batch // 2, config.crop_frames
        new, old = (
            self.store.sample_frames(half, size, config.num_starts, speaker)
            for speaker in (self.trainer.speaker, 0)
        )
        samples = gather(train.audio, new * FRAME, size * FRAME).float() / 32768
        labels = gather(train.labels, new * 2, size * 2).long()
        codes = gather(train.codes, old, size).long()
        begins = torch.cat((new, old))[self.order]
        begins = part_begins(begins, size, config.wave_frames, 2 * config.num_starts)
        return samples, labels, codes, begins

    def set_lr(self, level: float) -> None:
        set_lr(self.optimizer, level * self.config.lr)
        set_lr(self.decoder_optimizer, level * self.config.decoder_lr)

    def reset(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.decoder_optimizer.zero_grad(set_to_none=True)


def codes_of(trainer: CodecTrainer, part: Part) -> Codes:
    """Codes of the trainer's speaker in a part of the store."""
    found = encode.encode_part(trainer, part).cpu().numpy()
    labels = part.labels.cpu().numpy()
    own = [i for i, line in enumerate(part.lines) if line // SPEAKER == trainer.speaker]
    runs = [slice(part.starts[i], part.starts[i] + part.frames[i]) for i in own]
    none = np.zeros((0, found.shape[1]), np.int16)
    return Codes(
        np.concatenate([none, *(found[run] for run in runs)]),
        np.concatenate([none[:, 0].astype(np.uint8)]
                       + [labels[2 * run.start : 2 * run.stop] for run in runs]),
        np.asarray([part.lines[i] for i in own], np.int32),
        np.asarray([part.frames[i] for i in own], np.int64),
        num_dev=0,
    )  # fmt: skip


def run(
    settings: SimpleNamespace, store: Store, log: Log, out: Path, resume: Path, speaker: int, *,
    seconds: float | None = None, use_graph: bool = True,
) -> CodecTrainer:  # fmt: skip
    begin_stage()
    use_fast_snake()
    config = settings.train_speaker
    trainer = train_codec.build(settings, speaker)
    trainer.dropout = 0.0  # the last codebook identifies the speaker
    train_codec.restore(trainer, resume)
    stage = Stage(settings, store, trainer)
    stage.set_lr(1e-3)
    is_trained = seconds != 0  # capturing a graph runs a few steps
    step = Step("speaker", stage.step, stage.reset, [trainer], use_graph=use_graph and is_trained)
    box = TimeBox(config.seconds if seconds is None else seconds)
    number, marked, mark = 0, 0, box.elapsed
    while (progress := box.progress) < 1:
        stage.set_lr(cosine(progress, number, config.warmup_steps, config.final_lr))
        outputs = step()
        number += 1
        if number % 25 == 0 and not store.is_complete:
            store.poll()
        if number % 200 == 0 or number < 4:
            values = {name: float(value) for name, value in outputs.items()}
            rate = 1000 * (box.elapsed - mark) / max(1, number - marked)
            marked, mark = number, box.elapsed
            log("speaker", step=number, ms=rate, hours=store.hours, **values)
    train_codec.save(trainer, out)
    log("speaker", steps=number)
    return trainer


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--speaker", type=int, default=1, help="index in data.speakers")
    options.add_argument("--wait", type=float, default=0.0, help="additional seconds for synthesis")
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set)
    log, known = Log(args.out / "log.jsonl"), encode.read(args.resume)
    store = Store(settings.data, settings.codec.num_quantizers, known.by_line(), {args.speaker})
    store.poll(most=MAX_UTTERANCES)
    store.wait()
    trainer = run(
        settings, store, log, args.out, args.resume, args.speaker,
        seconds=args.seconds, use_graph=not args.no_graph,
    )  # fmt: skip
    store.wait(complete=True, timeout=args.wait)
    new = [codes_of(trainer, part) for part in (store.train, store.dev)]
    encode.write(join([known, *new]), args.out)
    used = [len(np.unique(book)) for book in new[0].codes.T]
    log("encode", utterances=len(new[0].lines), frames=len(new[0].codes), used=str(used))


if __name__ == "__main__":
    main()
