"""Distil ERes2Net into a small speaker encoder; write a vector of every training utterance.

    python -m recipes.mini_voice.train_speakers --out FOLDER

Reads the shards of `synthesize`. ERes2Net (3D-Speaker, Apache-2.0) gives a vector of some
utterances of every voice; the encoder learns to predict their direction from another crop with
noise. `train_speakers.network` names a folder of `eres2net`. Writes speaker_encoder.safetensors and
speakers.npz, which `train_talker` reads.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.mini_voice.common import (
    DEVICE,
    Log,
    Step,
    add_noise,
    begin_stage,
    change_gain,
    load_half,
    optimizer,
    save_half,
    set_lr,
    train,
)  # fmt: skip
from recipes.mini_voice.eres2net import WIDTH, KaldiMels, load_packed, to_16k
from recipes.mini_voice.lines import SPEAKER
from recipes.mini_voice.settings import (
    FRAME,
    SAMPLE_RATE,
    load_settings,
    parser,
    speaker_encoder_config,
)
from recipes.mini_voice.speaker_vectors import NO_VOICE, voices_of_lines
from recipes.mini_voice.store import MAX_UTTERANCES, Part, Store, gather
from vivace.model.mel import log_mel
from vivace.model.speaker_encoder import SpeakerEncoder

LEVEL = 0.1  # root mean square of a vector, like that of the talker's embeddings at the start


def chosen_utterances(settings: SimpleNamespace, part: Part) -> list[int]:
    """Up to `clips_each` utterances of every voice that are as long as a crop."""
    least = settings.train_speakers.crop_s * SAMPLE_RATE / FRAME
    voices = voice_keys(settings, part)
    found: dict[int, list[int]] = defaultdict(list)
    for utterance, frames in enumerate(part.frames):
        own = found[int(voices[utterance])]
        if frames > least and len(own) < settings.train_speakers.clips_each:
            own.append(utterance)
    return [utterance for own in found.values() for utterance in own]


def voice_keys(settings: SimpleNamespace, part: Part) -> np.ndarray:
    """A number for every voice: that of the training voice, or minus the preset speaker minus 1."""
    lines = np.asarray(part.lines)
    voices = voices_of_lines(settings, lines)
    return np.where(voices == NO_VOICE, -1 - lines // SPEAKER, voices)


class Stage:
    def __init__(self, settings: SimpleNamespace, part: Part, utterances: list[int]) -> None:
        self.config, self.part = settings.train_speakers, part
        self.encoder = SpeakerEncoder(speaker_encoder_config(settings)).to(DEVICE)
        self.head = nn.Linear(settings.speaker_encoder.enc_dim, WIDTH).to(DEVICE)
        self.parameters = [*self.encoder.parameters(), *self.head.parameters()]
        self.optimizer = optimizer(
            self.parameters, self.config.lr, tuple(self.config.betas), self.config.weight_decay
        )
        self.size = int(self.config.crop_s * SAMPLE_RATE)
        starts = torch.tensor([part.starts[i] for i in utterances], device=DEVICE)
        frames = torch.tensor([part.frames[i] for i in utterances], device=DEVICE)
        self.begins = starts * FRAME
        self.spare = frames * FRAME - self.size  # samples by which a crop may be shifted
        self.targets = torch.zeros(len(utterances), WIDTH, device=DEVICE)

    def crops(self, chosen: Tensor) -> Tensor:
        shift = torch.rand(len(chosen), dtype=torch.float64, device=DEVICE)
        begins = self.begins[chosen] + (shift * self.spare[chosen]).long()
        return gather(self.part.audio, begins, self.size).float() / 32768

    @torch.no_grad()
    def set_targets(self, network: nn.Module) -> None:
        """The mean direction of two crops by ERes2Net."""
        kaldi_mels = KaldiMels().to(DEVICE)
        for part in torch.arange(len(self.begins), device=DEVICE).split(self.config.batch):
            crops = [network(kaldi_mels(to_16k(self.crops(part)))) for _ in range(2)]
            vectors = sum(F.normalize(one.float(), dim=-1) for one in crops)
            assert isinstance(vectors, Tensor)
            self.targets[part] = F.normalize(vectors, dim=-1)

    def step(self) -> dict[str, Tensor]:
        chosen = torch.rand(self.config.batch, dtype=torch.float64, device=DEVICE)
        chosen = (chosen * len(self.begins)).long()
        noisy = add_noise(self.crops(chosen), self.config.noise_db)
        vectors = self.encoder(log_mel(change_gain(noisy, self.config.gain_db)))
        found = F.normalize(self.head(vectors), dim=-1)
        likeness = (found * self.targets[chosen]).sum(-1).mean()
        # Every pair of a batch has the likeness that ERes2Net gives it.
        pairs = F.mse_loss(found @ found.T, self.targets[chosen] @ self.targets[chosen].T)
        level = vectors.square().mean().sqrt()
        (1 - likeness + pairs + (level / LEVEL).log().square()).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        outputs = {"likeness": likeness, "pairs": pairs, "level": level, "norm": norm}
        return {name: value.detach() for name, value in outputs.items()}

    def reset(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def write_vectors(
    settings: SimpleNamespace, encoder: SpeakerEncoder, part: Part, path: Path
) -> None:
    """The vector of the middle of every utterance of the training voices."""
    voices = voices_of_lines(settings, np.asarray(part.lines))
    own = [i for i in range(len(voices)) if voices[i] != NO_VOICE]
    vectors, most = [], int(settings.train_speakers.crop_s * SAMPLE_RATE)
    for utterance in own:
        samples = part.audio[part.starts[utterance] * FRAME :][: part.frames[utterance] * FRAME]
        begin = max(0, len(samples) - most) // 2
        crop = samples[begin : begin + most].float() / 32768
        vectors.append(encoder(log_mel(crop[None]))[0].half().cpu().numpy())
    lines = np.asarray([part.lines[i] for i in own], np.int32)
    np.savez(path, lines=lines, vectors=np.stack(vectors))


def run(
    settings: SimpleNamespace, store: Store, log: Log, out: Path, *,
    seconds: float | None, resume: Path | None = None,
) -> None:  # fmt: skip
    begin_stage()
    config, part = settings.train_speakers, store.train
    stage = Stage(settings, part, chosen_utterances(settings, part))
    if resume is not None:  # the vectors stay similar, so that a talker can be continued
        load_half(resume / "speaker_encoder.safetensors", stage.encoder)
    stage.set_targets(load_packed(Path(config.network)))
    log("speakers", clips=len(stage.targets), hours=store.hours)
    set_lr(stage.optimizer, 1e-6)
    # `log_mel` copies its filters from the host, which a graph cannot capture.
    step = Step("speakers", stage.step, stage.reset, [stage.encoder], use_graph=False)
    path = out / "speaker_encoder.safetensors"
    number = train(
        "speakers", step, stage.optimizer, config, seconds or config.seconds, log,
        lambda: save_half(path, stage.encoder.state_dict()),
    )  # fmt: skip
    write_vectors(settings, stage.encoder, part, out / "speakers.npz")
    log("speakers", steps=number)


def main() -> None:
    args = parser(__doc__).parse_args()
    settings = load_settings(args.smoke, args.set)
    store = Store(settings.data, settings.codec.num_quantizers)
    store.poll(most=MAX_UTTERANCES)
    store.close()
    args.out.mkdir(parents=True, exist_ok=True)
    log = Log(args.out / "speakers.jsonl")
    run(settings, store, log, args.out, seconds=args.seconds, resume=args.resume)


if __name__ == "__main__":
    main()
