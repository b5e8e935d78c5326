"""A log-mel spectrogram to one speaker vector: ECAPA-TDNN without batch norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vivace.model.config import SpeakerEncoderConfig


def _conv(
    in_channels: int, out_channels: int, kernel_size: int = 1, dilation: int = 1
) -> nn.Conv1d:
    return nn.Conv1d(
        in_channels,
        out_channels,
        kernel_size,
        dilation=dilation,
        padding="same",
        padding_mode="reflect",
    )


class TimeDelay(nn.Module):
    """A convolution over time and a ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 1, dilation: int = 1):
        super().__init__()
        self.conv = _conv(in_channels, out_channels, kernel, dilation)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x))


class Res2Net(nn.Module):
    """Channel groups in a cascade: each group sees the result of the one before."""

    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        width = channels // scale
        self.blocks = nn.ModuleList(
            TimeDelay(width, width, kernel, dilation) for _ in range(scale - 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        first, *groups = x.chunk(len(self.blocks) + 1, dim=1)
        outputs = [first]
        for index, (block, group) in enumerate(zip(self.blocks, groups, strict=True)):
            outputs.append(block(group if index == 0 else group + outputs[-1]))
        return torch.cat(outputs, dim=1)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = _conv(channels, squeezed)
        self.conv2 = _conv(squeezed, channels)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.relu(self.conv1(x.mean(dim=2, keepdim=True)))
        return x * torch.sigmoid(self.conv2(gate))


class SpeakerBlock(nn.Module):
    def __init__(self, config: SpeakerEncoderConfig, index: int) -> None:
        super().__init__()
        channels = config.enc_channels[index]
        self.tdnn1 = TimeDelay(config.enc_channels[index - 1], channels)
        self.res2net_block = Res2Net(
            channels,
            config.enc_res2net_scale,
            config.enc_kernel_sizes[index],
            config.enc_dilations[index],
        )
        self.tdnn2 = TimeDelay(channels, channels)
        self.se_block = SqueezeExcitation(channels, config.enc_se_channels)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.tdnn2(self.res2net_block(self.tdnn1(x)))
        return x + self.se_block(hidden)


class AttentiveStatistics(nn.Module):
    """Mean and deviation over time, weighted by attention: [B, C, T] to [B, 2C, 1]."""

    def __init__(self, channels: int, attention_channels: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * channels, attention_channels)
        self.conv = _conv(attention_channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        even = torch.full_like(x[:, :1], 1.0 / x.shape[2])
        mean, deviation = self._statistics(x, even)
        context = torch.cat((x, mean.expand_as(x), deviation.expand_as(x)), dim=1)
        weights = self.conv(torch.tanh(self.tdnn(context))).softmax(dim=2)
        return torch.cat(self._statistics(x, weights), dim=1)

    @staticmethod
    def _statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        mean = (weights * x).sum(2, keepdim=True)
        variance = (weights * (x - mean).square()).sum(2, keepdim=True)
        return mean, variance.clamp(min=1e-12).sqrt()


class SpeakerEncoder(nn.Module):
    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        self.config = config
        channels, kernels, dilations = (
            config.enc_channels,
            config.enc_kernel_sizes,
            config.enc_dilations,
        )
        self.blocks = nn.ModuleList(
            [
                TimeDelay(config.mel_dim, channels[0], kernels[0], dilations[0]),
                *(SpeakerBlock(config, index) for index in range(1, len(channels) - 1)),
            ]
        )
        self.mfa = TimeDelay(channels[-1], channels[-1], kernels[-1], dilations[-1])
        self.asp = AttentiveStatistics(channels[-1], config.enc_attention_channels)
        self.fc = _conv(2 * channels[-1], config.enc_dim)

    def forward(self, mel: Tensor) -> Tensor:
        """Log-mel frames [B, T, mel_dim] to vectors [B, enc_dim]."""
        x = mel.transpose(1, 2)
        outputs = []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        x = self.mfa(torch.cat(outputs[1:], dim=1))
        return self.fc(self.asp(x)).squeeze(-1)
