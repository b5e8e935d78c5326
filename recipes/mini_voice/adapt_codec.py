"""Adapt the codec of the embedded voice to a new speaker, from a folder of recordings.

    python -m recipes.mini_voice.adapt_codec --data build/george --out build/george_base

The codec of the embedded voice knows its two speakers only, and its released encoder is untrained.
This stage trains a mel encoder with the shipped codebooks, and the decoder, by mel distance. It
writes a checkpoint folder with the new decoder, and `data.jsonl` with the codes of all recordings:

    vivace finetune build/george_base/data.jsonl --model build/george_base --name george

The encoder starts from shared/mini_voice/encoder.safetensors, if that file is there. The codec of
released checkpoints needs no such stage. The other speakers of the folder degrade. `--base` names
another checkpoint of the recipe; if its codec knows many speakers, `--seconds 0` only encodes.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipes.mini_voice import train_codec
from recipes.mini_voice.codec_model import CodecTrainer, decode_part, take_part
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
from recipes.mini_voice.import_asset import ASSET, ROOT, SHARED_VARIABLE
from recipes.mini_voice.mels import MelLoss
from recipes.mini_voice.settings import FRAME, SAMPLE_RATE, load_settings, parser
from recipes.mini_voice.snake import use_fast_snake
from recipes.mini_voice.store import gather
from vivace.audio.files import read_audio

CODEC_WEIGHTS = Path("speech_tokenizer") / "model.safetensors"


class Recordings:
    """All recordings as one tensor; each begins on a frame."""

    def __init__(self, folder: Path) -> None:
        self.names, self.texts, pieces, self.frames = [], [], [], []
        with (folder / "metadata.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file, delimiter="|", quoting=csv.QUOTE_NONE))
        for name, text, *_ in rows:
            recording = read_audio(folder / "wavs" / f"{name}.wav", trusted=True)
            assert recording.sample_rate == SAMPLE_RATE, f"{name}: 24 kHz is needed"
            samples = torch.from_numpy(recording.samples)
            num_frames = -(-len(samples) // FRAME)
            pieces.append(torch.nn.functional.pad(samples, (0, num_frames * FRAME - len(samples))))
            self.names.append(name)
            self.texts.append(text)
            self.frames.append(num_frames)
        self.audio = torch.cat(pieces).to(DEVICE)
        ends = torch.tensor(self.frames).cumsum(0)
        self.starts = (ends - torch.tensor(self.frames)).to(DEVICE)

    def crops(self, batch: int, size: int, num_starts: int) -> Tensor:
        """The first frames of crops; the first `num_starts` are those of recordings."""
        last = len(self.audio) // FRAME - size
        chosen = torch.randint(len(self.starts), (num_starts,), device=DEVICE)
        others = torch.randint(last, (batch - num_starts,), device=DEVICE)
        return torch.cat((self.starts[chosen].clamp(max=last), others))


class Stage:
    def __init__(
        self, settings: SimpleNamespace, recordings: Recordings, trainer: CodecTrainer
    ) -> None:
        self.config, self.recordings, self.trainer = settings.train_speaker, recordings, trainer
        self.mel = MelLoss().to(DEVICE)
        self.encoder_parameters = list(trainer.encoder.parameters())
        # The projections to the codebooks are shared by all encoders.
        self.decoder_parameters = [
            parameter
            for name, parameter in trainer.decoder.named_parameters()
            if parameter.requires_grad and "input_proj" not in name.removeprefix("pre_transformer.")
        ]
        decay = self.config.weight_decay
        self.encoder = optimizer(self.encoder_parameters, self.config.lr, (0.9, 0.99), decay)
        self.decoder = optimizer(
            self.decoder_parameters, self.config.decoder_lr, (0.9, 0.99), decay
        )

    def step(self) -> dict[str, Tensor]:
        config, trainer = self.config, self.trainer
        begin = self.recordings.crops(config.batch, config.crop_frames, config.num_starts)
        samples = gather(self.recordings.audio, begin * FRAME, config.crop_frames * FRAME)
        with autocast(config.precision):
            first, rest = trainer.branches(trainer.encoder(samples))
            with torch.autocast(DEVICE.type, enabled=False):
                first, rest, commit = trainer.quantise(first, rest, learn=False)
            latents = trainer.join(first, rest)
            made = decode_part(trainer.decoder, latents, config.wave_frames, config.num_starts)
        real = take_part(samples, config.wave_frames * FRAME, config.num_starts)
        mel = self.mel(made, real)
        (mel + config.commit_weight * commit).backward()
        for parameters in (self.encoder_parameters, self.decoder_parameters):
            torch.nn.utils.clip_grad_norm_(parameters, config.clip)
        self.encoder.step()
        self.decoder.step()
        return {"mel": mel.detach(), "commit": commit.detach()}

    def set_lr(self, level: float) -> None:
        set_lr(self.encoder, level * self.config.lr)
        set_lr(self.decoder, level * self.config.decoder_lr)

    def reset(self) -> None:
        self.encoder.zero_grad(set_to_none=True)
        self.decoder.zero_grad(set_to_none=True)


def build(settings: SimpleNamespace, encoder: Path, base: Path = ASSET) -> CodecTrainer:
    """The decoder and codebooks of `base`, with the encoder of the first speaker or a new one."""
    trainer = train_codec.build(settings)
    trainer.dropout = 0.0
    asset = load_file(base / CODEC_WEIGHTS)
    own = {name.removeprefix("decoder."): one.float() for name, one in asset.items()}
    own = {name: one for name, one in own.items() if name in trainer.decoder.state_dict()}
    trainer.decoder.load_state_dict(own)
    if encoder.exists():
        state = {k: v.float() for k, v in load_file(encoder).items() if k.startswith("encoder.")}
        trainer.load_state_dict(state, strict=False)
    else:
        print(f"{encoder} is missing: the encoder starts untrained, which needs more time")
    quantizer = trainer.decoder.quantizer
    layers = [*quantizer.rvq_first.vq.layers, *quantizer.rvq_rest.vq.layers]
    for vectors, layer in zip(trainer.books.vectors, layers, strict=True):
        vectors.copy_(layer._codebook.vectors())
    return trainer


def train(stage: Stage, log: Log, seconds: float, *, use_graph: bool) -> None:
    config = stage.config
    stage.set_lr(1e-3)
    step = Step("codec", stage.step, stage.reset, [stage.trainer], use_graph=use_graph)
    box, number = TimeBox(seconds), 0
    while (progress := box.progress) < 1:
        stage.set_lr(cosine(progress, number, config.warmup_steps, config.final_lr))
        outputs = step()
        number += 1
        if number % 200 == 0 or number < 3:
            values = {name: float(value) for name, value in outputs.items()}
            log("codec", step=number, ms=1000 * box.elapsed / number, **values)
    log("codec", steps=number)


@torch.no_grad()
def write(trainer: CodecTrainer, recordings: Recordings, out: Path, base: Path = ASSET) -> None:
    """A checkpoint folder with this decoder, and the codes of the recordings."""
    shutil.copytree(base, out, dirs_exist_ok=True)
    weights = load_file(base / CODEC_WEIGHTS)
    for name, tensor in trainer.decoder.state_dict().items():
        weights[f"decoder.{name}"] = tensor.half().cpu().contiguous()
    save_file(weights, out / CODEC_WEIGHTS, {"format": "pt"})
    begin = 0
    with (out / "data.jsonl").open("w", encoding="utf-8") as file:
        for text, num_frames in zip(recordings.texts, recordings.frames, strict=True):
            samples = recordings.audio[begin * FRAME : (begin + num_frames) * FRAME]
            codes = trainer.encode(samples[None])[0].tolist()
            begin += num_frames
            row = {"text": text, "language": "english", "audio_codes": codes}
            file.write(json.dumps(row) + "\n")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="a folder like LJSpeech")
    default = os.environ.get(SHARED_VARIABLE) or ROOT.parent / "shared" / "mini_voice"
    options.add_argument("--shared", type=Path, default=Path(default))
    options.add_argument("--base", type=Path, default=ASSET, help="default: the embedded voice")
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set)
    begin_stage()
    use_fast_snake()
    recordings = Recordings(args.data)
    trainer = build(settings, args.shared / "encoder.safetensors", args.base)
    stage = Stage(settings, recordings, trainer)
    log = Log(args.out.with_name(f"{args.out.name}.log.jsonl"))
    log("codec", recordings=len(recordings.texts), minutes=len(recordings.audio) / 1_440_000)
    seconds = settings.train_speaker.seconds if args.seconds is None else args.seconds
    train(stage, log, seconds, use_graph=not args.no_graph)
    write(trainer, recordings, args.out, args.base)


if __name__ == "__main__":
    main()
