"""Discriminators of the adversarial stage: of the waveform by period, and of its spectrogram.

Every layer is channels-last, so that cuDNN does not transpose. The first layer of each is a matrix
product or has eight input channels, because convolutions of one or two channels are slow.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from recipes.mini_voice.common import beside, branches, join

BINS_PER_PATCH = 4
KNEE = 1e-3  # power below which a spectrum is not compressed: noise of amplitude 3e-3


def _conv(
    inputs: int, outputs: int, kernel: tuple[int, int], stride: tuple[int, int] = (1, 1)
) -> nn.Module:
    padding = (kernel[0] // 2, kernel[1] // 2)
    return weight_norm(nn.Conv2d(inputs, outputs, kernel, stride, padding))


def _features(x: Tensor, layers: nn.ModuleList, last: nn.Module) -> list[Tensor]:
    """The features of every layer for `x` [B, C, H, W], the verdict last."""
    features = [x]
    for layer in layers:
        features.append(F.leaky_relu(layer(features[-1]), 0.1))
    return [*features, last(features[-1])]


class PeriodDiscriminator(nn.Module):
    def __init__(self, period: int, widths: list[int]) -> None:
        super().__init__()
        self.period = period
        self.first = weight_norm(nn.Linear(5, widths[0]))
        pairs = list(pairwise(widths))
        self.layers = nn.ModuleList(
            _conv(a, b, (5, 1), (3 if i < 3 else 1, 1)) for i, (a, b) in enumerate(pairs)
        )
        self.last = _conv(widths[-1], 1, (3, 1))

    def forward(self, samples: Tensor) -> list[Tensor]:
        """Features of every layer, the verdict last."""
        padded = F.pad(samples, (0, -samples.shape[-1] % self.period))
        rows = F.pad(padded.unflatten(-1, (-1, self.period)), (0, 0, 2, 2))
        x = F.leaky_relu(self.first(rows.unfold(1, 5, 3)), 0.1)  # [B, T, period, C]
        return _features(x.permute(0, 3, 1, 2), self.layers, self.last)


class SpectrumDiscriminator(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.size = size
        self.window: Tensor
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        self.first = _conv(2 * BINS_PER_PATCH, width, (3, 5))
        # Convolutions treat all frequencies alike, so the frequency is an input.
        self.place = nn.Parameter(torch.zeros(width, 1, size // 2 // BINS_PER_PATCH))
        self.layers = nn.ModuleList(
            [
                _conv(width, width, (3, 9), (1, 2)),
                _conv(width, width, (3, 9), (1, 2)),
                _conv(width, width, (3, 3)),
            ]
        )
        self.last = _conv(width, 1, (3, 3))

    def forward(self, samples: Tensor) -> list[Tensor]:
        with torch.autocast(samples.device.type, enabled=False):
            patches = self._patches(samples.float())
        x = self.first(patches)
        x = F.leaky_relu(x + self.place.to(x.dtype), 0.1)
        return _features(x, self.layers, self.last)

    def _patches(self, samples: Tensor) -> Tensor:
        """Compressed spectra [B, 2 * bins, time, patches], so that weak bands count too."""
        spectrum = torch.stft(
            samples, self.size, self.size // 4, window=self.window, return_complex=True
        )
        x = torch.view_as_real(spectrum[:, :-1]) * (16.0 / self.size**0.5)
        x = x * (x.square().sum(-1, keepdim=True) + KNEE).pow(-0.25)
        x = x.transpose(1, 2).unflatten(2, (-1, BINS_PER_PATCH)).flatten(3)
        return x.permute(0, 3, 1, 2)


class Discriminators(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.all = nn.ModuleList(
            [
                *(PeriodDiscriminator(period, config.period_widths) for period in config.periods),
                *(SpectrumDiscriminator(s, config.resolution_width) for s in config.resolutions),
            ]
        )
        # One stream for each: a single discriminator does not fill the GPU.
        self.streams = branches(len(self.all))

    def forward(self, inputs: list[Tensor]) -> list[list[Tensor]]:
        """The features of each discriminator for its own input."""
        judged = []
        for judge, samples, stream in zip(self.all, inputs, self.streams, strict=True):
            with beside(stream):
                judged.append(judge(samples))
        join(self.streams)
        return judged


def discriminator_loss(judged: list[list[Tensor]]) -> Tensor:
    """Least squares, of batches whose first half is real (1) and whose second is made (0)."""
    losses = []
    for *_, verdict in judged:
        real, made = verdict.float().chunk(2)
        losses.append((1 - real).square().mean() + made.square().mean())
    return torch.stack(losses).sum()


def generator_losses(judged: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    """Generator losses per discriminator: of the verdict and of the features."""
    fool = [(1 - verdict.float().chunk(2)[1]).square().mean() for *_, verdict in judged]
    likeness = [distance(features) for *features, _ in judged]
    return torch.stack(fool), torch.stack(likeness)


def distance(features: list[Tensor]) -> Tensor:
    """Relative distance of generated features (second half) to real ones (first half)."""
    distances = []
    for feature in features:
        real, made = feature.float().chunk(2)
        real = real.detach()
        distances.append((real - made).abs().mean() / real.abs().mean())
    return torch.stack(distances).mean()
