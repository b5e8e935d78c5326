"""Log-mel spectrograms on the device, and the loss that compares them at seven resolutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.mini_voice.settings import SAMPLE_RATE

NUM_KNOTS = 6  # of the curve that changes the levels


def mel_edges(num_mels: int, device: torch.device | None = None) -> Tensor:
    """The edges of the filters on the mel scale: [num_mels + 2], at equal distances."""
    highest = float(_mel(torch.tensor(SAMPLE_RATE / 2)))
    return torch.linspace(0, highest, num_mels + 2, device=device)


def _mel(frequencies: Tensor) -> Tensor:
    return 2595 * torch.log10(1 + frequencies / 700)


def _frequencies(mel: Tensor) -> Tensor:
    return 700 * (10 ** (mel / 2595) - 1)


def change_timbre(mels: Tensor, frequency_range: float, level_change: float) -> Tensor:
    """Log-mels [B, mels, columns] as of other speakers and microphones, at random.

    The frequencies of an item are scaled by up to `1 + frequency_range`, up or down. Its levels
    change by a smooth curve with the standard deviation `level_change`.
    """
    batch, num_mels, num_columns = mels.shape
    device = mels.device
    centres = mel_edges(num_mels, device)[1:-1]
    scales = (1 + frequency_range) ** (2 * torch.rand(batch, 1, device=device) - 1)
    places = (_mel(_frequencies(centres) * scales) - centres[0]) / (centres[1] - centres[0])
    places = places.clamp(0, num_mels - 1.001)[..., None].expand(-1, -1, num_columns)
    low = places.long()
    between = torch.lerp(mels.gather(1, low), mels.gather(1, low + 1), places - low)
    knots = level_change * torch.randn(batch, 1, NUM_KNOTS, device=device)
    curve = F.interpolate(knots, num_mels, mode="linear", align_corners=True)
    return between + curve.transpose(1, 2)


def mel_filters(num_bins: int, num_mels: int) -> Tensor:
    """Triangles on the mel scale, unit peak area per bin width: [num_bins, num_mels]."""
    edges = _frequencies(mel_edges(num_mels))
    bins = torch.linspace(0, SAMPLE_RATE / 2, num_bins)
    # Filters narrower than a bin would be empty; widen them to one bin.
    width = SAMPLE_RATE / 2 / (num_bins - 1)
    left = torch.minimum(edges[:-2], edges[1:-1] - width)
    right = torch.maximum(edges[2:], edges[1:-1] + width)
    rise = (bins[:, None] - left) / (edges[1:-1] - left)
    fall = (right - bins[:, None]) / (right - edges[1:-1])
    filters = torch.minimum(rise, fall).clamp(min=0)
    return filters / filters.sum(0).clamp(min=1e-6)


class MelSpectrogram(nn.Module):
    """Samples [B, n] to mel magnitudes [B, mels, n / hop + 1]; a sine gives its amplitude."""

    def __init__(self, window: int, hop: int, num_mels: int) -> None:
        super().__init__()
        self.size, self.hop = window, hop
        self.window: Tensor
        self.filters: Tensor
        self.register_buffer("window", torch.hann_window(window), persistent=False)
        self.register_buffer(
            "filters", mel_filters(window // 2 + 1, num_mels).T.contiguous(), persistent=False
        )

    def magnitudes(self, samples: Tensor) -> Tensor:
        with torch.autocast(samples.device.type, enabled=False):
            spectrum = torch.stft(
                samples.float(), self.size, self.hop, window=self.window, return_complex=True
            )
            power = torch.view_as_real(spectrum).square().sum(-1)
            return self.filters @ ((power + 1e-9).sqrt() * (4.0 / self.size))

    def forward(self, samples: Tensor) -> Tensor:
        """Logarithms of the magnitudes."""
        return self.magnitudes(samples).clamp(min=1e-5).log()


# With a floor of 1e-5 nine tenths of the gradient came from the quietest fifth of the frames.
QUIET = 1e-3


class LogMels(nn.Module):
    """Log-mels of several signals over windows of `shortest` to 2048 samples."""

    def __init__(self, shortest: int = 32) -> None:
        super().__init__()
        sizes = {32: 5, 64: 10, 128: 20, 256: 40, 512: 80, 1024: 160, 2048: 320}
        self.scales = nn.ModuleList(
            MelSpectrogram(window, window // 4, mels)
            for window, mels in sizes.items()
            if window >= shortest
        )

    def log_mels(self, *signals: Tensor) -> Iterator[tuple[int, Sequence[Tensor]]]:
        """For each window, the samples of a column and the log-mels of all signals."""
        joined = torch.cat(signals)
        for scale in self.scales:
            assert isinstance(scale, MelSpectrogram)
            yield scale.hop, (scale.magnitudes(joined) + QUIET).log().chunk(len(signals))


class MelLoss(LogMels):
    """Mean L1 distance of log-mels."""

    def forward(self, made: Tensor, true: Tensor) -> Tensor:
        distances = [(a - b).abs().mean() for _, (a, b) in self.log_mels(made, true)]
        return torch.stack(distances).mean()


class TimbreLoss(LogMels):
    """Distance to speech of a preset with the timbre of a recording that was aligned with it.

    The target has the log-mels of the preset, plus the difference of the recording from them,
    averaged over `smoothing_s` seconds. The alignment is not exact. The average has the timbre of
    the recording, and short sounds stay as clear as those of the preset.
    """

    def __init__(self, smoothing_s: float) -> None:
        super().__init__(shortest=256)  # shorter windows show single periods of the voice
        self.smoothing_s = smoothing_s

    def forward(self, made: Tensor, preset: Tensor, recorded: Tensor) -> Tensor:
        distances = []
        for hop, (own, base, other) in self.log_mels(made, preset, recorded):
            columns = round(self.smoothing_s * SAMPLE_RATE / hop) | 1
            timbre = F.avg_pool1d(other - base, columns, 1, columns // 2, count_include_pad=False)
            distances.append((own - base - timbre).abs().mean())
        return torch.stack(distances).mean()
