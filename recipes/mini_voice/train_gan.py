"""Second codec stage: train the decoder with discriminators and a listener, on fixed codes.

Starts with the first shards and adds others as they appear. Writes decoder.safetensors (an average
over the last steps), discriminators.safetensors, listener.safetensors and samples.npz. Saves its
whole state on the machine, so that another call can continue.
"""

from __future__ import annotations

import copy
import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from recipes.mini_voice import encode
from recipes.mini_voice.codec_model import decode_part, part_begins
from recipes.mini_voice.common import (
    BEGUN,
    DEVICE,
    SAVE_EVERY_S,
    Log,
    Step,
    TimeBox,
    Timer,
    autocast,
    begin_stage,
    beside,
    branches,
    join,
    late_decay,
    load_half,
    optimizer,
    save_half,
    set_lr,
)  # fmt: skip
from recipes.mini_voice.discriminators import Discriminators, discriminator_loss, generator_losses
from recipes.mini_voice.lines import SPEAKER
from recipes.mini_voice.listener import Listener, compare
from recipes.mini_voice.mels import MelLoss
from recipes.mini_voice.settings import FRAME, load_settings, parser
from recipes.mini_voice.snake import use_fast_snake
from recipes.mini_voice.store import MAX_UTTERANCES, Store, gather
from recipes.mini_voice.synthesize import start_synthesis
from recipes.mini_voice.train_codec import build, fast_step, speaker_loss, training_voice_rows
from vivace.model.codec_decoder import CodecDecoder
from vivace.model.conv import CausalState

SAVING_S = 8.0  # for saving and samples after the last step


class Stage:
    def __init__(self, settings: SimpleNamespace, store: Store, decoder: CodecDecoder) -> None:
        self.config, self.store, self.decoder = settings.train_gan, store, decoder
        config = self.config
        self.judges = Discriminators(config).to(DEVICE)
        self.listener = Listener(config).to(DEVICE)
        self.mel, self.speaker = MelLoss().to(DEVICE), speaker_loss(settings, "train_gan")
        self.rows = training_voice_rows(settings)
        self.average = copy.deepcopy(decoder).requires_grad_(False)
        self.parameters = [p for p in decoder.parameters() if p.requires_grad]
        self.averaged: list[Tensor] = [
            a
            for a, p in zip(self.average.parameters(), decoder.parameters(), strict=True)
            if p.requires_grad
        ]
        betas = tuple(config.betas)
        self.optimizer = optimizer(self.parameters, config.lr, betas, config.weight_decay)
        self.judge_parameters = [*self.judges.parameters(), *self.listener.parameters()]
        self.judge_optimizer = optimizer(
            self.judge_parameters, config.discriminator_lr, betas, config.weight_decay
        )
        # Of the losses in the order of `_losses`.
        shares = [1.0, config.listener_share, *[config.judge_share] * len(self.judges.all)]
        shares += [] if self.speaker is None else [config.speaker_weight]
        self.shares = torch.tensor(shares, device=DEVICE)
        self.norms = torch.zeros(2, len(shares), device=DEVICE)  # averages, and their weights
        self.reach = torch.ones(len(shares), device=DEVICE)
        self.branches = branches(1)

    def step(self) -> dict[str, Tensor]:
        """Update decoder and discriminators from one pass through the discriminators."""
        made, gradients, taught, figures = self._losses()
        torch.autograd.backward(taught, inputs=self.judge_parameters)
        made.backward(self._balance(gradients))
        return {name: value.detach() for name, value in (figures | self._update()).items()}

    def _losses(self) -> tuple[Tensor, tuple[Tensor, ...], Tensor, dict[str, Tensor]]:
        """Return generated samples, the gradient of each loss, and the discriminators' loss."""
        config, num_judges = self.config, len(self.judges.all)
        codes, real, labels = self._crops()
        with autocast(config.precision):
            latents = self.decoder.quantizer(codes.transpose(1, 2))
            made = decode_part(self.decoder, latents, config.wave_frames, config.num_starts)
        # One leaf per loss, so that one backward pass gives the gradient of each.
        leaves = [made.detach().requires_grad_() for _ in self.shares]
        mel = self.mel(leaves[0], real)
        with autocast(config.discriminator_precision), parametrize.cached():
            with beside(self.branches[0]):
                heard = compare(self.listener(self._dithered(real, leaves[1])), labels)
            speaker = mel.new_zeros(())
            if self.speaker is not None:
                speaker = self.speaker(leaves[-1][self.rows], real[self.rows])
            judged = self.judges([self._dithered(real, leaf) for leaf in leaves[2:][:num_judges]])
            join(self.branches)
        fool, likeness = generator_losses(judged)
        wanted = mel + fool.sum() + config.feature_weight * likeness.sum()
        wanted = wanted + heard.missed + config.listener_feature_weight * heard.unlike + speaker
        gradients = torch.autograd.grad(wanted, leaves, retain_graph=True)
        judge = discriminator_loss(judged)
        figures = {
            "judge": judge, "mel": mel, "fool": fool.sum(), "likeness": likeness.mean(),
            "speaker": speaker, **heard.figures,
        }  # fmt: skip
        return made, gradients, judge + heard.learned, figures

    def _crops(self) -> tuple[Tensor, Tensor, Tensor]:
        """Codes of whole crops; samples and labels of the judged part."""
        config, train = self.config, self.store.train
        begin = self.store.sample_frames(config.batch, config.crop_frames, config.num_starts)
        codes = gather(train.codes, begin, config.crop_frames).long()
        judged_from = part_begins(begin, config.crop_frames, config.wave_frames, config.num_starts)
        audio = gather(train.audio, judged_from * FRAME, config.wave_frames * FRAME)
        labels = gather(train.labels, judged_from * 2, config.wave_frames * 2)
        return codes, audio.float() / 32768, labels.long()

    def _dithered(self, real: Tensor, made: Tensor) -> Tensor:
        """Real and generated samples in one batch with noise, which hides rounding in silence."""
        both = torch.cat((real, made))
        return both + self.config.dither * torch.randn_like(both)

    def _balance(self, gradients: tuple[Tensor, ...]) -> Tensor:
        """The sum of the gradients, each scaled to its share."""
        now = torch.stack(torch._foreach_norm(gradients))
        self.norms.lerp_(torch.stack((now, torch.ones_like(now))), 1 - self.config.norm_decay)
        norms = self.norms[0] / self.norms[1] * self.reach
        scales = self.shares / norms.clamp(min=1e-12)
        return (torch.stack(gradients) * scales[:, None, None]).sum(0)

    def measure(self) -> None:
        """Set `reach`: the effect of each gradient on AdamW's step, relative to the mel loss.

        Gradients of equal norm at the samples differ up to a hundredfold at the weights.
        """
        moved = [p for p in self.parameters if p in self.optimizer.state]
        sizes = [self.optimizer.state[p]["exp_avg_sq"].sqrt() + 1e-8 for p in moved]
        made, gradients, *_ = self._losses()
        lengths = []
        for gradient in gradients:
            found = torch.autograd.grad(made, moved, gradient, retain_graph=True)
            steps = torch._foreach_norm(torch._foreach_div(found, sizes))
            lengths.append(torch.stack(steps).norm() / gradient.norm())
        self.reach.mul_(torch.stack(lengths) / lengths[0]).sqrt_()

    def _update(self) -> dict[str, Tensor]:
        config = self.config
        clip = torch.nn.utils.clip_grad_norm_
        judge_norm = clip(self.judge_parameters, config.judge_clip)
        self.judge_optimizer.step()
        norm = clip(self.parameters, config.clip)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.averaged, (*self.parameters,), 1 - config.ema_decay)
        return {"norm": norm, "judge_norm": judge_norm}

    def reset(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.judge_optimizer.zero_grad(set_to_none=True)

    def drop_speaker_loss(self) -> None:
        self.speaker = None
        self.shares, self.reach = self.shares[:-1], self.reach[:-1].clone()
        self.norms = self.norms[:, :-1].clone()

    def _parts(self) -> dict[str, torch.nn.Module | torch.optim.Optimizer]:
        return {
            "decoder": self.decoder, "average": self.average, "judges": self.judges,
            "listener": self.listener, "optimizer": self.optimizer,
            "judge_optimizer": self.judge_optimizer,
        }  # fmt: skip

    def begin_from(self, folder: Path) -> None:
        """Load discriminators and listener of an earlier run, if any."""
        for name, part in (("discriminators", self.judges), ("listener", self.listener)):
            path = folder / f"{name}.safetensors"
            if path.exists():
                load_half(path, part)

    def save(self, path: Path, number: int) -> None:
        """Save the whole state in full precision."""
        path.parent.mkdir(parents=True, exist_ok=True)
        states = {name: part.state_dict() for name, part in self._parts().items()}
        balance = {"norms": self.norms, "reach": self.reach}
        torch.save({**states, **balance, "number": number}, path)

    def write_decoder(self, out: Path) -> None:
        """Write the averaged decoder."""
        save_half(out / "decoder.safetensors", self.average.state_dict())

    def write(self, out: Path) -> None:
        """Write the averaged decoder, the discriminators and the listener."""
        self.write_decoder(out)
        save_half(out / "discriminators.safetensors", self.judges.state_dict())
        save_half(out / "listener.safetensors", self.listener.state_dict())

    def load(self, path: Path) -> int:
        """Load the state and return its number of steps."""
        states = torch.load(path, map_location=DEVICE)
        for name, part in self._parts().items():
            part.load_state_dict(states[name])
        self.norms.copy_(states["norms"])
        self.reach.copy_(states["reach"])
        number: int = states["number"]
        return number


@torch.no_grad()
def dev_mel(count: int, store: Store, decoder: CodecDecoder, mel: MelLoss) -> float:
    distances = []
    for start, frames in list(zip(store.dev.starts, store.dev.frames, strict=True))[:count]:
        samples = store.dev.audio[start * FRAME : (start + frames) * FRAME].float() / 32768
        made = decoder(store.dev.codes[None, start : start + frames].long(), CausalState())
        distances.append(mel(made.float(), samples[None]))
    return float(torch.stack(distances).mean()) if distances else float("nan")


@torch.no_grad()
def write_samples(store: Store, decoder: CodecDecoder, path: Path) -> None:
    """Write dev utterances of every speaker, original and decoded, as int16 to one file."""
    arrays: dict[str, Any] = {}
    speakers = [line // SPEAKER for line in store.dev.lines]
    chosen = [
        [i for i, who in enumerate(speakers) if who == speaker][:24] for speaker in set(speakers)
    ]
    for index in itertools.chain(*chosen):
        start, frames = store.dev.starts[index], store.dev.frames[index]
        line = store.dev.lines[index]
        made = decoder(store.dev.codes[None, start : start + frames].long(), CausalState())[0]
        arrays[f"true_{line}"] = (
            store.dev.audio[start * FRAME : (start + frames) * FRAME].cpu().numpy()
        )
        arrays[f"made_{line}"] = (made.float() * 32767).round().to(torch.int16).cpu().numpy()
    np.savez(path, **arrays)


def run(
    settings: SimpleNamespace, store: Store, log: Log, out: Path, decoder: CodecDecoder, *,
    until: float, use_graph: bool = True, resume: Path | None = None,
    keep_every: float | None = None,
) -> None:  # fmt: skip
    """Train and save within `until` seconds after the program's start.

    With `keep_every`, also write the decoder to a new folder in `out`/kept after each such time.
    """
    begin_stage()
    use_fast_snake()
    config = settings.train_gan
    torch.backends.cudnn.benchmark = config.benchmark
    store.wait()
    box = TimeBox(max(5.0, until - (time.perf_counter() - BEGUN) - SAVING_S))
    stage, number = Stage(settings, store, decoder), 0
    if Path(config.state).exists():
        number = stage.load(Path(config.state))
    elif resume is not None:
        stage.begin_from(resume)
    num_dev = settings.train_codec.num_dev_utterances
    log(
        "gan",
        discriminators=sum(p.numel() for p in stage.judges.parameters()),
        listener_size=sum(p.numel() for p in stage.listener.parameters()),
        step=number,
        dev_mel=dev_mel(num_dev, store, stage.average, stage.mel),
    )
    set_lr(stage.optimizer, 1e-6)
    set_lr(stage.judge_optimizer, 1e-6)
    modules = [decoder, stage.judges, stage.listener]
    step = fast_step(
        stage, lambda: Step("gan", stage.step, stage.reset, modules, use_graph=use_graph)
    )
    first, marked, mark = number, number, box.elapsed
    saving, keeping = Timer(SAVE_EVERY_S), Timer(keep_every or float("inf"))
    while (progress := box.progress) < 1:
        scale = late_decay(progress, config.final_lr, config.decay_from)
        set_lr(stage.optimizer, config.lr * scale * min(1.0, (number + 1) / config.warmup_steps))
        set_lr(stage.judge_optimizer, config.discriminator_lr * scale)
        outputs = step()
        number += 1
        if number % 25 == 0 and not store.is_complete:
            store.poll()
        if number % 200 == 0 or number < first + 4:
            values = {name: float(value) for name, value in outputs.items()}
            rate = 1000 * (box.elapsed - mark) / (number - marked)
            marked, mark = number, box.elapsed
            reach = [round(value, 3) for value in stage.reach.tolist()]
            log("gan", step=number, ms=rate, hours=store.hours, reach=str(reach), **values)
        if number % config.measure_every == 0:
            stage.measure()
        if saving.is_due():
            stage.write(out)
        if keeping.is_due():
            stage.write_decoder(out / "kept" / f"{number:07d}")
    stage.write(out)
    log(
        "gan",
        steps=number,
        refused=store.train.num_refused,
        dev_mel=dev_mel(num_dev, store, stage.average, stage.mel),
    )
    write_samples(store, stage.average, out / "samples.npz")
    stage.save(Path(config.state), number)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--until", type=float, help="time limit in seconds, with saving")
    options.add_argument("--as-read", action="store_true", help="use existing shards only")
    options.add_argument("--keep-every", type=float, metavar="SECONDS",
                         help="keep a decoder of each such time")  # fmt: skip
    args = options.parse_args()
    settings = load_settings(args.smoke, args.set)
    synthesis = None if args.as_read else start_synthesis(args)
    log = Log(args.out / "log.jsonl")
    known = encode.read(Path(settings.train_gan.codes)).by_line()
    store = Store(settings.data, settings.codec.num_quantizers, known)
    if args.as_read:
        store.poll(most=MAX_UTTERANCES)
        store.close()
    decoder = build(settings).decoder
    load_half(args.resume / "decoder.safetensors", decoder)
    run(
        settings, store, log, args.out, decoder, until=args.until or settings.train_gan.seconds,
        use_graph=not args.no_graph, resume=args.resume, keep_every=args.keep_every,
    )  # fmt: skip
    if synthesis is not None:
        synthesis.wait()
    peak = torch.cuda.max_memory_allocated() / 2**30 if DEVICE.type == "cuda" else 0.0
    log("done", peak_gib=peak)


if __name__ == "__main__":
    main()
