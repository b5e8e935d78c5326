"""First codec stage: train encoder, codebooks and decoder by mel distance.

Starts without quantisation, initialises the codebooks by k-means, and continues with them. Writes
encoder.safetensors (not shipped) and decoder.safetensors.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.mini_voice.codec_model import CodecTrainer, decode_part, take_part
from recipes.mini_voice.common import (
    DEVICE,
    SAVE_EVERY_S,
    Log,
    Step,
    TimeBox,
    Timer,
    autocast,
    begin_stage,
    cosine,
    initialise,
    load_half,
    optimizer,
    save_half,
    set_lr,
)  # fmt: skip
from recipes.mini_voice.eres2net import SpeakerLoss
from recipes.mini_voice.mels import MelLoss
from recipes.mini_voice.settings import FRAME, LABEL, decoder_config, load_settings, parser
from recipes.mini_voice.snake import use_fast_snake
from recipes.mini_voice.store import Store, gather
from recipes.mini_voice.voices import TRAINING_VOICES
from vivace.model.codec_decoder import CodecDecoder


def build(settings: SimpleNamespace, speaker: int = 0) -> CodecTrainer:
    decoder = CodecDecoder(decoder_config(settings))
    initialise(decoder)
    for name, parameter in decoder.named_parameters():
        if "_codebook" in name:
            parameter.data.fill_(1.0)
            parameter.requires_grad_(False)
    return CodecTrainer(settings, decoder, speaker).to(DEVICE)


def save(trainer: CodecTrainer, out: Path) -> None:
    trainer.write_codebooks()
    state = trainer.state_dict()
    save_half(out / "decoder.safetensors", trainer.decoder.state_dict())
    save_half(
        out / "encoder.safetensors",
        {k: v for k, v in state.items() if not k.startswith(("decoder.", "books.sums"))},
    )


def restore(trainer: CodecTrainer, folder: Path) -> int:
    """Load the files of `save`. The moving averages restart from the saved vectors.

    Returns the number of loaded codebooks; further ones must be initialised.
    """
    from safetensors.torch import load_file

    load_half(folder / "decoder.safetensors", trainer.decoder)
    loaded = {k: v.float() for k, v in load_file(folder / "encoder.safetensors").items()}
    num_books = len(loaded["books.usage"])
    for name in ("books.vectors", "books.usage"):
        now = trainer.state_dict()[name].clone()
        now[:num_books] = loaded[name].to(now)
        loaded[name] = now
    trainer.load_state_dict(loaded, strict=False)
    trainer.books.usage.clamp_(min=0.5)
    trainer.books.sums.copy_(trainer.books.vectors * trainer.books.usage[..., None])
    return num_books


def speaker_loss(settings: SimpleNamespace, stage: str) -> SpeakerLoss | None:
    """The speaker loss of a codec stage, or None if its weight is 0."""
    if not getattr(settings, stage).speaker_weight:
        return None
    network = Path(settings.train_speakers.network)
    return SpeakerLoss(network, settings.train_gan.dither).to(DEVICE)


def training_voice_rows(settings: SimpleNamespace) -> slice:
    """The rows of a batch to which the speaker loss applies: those of the training voices.

    Presets need no help to keep their speaker, and the loss takes a third of the time.
    """
    names = settings.data.speakers
    return slice(names.index(TRAINING_VOICES) if TRAINING_VOICES in names else 0, None, len(names))


class WithSpeakerLoss(Protocol):
    speaker: SpeakerLoss | None

    def drop_speaker_loss(self) -> None: ...


def fast_step(stage: WithSpeakerLoss, make: Callable[[], Step]) -> Step:
    """Capture the step. If the capture fails, capture it without the speaker loss."""
    step = make()
    if step.has_failed and stage.speaker is not None:
        print("continuing without the speaker loss", flush=True)
        stage.drop_speaker_loss()
        step = make()
    return step


class Stage:
    def __init__(self, settings: SimpleNamespace, store: Store, trainer: CodecTrainer) -> None:
        self.config, self.store, self.trainer = settings.train_codec, store, trainer
        self.mel, self.speaker = MelLoss().to(DEVICE), speaker_loss(settings, "train_codec")
        self.rows = training_voice_rows(settings)
        self.parameters = [p for p in trainer.parameters() if p.requires_grad]
        self.optimizer = optimizer(
            self.parameters, self.config.lr, (0.9, 0.99), self.config.weight_decay
        )

    def crop(self) -> tuple[Tensor, Tensor]:
        """Samples [B, n] and labels [B, 2 * frames] from anywhere, not only from frame borders."""
        config, train = self.config, self.store.train
        begin = self.store.sample_frames(config.batch, config.crop_frames + 1, config.num_starts)
        shift = (torch.rand(config.batch, device=DEVICE) * FRAME).long()
        begin = begin * FRAME + shift
        samples = gather(train.audio, begin, config.crop_frames * FRAME).float() / 32768
        centres = torch.arange(2 * config.crop_frames, device=DEVICE) * LABEL + LABEL // 2
        labels = train.labels[(begin[:, None] + centres) // LABEL].long()
        return samples, labels

    def step(self, *, is_quantised: bool) -> dict[str, Tensor]:
        config, trainer = self.config, self.trainer
        samples, labels = self.crop()
        with autocast(config.precision):
            first, rest = trainer.branches(trainer.encoder(samples))
            commit = first.new_zeros(())
            if is_quantised:
                with torch.autocast(DEVICE.type, enabled=False):
                    first, rest, commit = trainer.quantise(first, rest)
            phonemes = trainer.phonemes(first).unflatten(-1, (2, -1)).flatten(1, 2)
            made = decode_part(
                trainer.decoder, trainer.join(first, rest), config.wave_frames, config.num_starts
            )
        phoneme = F.cross_entropy(phonemes.float().flatten(0, 1), labels.flatten())
        true = take_part(samples, config.wave_frames * FRAME, config.num_starts)
        mel, speaker = self.mel(made, true), made.new_zeros(())
        if self.speaker is not None:
            with autocast(config.precision):
                speaker = self.speaker(made[self.rows], true[self.rows])
        loss = (
            config.mel_weight * mel
            + config.speaker_weight * speaker
            + config.commit_weight * commit
            + config.phoneme_weight * phoneme
        )
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, config.clip)
        self.optimizer.step()
        outputs = {
            "mel": mel, "speaker": speaker, "commit": commit, "phoneme": phoneme, "norm": norm,
        }  # fmt: skip
        return {name: value.detach() for name, value in outputs.items()}

    def reset(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def drop_speaker_loss(self) -> None:
        self.speaker = None

    @torch.no_grad()
    def set_codebooks(self, begin: int = 0) -> None:
        """Initialise the codebooks from `begin` on by k-means over the residuals."""
        firsts, rests = [], []
        per_crop = self.config.batch * self.config.crop_frames
        for _ in range(-(-self.config.kmeans_vectors // per_crop)):
            with autocast(self.config.precision):
                first, rest = self.trainer.branches(self.trainer.encoder(self.crop()[0]))
            firsts.append(first.flatten(0, 1))
            rests.append(rest.flatten(0, 1))
        books = self.trainer.books
        if begin == 0:
            books.initialise(0, torch.cat(firsts))
        residual = torch.cat(rests)
        for index in range(1, len(books.usage)):
            if index >= begin:
                books.initialise(index, residual)
            residual = residual - books.quantise(index, residual, learn=False)[1]


@torch.no_grad()
def dev_mel(settings: SimpleNamespace, store: Store, trainer: CodecTrainer, mel: MelLoss) -> float:
    """Round-trip mel distance on the first dev utterances."""
    distances = []
    for start, frames in list(zip(store.dev.starts, store.dev.frames, strict=True))[
        : settings.train_codec.num_dev_utterances
    ]:
        samples = store.dev.audio[start * FRAME : (start + frames) * FRAME].float() / 32768
        made = round_trip(trainer, samples)
        distances.append(mel(made[None], samples[None]))
    return float(torch.stack(distances).mean()) if distances else float("nan")


@torch.no_grad()
def round_trip(trainer: CodecTrainer, samples: Tensor) -> Tensor:
    from vivace.model.conv import CausalState

    codes = trainer.encode(samples[None])
    return trainer.decoder(codes, CausalState())[0].float()


def run(
    settings: SimpleNamespace, store: Store, log: Log, out: Path, *,
    seconds: float | None = None, use_graph: bool = True, resume: Path | None = None,
) -> CodecTrainer:  # fmt: skip
    begin_stage()
    config = settings.train_codec
    trainer = build(settings)
    count = {k: sum(p.numel() for p in m.parameters()) for k, m in trainer.named_children()}
    log("codec", parameters=str(count))
    use_fast_snake()
    store.wait()
    stage = Stage(settings, store, trainer)
    is_quantised = resume is not None
    if resume is not None:
        known = restore(trainer, resume)
        if known < settings.codec.num_quantizers:
            stage.set_codebooks(known)
    set_lr(stage.optimizer, 1e-6)
    box = TimeBox(seconds or config.seconds)
    step = fast_step(stage, lambda: Step(
        "codec", lambda: stage.step(is_quantised=is_quantised), stage.reset, [trainer],
        use_graph=use_graph,
    ))  # fmt: skip
    number, marked, mark, timer = 0, 0, box.elapsed, Timer(SAVE_EVERY_S)
    while (progress := box.progress) < 1:
        if not is_quantised and (number == config.unquantised_steps or progress > 0.25):
            stage.set_codebooks()
            is_quantised = True
            step = Step(
                "codec, quantised", lambda: stage.step(is_quantised=True), stage.reset, [trainer],
                use_graph=use_graph,
            )  # fmt: skip
        set_lr(
            stage.optimizer,
            config.lr * cosine(progress, number, config.warmup_steps, config.final_lr),
        )
        outputs = step()
        number += 1
        if number % 25 == 0 and not store.is_complete:
            store.poll()
        if number % 100 == 0 or number < 4:
            values = {name: float(value) for name, value in outputs.items()}
            used = trainer.books.perplexity().round().int().tolist() if is_quantised else []
            rate = 1000 * (box.elapsed - mark) / max(1, number - marked)
            marked, mark = number, box.elapsed
            log("codec", step=number, ms=rate, hours=store.hours, used=str(used), **values)
        if is_quantised and timer.is_due():
            save(trainer, out)
    save(trainer, out)
    log("codec", steps=number, dev_mel=dev_mel(settings, store, trainer, stage.mel))
    return trainer


def main() -> None:
    args = parser(__doc__).parse_args()
    settings = load_settings(args.smoke, args.set)
    store = Store(settings.data, settings.codec.num_quantizers)
    run(
        settings, store, Log(args.out / "log.jsonl"), args.out,
        seconds=args.seconds, use_graph=not args.no_graph, resume=args.resume,
    )  # fmt: skip


if __name__ == "__main__":
    main()
