"""One training step of talker and predictor: batches by length, losses and the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.mini_voice import encode
from recipes.mini_voice.common import DEVICE, autocast, optimizer
from recipes.mini_voice.rows import END, NOTHING, Examples
from recipes.mini_voice.settings import NUM_PHONEMES
from recipes.mini_voice.speaker_vectors import SpeakerVectors, voices_of_lines
from recipes.mini_voice.talker_files import embed
from vivace.model.cache import attend_causally
from vivace.model.talker import Talker

IGNORED = -100


class Dropout:
    """Dropout after every attention and MLP. The model code has none and calls no hooks."""

    def __init__(self, model: nn.Module, probability: float) -> None:
        self.probability, self.is_on = probability, True
        for name, module in model.named_modules():
            if name.endswith((".self_attn", ".mlp")):
                module.forward = self._after(module.forward)

    def _after(self, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *inputs: self(forward(*inputs))

    def __call__(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.probability) if self.is_on else x


class Lookup(torch.autograd.Function):
    """An embedding whose gradient is a product with one-hot rows, faster than sort and scatter."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.size = len(weight)
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (ids,) = ctx.saved_tensors
        dtype = torch.bfloat16 if grad.is_cuda else grad.dtype
        rows = torch.arange(ctx.size, device=ids.device)[:, None] == ids.flatten()
        return None, (rows.to(dtype) @ grad.flatten(0, -2).to(dtype)).float()


def use_fast_lookup(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.forward = partial(_look_up, module)  # type: ignore[method-assign]


def _look_up(module: nn.Embedding, ids: Tensor) -> Tensor:
    return Lookup.apply(ids, module.weight)


class Bucket:
    """Examples of up to `length` rows, and a static tensor with the drawn indices."""

    def __init__(self, length: int, batch: int, examples: np.ndarray) -> None:
        self.length, self.batch, self.count = length, batch, len(examples)
        self.examples = torch.from_numpy(examples).to(DEVICE)

    def draw(self) -> Tensor:
        place = torch.rand(self.batch, dtype=torch.float64, device=DEVICE) * self.count
        return self.examples[place.long()]


class Stage:
    def __init__(self, settings: SimpleNamespace, talker: Talker, codes: encode.Codes) -> None:
        self.config, self.talker = settings.train_talker, talker
        self.eos = talker.config.codec_eos_token_id
        self.size, self.num_books = settings.codec.codebook_size, settings.codec.num_quantizers
        self.phonemes = nn.Linear(talker.config.hidden_size, 2 * NUM_PHONEMES).to(DEVICE)
        self.dropout = Dropout(talker, self.config.dropout)
        use_fast_lookup(talker)
        self.parameters = [*talker.parameters(), *self.phonemes.parameters()]
        self.optimizer = optimizer(
            self.parameters, self.config.lr, tuple(self.config.betas), self.config.weight_decay
        )
        path = self.config.speakers
        self.speakers = SpeakerVectors.read(Path(path)) if path else None
        voices = voices_of_lines(settings, codes.lines)
        self.voices = torch.from_numpy(voices).to(DEVICE)  # of each utterance
        self.codes = torch.from_numpy(codes.codes).to(DEVICE)
        self.labels = torch.from_numpy(codes.labels).to(DEVICE).view(-1, 2)

    def load(self, examples: Examples) -> dict[str, Tensor]:
        names = ("text", "codec", "frame", "target", "starts", "lengths", "utterances")
        return {name: torch.from_numpy(getattr(examples, name)).to(DEVICE) for name in names}

    def buckets(self, examples: Examples) -> list[Bucket]:
        found, below = [], 0
        for length in self.config.buckets:
            chosen = np.flatnonzero((examples.lengths > below) & (examples.lengths <= length))
            below = length
            if len(chosen):
                batch = max(1, self.config.rows_per_step // length)
                found.append(Bucket(length, batch, chosen))
        return found

    def forward(
        self, data: dict[str, Tensor], chosen: Tensor, length: int, num_frames: int | None,
        corruption: float,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Losses of a batch. The predictor uses `num_frames` random frames, or all."""
        at = torch.arange(length, device=DEVICE)
        inside = at < data["lengths"][chosen][:, None]
        rows = torch.where(inside, data["starts"][chosen][:, None] + at, 0)
        text, codec = data["text"][rows].long(), data["codec"][rows].long()
        frame, target = data["frame"][rows].long(), data["target"][rows].long()
        target = torch.where(inside, target, -1)
        speakers = None
        if self.speakers is not None:
            speakers = self.speakers.draw(self.voices[data["utterances"][chosen]])
        x = self._inputs(text, codec, frame, corruption, speakers)
        rope = self.talker.rope.span(0, length, x)
        hidden = self.talker(x, rope, attend_causally)
        true = self.codes[target.clamp(min=0)].long()  # [B, T, books]
        wanted = torch.where(target >= 0, true[..., 0], IGNORED)
        wanted = torch.where(target == END, self.eos, wanted)
        logits = self.talker.codec_head(hidden)
        losses = {"ce0": F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())}
        labels = self.labels[target.clamp(min=0)].long()
        labels = torch.where(target[..., None] >= 0, labels, IGNORED)
        phonemes = self.phonemes(hidden).unflatten(-1, (2, -1))
        losses["phoneme"] = F.cross_entropy(phonemes.flatten(0, 2).float(), labels.flatten())
        is_frame = (target >= 0).flatten()
        if num_frames is None:
            picked = is_frame.nonzero()[:, 0]
        else:
            weight = torch.rand(is_frame.shape, device=DEVICE) + is_frame
            picked = weight.topk(min(num_frames, len(weight))).indices
        residual = self._residual(
            hidden.flatten(0, 1)[picked], true.flatten(0, 1)[picked], is_frame[picked]
        )
        for book, loss in enumerate(residual, start=1):
            losses[f"ce{book}"] = loss
        return losses

    def _inputs(
        self, text: Tensor, codec: Tensor, frame: Tensor, corruption: float,
        speakers: Tensor | None,
    ) -> Tensor:  # fmt: skip
        codes = self.codes[frame.clamp(min=0)].long()
        if corruption:
            is_wrong = torch.rand(codes.shape, device=DEVICE) < corruption
            codes = torch.where(is_wrong, torch.randint_like(codes, self.size), codes)
        codes = torch.where(frame[..., None] >= 0, codes, -1)
        codes = torch.cat(
            (torch.where(codec == NOTHING, codes[..., 0], codec)[..., None], codes[..., 1:]), dim=-1
        )
        return self.dropout(embed(self.talker, text, codes, speakers))

    def _residual(self, hidden: Tensor, codes: Tensor, is_real: Tensor) -> list[Tensor]:
        """Cross entropy of codebooks 1 and up, each given the earlier codes of the frame."""
        predictor = self.talker.code_predictor
        tables = [self.talker.model.codec_embedding, *predictor.model.codec_embedding]
        inputs = [hidden] + [tables[book](codes[:, book]) for book in range(self.num_books - 1)]
        x = predictor(torch.stack(inputs, dim=1).float(), 0, attend_causally)
        losses = []
        for book in range(1, self.num_books):
            logits = predictor.lm_head[book - 1](x[:, book])
            wanted = torch.where(is_real, codes[:, book], IGNORED)
            losses.append(F.cross_entropy(logits.float(), wanted))
        return losses

    def step(self, data: dict[str, Tensor], bucket: Bucket) -> dict[str, Tensor]:
        config = self.config
        self.dropout.is_on = True
        with autocast("bf16"):
            losses = self.forward(
                data, bucket.draw(), bucket.length, config.predictor_frames, config.corruption
            )
        residual = torch.stack([losses[f"ce{book}"] for book in range(1, self.num_books)])
        loss = (
            losses["ce0"]
            + config.residual_weight * residual.mean()
            + config.phoneme_weight * losses["phoneme"]
        )
        loss.backward()
        losses["norm"] = torch.nn.utils.clip_grad_norm_(self.parameters, config.clip)
        self.optimizer.step()
        return {name: value.detach() for name, value in losses.items()}

    def reset(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def evaluate(self, data: dict[str, Tensor], examples: Examples) -> dict[str, float]:
        """Mean losses over held-out examples, without dropout or corruption."""
        self.dropout.is_on = False
        order = np.argsort(examples.lengths, kind="stable")
        found: list[dict[str, Tensor]] = []
        for part in np.array_split(order, max(1, len(order) // 64)):
            length = int(examples.lengths[part].max())
            with autocast("bf16"):
                found.append(
                    self.forward(data, torch.from_numpy(part).to(DEVICE), length, None, 0.0)
                )
        return {name: float(torch.stack([f[name] for f in found]).mean()) for name in found[0]}
