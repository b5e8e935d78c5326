"""Adapt the codec of the embedded voice to a new speaker, from a folder of recordings.

    python -m recipes.mini_voice.adapt_codec --data build/george --out build/george_base

The codec of the embedded voice supports only its two speakers, and its released encoder is
untrained. This stage runs on a CPU:

1. A preset of the base speaks every transcript and as many other sentences as `other_lines` says.
   Its codes and its audio are exact pairs.
2. Dynamic time warping aligns each recording with the preset's speech.
3. A mel encoder learns the preset's codes from its speech, from the aligned recordings, and from
   the other sentences with a changed timbre. The codes keep their meaning, so the talker knows most
   of the way from text to codes.
4. The recordings are encoded, and the decoder learns their audio from these codes.

It writes a checkpoint folder with the new decoder, and `data.jsonl` with the codes of the
recordings:

    vivace finetune build/george_base/data.jsonl --model build/george_base --name george

The codec of released checkpoints needs no such stage. The new folder keeps one preset, which
degrades.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recipes.mini_voice import train_codec
from recipes.mini_voice.codec_model import CodecTrainer, decode_part, part_begins
from recipes.mini_voice.common import Log, begin_stage, cosine, optimizer, set_lr
from recipes.mini_voice.import_asset import ASSET
from recipes.mini_voice.mels import MelLoss, change_timbre
from recipes.mini_voice.settings import FRAME, SAMPLE_RATE, load_settings, parser
from recipes.mini_voice.snake import use_fast_snake
from recipes.mini_voice.store import gather
from recipes.mini_voice.talk_lines import TalkLines
from recipes.mini_voice.templates import CITIES, template_lines
from recipes.mini_voice.warp import align
from vivace import TTS
from vivace.audio.files import read_audio

CODEC_WEIGHTS = Path("speech_tokenizer") / "model.safetensors"
COLUMNS = 8  # mel columns of a frame


@dataclass(frozen=True)
class Speech:
    """Concatenated utterances. Each utterance starts at a frame boundary."""

    audio: Tensor  # [frames * 1920]
    codes: Tensor  # [frames, books]
    num_frames: list[int]

    @property
    def starts(self) -> Tensor:
        ends = torch.tensor(self.num_frames).cumsum(0)
        return ends - torch.tensor(self.num_frames)

    def split(self) -> list[Tensor]:
        """The samples of each utterance."""
        return list(self.audio.split([FRAME * count for count in self.num_frames]))


def read_recordings(folder: Path) -> tuple[list[str], list[Tensor]]:
    """Transcripts and samples, padded to whole frames, of a folder like LJSpeech."""
    with (folder / "metadata.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="|", quoting=csv.QUOTE_NONE))
    texts, audios = [], []
    for name, text, *_ in rows:
        recording = read_audio(folder / "wavs" / f"{name}.wav", trusted=True)
        assert recording.sample_rate == SAMPLE_RATE, f"{name}: 24 kHz is needed"
        samples = torch.from_numpy(recording.samples)
        texts.append(text)
        audios.append(F.pad(samples, (0, -len(samples) % FRAME)))
    return texts, audios


def other_lines(count: int) -> list[str]:
    """Sentences beside the transcripts: numbers, names and conversation."""
    talk = TalkLines(CITIES, random.Random(1))
    return [*template_lines(count // 2, seed=1), *(talk.line() for _ in range(count - count // 2))]


def imitate(
    base: Path, voice: str, texts: list[str], audios: list[Tensor]
) -> tuple[Speech, list[Tensor]]:
    """The texts, spoken by a preset of the base, and the recordings of the first texts.

    Speech in several parts has pauses without codes and is left out.
    """
    spoken, recorded = [], []
    with TTS.load(base, device="cpu") as tts:
        for number, text in enumerate(texts):
            one = tts.speak(text, voice=voice, seed=number, trim=False)
            if len(one.samples) == FRAME * len(one.codes):
                spoken.append(one)
                recorded += audios[number : number + 1]
    preset = Speech(
        torch.cat([torch.from_numpy(one.samples) for one in spoken]),
        torch.cat([torch.from_numpy(one.codes) for one in spoken]),
        [len(one.codes) for one in spoken],
    )
    return preset, recorded


def build(settings: SimpleNamespace, base: Path = ASSET) -> CodecTrainer:
    """The decoder and codebooks of `base`, with a small untrained encoder."""
    config = settings.adapt_codec
    vars(settings.encoder).update(width=config.encoder_width, num_blocks=config.encoder_blocks)
    trainer = train_codec.build(settings)
    asset = load_file(base / CODEC_WEIGHTS)
    own = {name.removeprefix("decoder."): one.float() for name, one in asset.items()}
    own = {name: one for name, one in own.items() if name in trainer.decoder.state_dict()}
    trainer.decoder.load_state_dict(own)
    quantizer = trainer.decoder.quantizer
    layers = [*quantizer.rvq_first.vq.layers, *quantizer.rvq_rest.vq.layers]
    for vectors, layer in zip(trainer.books.vectors, layers, strict=True):
        vectors.copy_(layer._codebook.vectors())
    return trainer


def take_share(trainer: CodecTrainer, speech: Speech) -> None:
    """Assign the preset's part of the last codebook, with its offset, to the new speaker."""
    books, last = trainer.books, trainer.books.vectors[-1]
    mark = last[speech.codes[:, -1]].mean(0)
    distances = (last - mark).norm(dim=-1)
    books.owner.copy_(distances > distances.max() / 2)
    books.marks[0].copy_(mark)


class EncoderStage:
    """Trains the encoder to the preset's codes.

    Half of a batch is the preset's speech. The other half has other timbres: aligned recordings of
    the first utterances, and the preset's further utterances, all changed at random.
    """

    def __init__(
        self, config: SimpleNamespace, trainer: CodecTrainer, speech: Speech, audios: list[Tensor]
    ) -> None:
        self.config, self.trainer, self.speech = config, trainer, speech
        with torch.no_grad():
            own, new = (
                [trainer.encoder.mels(one[None])[0] for one in part]
                for part in (speech.split(), audios)
            )
        paths = align(new, own[: len(new)])
        warped = [one[:, path] for one, path in zip(new, paths, strict=True)]
        self.mels = torch.cat((*warped, *own[len(new) :], *own), 1)  # [mels, columns]
        books = trainer.books
        pairs = zip(speech.codes.T, books.vectors, strict=True)
        self.first, *rest = [vectors[codes] for codes, vectors in pairs]
        self.rest = torch.stack(rest).sum(0) - books.marks[0]
        self.parameters = list(trainer.encoder.parameters())

    def step(self) -> dict[str, Tensor]:
        config, trainer, half = self.config, self.trainer, self.config.batch // 2
        num_frames, size = len(self.speech.codes), config.crop_frames
        begin = torch.randint(num_frames - size, (config.batch,))
        shift = (torch.arange(config.batch) >= half) * num_frames
        columns = (begin + shift)[:, None] * COLUMNS + torch.arange(size * COLUMNS)
        frames = begin[:, None] + torch.arange(size)
        mels = self.mels[:, columns].transpose(0, 1)
        others = change_timbre(mels[:half], config.frequency_range, config.level_change)
        z = trainer.encoder.encode_mels(torch.cat((others, mels[half:])))
        first, rest = trainer.branches(z)
        semantic = self._cross_entropy(0, first, self.speech.codes[frames, 0])
        acoustic = self._cross_entropy(1, rest, self.speech.codes[frames, 1])
        far = (rest - self.rest[frames]).square().sum(-1) / self.rest.square().sum(-1).mean()
        near = (first - self.first[frames]).square().sum(-1) / self.first.square().sum(-1).mean()
        weight = torch.where(torch.arange(config.batch) < half, config.recording_weight, 1.0)
        loss = (near + semantic + weight[:, None] * (far + 0.3 * acoustic)).mean()
        loss.backward()
        return {
            "semantic": semantic[:half].mean(), "semantic_own": semantic[half:].mean(),
            "far": far[:half].mean(), "far_own": far[half:].mean(),
        }  # fmt: skip

    def _cross_entropy(self, book: int, x: Tensor, codes: Tensor) -> Tensor:
        """Cross entropy [B, T] of codes, with distances as logits."""
        table = self.trainer.books.vectors[book]
        logits = (2 * (x @ table.T) - table.square().sum(-1)) / self.config.temperature
        return F.cross_entropy(logits.flatten(0, 1), codes.flatten(), reduction="none").view(
            codes.shape
        )


class DecoderStage:
    """Trains the decoder to the audio of the recordings, from fixed codes, by mel distance."""

    def __init__(self, config: SimpleNamespace, trainer: CodecTrainer, speech: Speech) -> None:
        self.config, self.decoder, self.speech = config, trainer.decoder, speech
        self.mel = MelLoss()
        self.parameters = [
            parameter
            for name, parameter in trainer.decoder.named_parameters()
            if parameter.requires_grad and not name.startswith("quantizer")
        ]

    def step(self) -> dict[str, Tensor]:
        config, speech = self.config, self.speech
        size, part, cold = config.decoder_crop_frames, config.decoder_wave_frames, config.num_starts
        last = len(speech.codes) - size
        chosen = speech.starts[torch.randint(len(speech.num_frames), (cold,))]
        others = torch.randint(last, (config.decoder_batch - cold,))
        begin = torch.cat((chosen.clamp(max=last), others))
        latents = self.decoder.quantizer(gather(speech.codes, begin, size).transpose(1, 2))
        made = decode_part(self.decoder, latents, part, cold)
        first = part_begins(begin, size, part, cold)
        mel = self.mel(made, gather(speech.audio, first * FRAME, part * FRAME))
        mel.backward()
        return {"mel": mel}


def train(
    stage: EncoderStage | DecoderStage, name: str, lr: float, num_steps: int, log: Log
) -> None:
    """Take steps with a cosine schedule."""
    config = stage.config
    opt = optimizer(stage.parameters, lr, (0.9, 0.99), config.weight_decay)
    totals: dict[str, float] = {}
    for number in range(num_steps):
        set_lr(opt, lr * cosine(number / num_steps, number, config.warmup_steps, config.final_lr))
        opt.zero_grad(set_to_none=True)
        outputs = stage.step()
        nn.utils.clip_grad_norm_(stage.parameters, config.clip)
        opt.step()
        for key, value in outputs.items():
            totals[key] = totals.get(key, 0.0) + float(value.detach())
        if (number + 1) % 20 == 0:
            log(name, step=number + 1, **{key: value / 20 for key, value in totals.items()})
            totals = {}


@torch.no_grad()
def encode(trainer: CodecTrainer, audios: list[Tensor]) -> Speech:
    codes = [trainer.encode(one[None])[0] for one in audios]
    return Speech(torch.cat(audios), torch.cat(codes), [len(one) for one in codes])


def write(
    trainer: CodecTrainer, texts: list[str], speech: Speech, out: Path, base: Path, voice: str
) -> None:
    """A checkpoint folder with this decoder, and the codes of the recordings.

    `voice` is the only preset of the folder, so `vivace finetune` starts from its vector.
    """
    shutil.copytree(base, out, dirs_exist_ok=True)
    config = json.loads((base / "config.json").read_text("utf-8"))
    for key in ("spk_id", "spk_is_dialect"):
        config["talker_config"][key] = {voice: config["talker_config"][key][voice]}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    weights = load_file(base / CODEC_WEIGHTS)
    for name, tensor in trainer.decoder.state_dict().items():
        weights[f"decoder.{name}"] = tensor.half().cpu().contiguous()
    save_file(weights, out / CODEC_WEIGHTS, {"format": "pt"})
    with (out / "data.jsonl").open("w", encoding="utf-8") as file:
        for text, codes in zip(texts, speech.codes.split(speech.num_frames), strict=True):
            row = {"text": text, "language": "english", "audio_codes": codes.tolist()}
            file.write(json.dumps(row) + "\n")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="a folder like LJSpeech")
    options.add_argument("--base", type=Path, default=ASSET, help="default: the embedded voice")
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set)
    begin_stage()
    use_fast_snake()
    config = settings.adapt_codec
    log = Log(args.out.with_name(f"{args.out.name}.log.jsonl"))
    texts, audios = read_recordings(args.data)
    log("recordings", recordings=len(texts), minutes=sum(map(len, audios)) / SAMPLE_RATE / 60)
    lines = [*texts, *other_lines(config.num_other_lines)]
    preset, recorded = imitate(args.base, config.voice, lines, audios)
    log("preset", minutes=len(preset.audio) / SAMPLE_RATE / 60)
    trainer = build(settings, args.base)
    take_share(trainer, preset)
    train(EncoderStage(config, trainer, preset, recorded), "encoder", config.lr, config.steps, log)
    speech = encode(trainer, audios)
    write(trainer, texts, speech, args.out, args.base, config.voice)
    used = [len(book.unique()) for book in speech.codes.T]
    log("encoded", used=str(used))
    train(
        DecoderStage(config, trainer, speech), "decoder",
        config.decoder_lr, config.decoder_steps, log,
    )  # fmt: skip
    write(trainer, texts, speech, args.out, args.base, config.voice)


if __name__ == "__main__":
    main()
