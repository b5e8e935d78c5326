"""Judges of the adversarial stage: of the waveform folded by a period, and of its spectrogram."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


def _conv(*args: int, **kwargs: tuple[int, int]) -> nn.Module:
    return weight_norm(nn.Conv2d(*args, **kwargs))  # type: ignore[arg-type]


class PeriodDiscriminator(nn.Module):
    def __init__(self, period: int, widths: list[int]) -> None:
        super().__init__()
        self.period = period
        pairs = list(zip([1, *widths[:-1]], widths, strict=True))
        self.layers = nn.ModuleList(
            _conv(a, b, kernel_size=(5, 1), stride=(3 if i < 4 else 1, 1), padding=(2, 0))
            for i, (a, b) in enumerate(pairs)
        )
        self.last = _conv(widths[-1], 1, kernel_size=(3, 1), padding=(1, 0))

    def forward(self, samples: Tensor) -> list[Tensor]:
        """Features of every layer, the verdict last."""
        padded = F.pad(samples, (0, -samples.shape[-1] % self.period))
        x = padded.unflatten(-1, (-1, self.period)).unsqueeze(1)
        features = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
            features.append(x)
        return [*features, self.last(x)]


class SpectrumDiscriminator(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        self.layers = nn.ModuleList(
            [
                _conv(2, width, kernel_size=(3, 9), padding=(1, 4)),
                *(
                    _conv(width, width, kernel_size=(3, 9), stride=(1, 2), padding=(1, 4))
                    for _ in range(3)
                ),
                _conv(width, width, kernel_size=(3, 3), padding=(1, 1)),
            ]
        )
        self.last = _conv(width, 1, kernel_size=(3, 3), padding=(1, 1))

    def forward(self, samples: Tensor) -> list[Tensor]:
        with torch.autocast(samples.device.type, enabled=False):
            spectrum = torch.stft(
                samples.float(), self.size, self.size // 4, window=self.window,
                return_complex=True,
            )  # fmt: skip
            x = torch.view_as_real(spectrum) * (16.0 / self.size**0.5)
        x = x.permute(0, 3, 2, 1)  # [B, 2, time, bins]
        features = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
            features.append(x)
        return [*features, self.last(x)]


class Discriminators(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.all = nn.ModuleList(
            [
                *(PeriodDiscriminator(period, config.period_widths) for period in config.periods),
                *(SpectrumDiscriminator(s, config.resolution_width) for s in config.resolutions),
            ]
        )

    def forward(self, samples: Tensor) -> list[list[Tensor]]:
        return [one(samples) for one in self.all]


def judge_loss(real: list[list[Tensor]], made: list[list[Tensor]]) -> Tensor:
    """Least squares: real is 1, made is 0."""
    losses = [
        (1 - r[-1].float()).square().mean() + m[-1].float().square().mean()
        for r, m in zip(real, made, strict=True)
    ]
    return torch.stack(losses).sum()


def fool_losses(real: list[list[Tensor]], made: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    """What the generator wants: verdicts of 1, and features like those of real speech."""
    fool = [(1 - m[-1].float()).square().mean() for m in made]
    features = [
        (a.detach().float() - b.float()).abs().mean()
        for r, m in zip(real, made, strict=True)
        for a, b in zip(r[:-1], m[:-1], strict=True)
    ]
    return torch.stack(fool).sum(), torch.stack(features).sum()
