"""Adapt the codec of the embedded voice to a new speaker, from recordings.

    python -m recipes.mini_voice.adapt_codec --data build/george --out build/george_base

The codec of the embedded voice supports only its two speakers, and its released encoder is
untrained. This stage runs on a GPU or a CPU:

1. A preset of the base speaks every transcript and as many other sentences as `num_other_lines`
   says. Its codes and its audio are exact pairs.
2. Dynamic time warping aligns each recording with the preset's speech. The decoder learns to speak
   the preset's codes with the timbre of the recordings.
3. The new decoder speaks all codes of the preset. From this speech and the aligned recordings, a
   mel encoder learns to find the codes. The codes keep their meaning, so the talker knows most of
   the way from text to codes.
4. The recordings are encoded. The preset's talker, which knows the transcript, helps to choose
   between codes of similar sound.

It writes a checkpoint folder with the new decoder, and `data.jsonl` with the codes of the
recordings and of other sentences of the preset. With these the talker does not forget words that
the recordings lack:

    vivace finetune build/george_base/data.jsonl --model build/george_base --name george --epochs 2

The codec of released checkpoints needs no such stage. The new folder keeps one preset, which
degrades.
"""

from __future__ import annotations

import json
import math
import shutil
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipes.mini_voice import train_codec
from recipes.mini_voice.adapt_data import (
    Speech,
    imitate,
    join_speech,
    other_lines,
    read_recordings,
)
from recipes.mini_voice.adapt_prior import Prior, choose_codes
from recipes.mini_voice.adapt_stages import (
    DecoderStage,
    EncoderStage,
    Length,
    Stage,
    code_pairs,
    train,
)
from recipes.mini_voice.codec_model import CodecTrainer
from recipes.mini_voice.common import DEVICE, Log, begin_stage
from recipes.mini_voice.import_asset import ASSET
from recipes.mini_voice.settings import SAMPLE_RATE, load_settings, parser
from recipes.mini_voice.snake import use_fast_snake
from recipes.mini_voice.stretch import stretch
from recipes.mini_voice.warp import align
from vivace.errors import TrainingDataError
from vivace.model.conv import CausalState

CODEC_WEIGHTS = Path("speech_tokenizer") / "model.safetensors"


def build(settings: SimpleNamespace, base: Path = ASSET) -> CodecTrainer:
    """The decoder and codebooks of `base`, with a small untrained encoder."""
    config = settings.adapt_codec
    vars(settings.encoder).update(width=config.encoder_width, num_blocks=config.encoder_blocks)
    trainer = train_codec.build(settings)
    trainer.dropout = 0.0  # the last codebook identifies the speaker
    asset = load_file(base / CODEC_WEIGHTS)
    own = {name.removeprefix("decoder."): one.float() for name, one in asset.items()}
    own = {name: one for name, one in own.items() if name in trainer.decoder.state_dict()}
    trainer.decoder.load_state_dict(own)
    quantizer = trainer.decoder.quantizer.requires_grad_(False)
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


@torch.no_grad()
def align_recordings(
    trainer: CodecTrainer, preset: Speech, recordings: list[Tensor]
) -> list[Tensor]:
    """The samples of recordings, stretched to the times of the preset's speech."""
    own, others = (
        [trainer.encoder.mels(one[None])[0] for one in audios]
        for audios in (preset.split(), recordings)
    )
    paths = align(others, own)
    return [stretch(one, path) for one, path in zip(recordings, paths, strict=True)]


@torch.no_grad()
def decode(trainer: CodecTrainer, codes: Tensor) -> Tensor:
    return trainer.decoder(codes[None], CausalState()).reshape(-1).float()


@torch.no_grad()
def encode(trainer: CodecTrainer, texts: list[str], audios: list[Tensor]) -> Speech:
    codes = [trainer.encode(one[None])[0] for one in audios]
    return join_speech(list(zip(texts, audios, codes, strict=True)))


class Adaptation:
    """Adapts encoder and decoder to recordings."""

    def __init__(
        self, config: SimpleNamespace, trainer: CodecTrainer, prior: Prior, log: Log, seconds: float
    ) -> None:
        self.config, self.trainer, self.prior = config, trainer, prior
        self.log, self.seconds = log, seconds

    def run(
        self, preset: Speech, imitated: list[Tensor], texts: list[str], audios: list[Tensor]
    ) -> Speech:
        """The recordings with their codes. The preset's first utterances have the words of the
        `imitated` recordings."""
        config, trainer = self.config, self.trainer
        spoken = preset.first(len(imitated))
        aligned = spoken.with_audio(align_recordings(trainer, spoken, imitated))
        self.log("aligned")
        self._train("decoder", DecoderStage(config, trainer, spoken, aligned.audio))
        voiced = preset.with_audio([decode(trainer, codes) for codes in preset.split_codes()])
        pairs = [code_pairs(trainer, one) for one in (aligned, voiced)]
        self._train("encoder", EncoderStage(config, trainer, *pairs))
        return self._encode(texts, audios)

    def _train(self, name: str, stage: Stage) -> None:
        begin_stage()
        steps, share = (getattr(self.config, f"{name}_{key}") for key in ("steps", "share"))
        train(stage, name, Length(steps, share * self.seconds), self.log)

    def _encode(self, texts: list[str], audios: list[Tensor]) -> Speech:
        config = self.config
        encoded = encode(self.trainer, texts, audios)
        speech = choose_codes(
            self.trainer, self.prior, encoded, config.temperature, config.prior_weight
        )
        changed = (speech.codes != encoded.codes).float().mean(0)
        used = [len(book.unique()) for book in speech.codes.T]
        self.log("codes", changed=str([round(one, 2) for one in changed.tolist()]), used=str(used))
        return speech


def write_checkpoint(trainer: CodecTrainer, out: Path, base: Path, voice: str) -> None:
    """A checkpoint folder with this decoder.

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


def write_data(path: Path, *parts: tuple[Speech, slice]) -> None:
    """The codes of these utterances, as `vivace finetune` reads them."""
    with path.open("w", encoding="utf-8") as file:
        for speech, chosen in parts:
            codes = speech.codes.split(speech.num_frames)
            for text, one in islice(
                zip(speech.texts, codes, strict=True), chosen.start, chosen.stop
            ):
                row = {"text": text, "language": "english", "audio_codes": one.tolist()}
                file.write(json.dumps(row) + "\n")


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "--data", type=Path, required=True, help="recordings, as for `vivace finetune`"
    )
    options.add_argument("--base", type=Path, default=ASSET, help="default: the embedded voice")
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set, on_gpu=DEVICE.type == "cuda")
    config = settings.adapt_codec
    log = Log(args.out.with_name(f"{args.out.name}.log.jsonl"))
    try:
        texts, audios, rejections = read_recordings(args.data)
    except TrainingDataError as error:
        raise SystemExit(f"--data: {error}") from None
    for one in rejections:
        log("rejected", recording=one.where, reason=one.reason)
    if not texts:
        raise SystemExit(f"{args.data}: no recording can be used")
    log("recordings", recordings=len(texts), minutes=sum(map(len, audios)) / SAMPLE_RATE / 60)
    lines = [*texts, *other_lines(config.num_other_lines)]
    log("imitate", voice=config.voice, sentences=len(lines))
    preset, imitated = imitate(args.base, config.voice, lines, audios)
    log("preset", utterances=len(preset.texts), minutes=len(preset.audio) / SAMPLE_RATE / 60)
    begin_stage()
    use_fast_snake()
    trainer = build(settings, args.base)
    take_share(trainer, preset)
    prior = Prior(args.base, config.voice)
    adaptation = Adaptation(config, trainer, prior, log, args.seconds or math.inf)
    speech = adaptation.run(preset, imitated, texts, audios)
    write_checkpoint(trainer, args.out, args.base, config.voice)
    replayed = slice(len(imitated), len(imitated) + config.num_replayed)
    write_data(args.out / "data.jsonl", (speech, slice(None)), (preset, replayed))


if __name__ == "__main__":
    main()
