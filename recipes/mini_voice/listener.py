"""The listener of the adversarial stage: it names the phonemes it hears, and so holds words in place.

It learns from real speech alone. Judges ask whether speech sounds real; this asks what was said.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
        """What every layer says of samples [B, n], the phonemes [B, NUM_PHONEMES, n / 960] last."""
        mel = self.mel.magnitudes(samples)[..., : samples.shape[-1] // HOP]
        x = ((mel + QUIET).log() + 4.0) / 2.0
        features = []
        for layer in self.layers:
            x = layer(x)
            features.append(x)
        return [*features, self.last(x)]


@dataclass(frozen=True)
class Heard:
    """Of a batch whose first half is real and whose second is made."""

    real: Tensor  # cross entropy of the labels: what the listener learns by
    made: Tensor  # the same of the made half: what the decoder learns by
    likeness: Tensor  # distance of the features
    accuracy_real: Tensor
    accuracy_made: Tensor


def compare(heard: list[Tensor], labels: Tensor) -> Heard:
    """`heard` is what `Listener` said of both halves, `labels` [B / 2, T] what both should say."""
    *features, logits = heard
    real, made = logits.float().chunk(2)
    distances = []
    for feature in features:
        a, b = feature.float().chunk(2)
        a = a.detach()
        distances.append((a - b).abs().mean() / a.abs().mean())
    return Heard(
        F.cross_entropy(real, labels),
        F.cross_entropy(made, labels),
        torch.stack(distances).mean(),
        (real.argmax(1) == labels).float().mean(),
        (made.argmax(1) == labels).float().mean(),
    )
