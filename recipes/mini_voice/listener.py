"""The phoneme classifier of the adversarial stage ("listener").

It learns from real speech. The discriminators rate naturalness; the listener keeps the words
intelligible.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch.nn.functional as F
from torch import Tensor, nn

from recipes.mini_voice.discriminators import distance
from recipes.mini_voice.mels import QUIET, MelSpectrogram
from recipes.mini_voice.settings import NUM_PHONEMES

HOP = 240  # samples of a mel column, 10 ms; a quarter of a label
STRIDES = (1, 2, 1, 2, 1)


def _layer(inputs: int, outputs: int, stride: int) -> nn.Module:
    kernel = 5 if stride == 1 else 4
    conv = nn.Conv1d(inputs, outputs, kernel, stride, padding=(kernel - 1) // 2)
    return nn.Sequential(conv, nn.GroupNorm(1, outputs), nn.GELU())


class Listener(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        width = config.listener_width
        self.mel = MelSpectrogram(1024, HOP, config.listener_mels)
        inputs = [config.listener_mels, *[width] * (len(STRIDES) - 1)]
        self.layers = nn.ModuleList(
            _layer(size, width, stride) for size, stride in zip(inputs, STRIDES, strict=True)
        )
        self.last = nn.Conv1d(width, NUM_PHONEMES, 1)

    def forward(self, samples: Tensor) -> list[Tensor]:
        """Features of every layer for samples [B, n]; the last are [B, NUM_PHONEMES, n / 960]."""
        mel = self.mel.magnitudes(samples)[..., : samples.shape[-1] // HOP]
        x = ((mel + QUIET).log() + 4.0) / 2.0
        features = []
        for layer in self.layers:
            x = layer(x)
            features.append(x)
        return [*features, self.last(x)]


@dataclass(frozen=True)
class ListenerLoss:
    learned: Tensor  # loss of the listener
    missed: Tensor  # loss of the decoder: distance of phonemes and features
    unlike: Tensor
    figures: dict[str, Tensor]


def compare(heard: list[Tensor], labels: Tensor) -> ListenerLoss:
    """`heard` are the listener's outputs for a batch: first half real, second half generated.

    `labels` [B / 2, T] belong to both halves. Generated speech is compared with the listener's
    output for real speech, not with the labels, so that ambiguous sounds stay ambiguous.
    """
    *features, logits = heard
    real, made = logits.float().log_softmax(1).chunk(2)
    learned = F.nll_loss(real, labels)
    missed = F.kl_div(made, real.detach(), log_target=True, reduction="none").sum(1).mean()
    right = (logits.argmax(1).unflatten(0, (2, -1)) == labels).float().mean((1, 2))
    unlike = distance(features)
    figures = {
        "listener": learned, "missed": missed, "unlike": unlike,
        "accuracy": right[0], "accuracy_made": right[1],
    }  # fmt: skip
    return ListenerLoss(learned, missed, unlike, figures)
