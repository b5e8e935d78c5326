"""Samples to codes: a Mimi encoder, used on reference recordings only."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from vivace.model.cache import attend_causally
from vivace.model.config import CodecEncoderConfig
from vivace.model.conv import StridedConv1d
from vivace.model.dimensions import DOWNSAMPLE_STRIDE
from vivace.model.layers import Linear, Rope, ScaledBlock
from vivace.model.quantizer import SplitEncoderQuantizer


class ResnetBlock(nn.Module):
    def __init__(self, config: CodecEncoderConfig, channels: int, dilation: int) -> None:
        super().__init__()
        narrow = channels // config.compress
        self.block = nn.ModuleList(
            [
                nn.ELU(),
                StridedConv1d(channels, narrow, config.residual_kernel_size, dilation=dilation),
                nn.ELU(),
                StridedConv1d(narrow, channels, 1),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = x
        for layer in self.block:
            hidden = layer(hidden)
        return x + hidden


class ConvEncoder(nn.Module):
    """Samples [B, 1, n] to vectors [B, hidden, T] at twice the frame rate."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        width = config.num_filters
        layers: list[nn.Module] = [StridedConv1d(config.audio_channels, width, config.kernel_size)]
        for ratio in reversed(config.upsampling_ratios):
            for index in range(config.num_residual_layers):
                layers.append(ResnetBlock(config, width, config.dilation_growth_rate**index))
            layers += [nn.ELU(), StridedConv1d(width, 2 * width, 2 * ratio, stride=ratio)]
            width *= 2
        layers += [nn.ELU(), StridedConv1d(width, config.hidden_size, config.last_kernel_size)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class GeluMlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1 = Linear(width, inner, bias=False)
        self.fc2 = Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class EncoderTransformer(nn.Module):
    """Full causal attention: the window in config.json is not applied by the official code."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_block(config) for _ in range(config.num_hidden_layers))
        self.rope = Rope(config.head_dim, config.rope_theta)

    def forward(self, x: Tensor) -> Tensor:
        rope = self.rope.span(0, x.shape[1], x)
        for index, layer in enumerate(self.layers):
            x = layer(index, x, rope, attend_causally)
        return x


def _block(config: CodecEncoderConfig) -> ScaledBlock:
    first, second = (nn.LayerNorm(config.hidden_size, eps=config.norm_eps) for _ in range(2))
    mlp = GeluMlp(config.hidden_size, config.intermediate_size)
    return ScaledBlock(config, mlp, (first, second))


class CodecEncoder(nn.Module):
    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.frame = DOWNSAMPLE_STRIDE * math.prod(config.upsampling_ratios)  # samples
        self.encoder = ConvEncoder(config)
        self.encoder_transformer = EncoderTransformer(config)
        self.downsample = StridedConv1d(
            config.hidden_size, config.hidden_size, 4, stride=DOWNSAMPLE_STRIDE, bias=False,
            pad_mode="replicate",
        )  # fmt: skip
        self.quantizer = SplitEncoderQuantizer(
            config.num_semantic_quantizers,
            config.num_quantizers,
            config.codebook_size,
            config.vector_quantization_hidden_dimension,
            config.hidden_size,
        )

    def latents(self, samples: Tensor) -> Tensor:
        """Recordings [B, n] to vectors before quantization, [B, hidden, T].

        Vector i depends on the samples up to the end of frame i.
        """
        x = self.encoder(samples[:, None])
        x = self.encoder_transformer(x.transpose(1, 2)).transpose(1, 2)
        return self.downsample(x)

    def forward(self, samples: Tensor, num_codes: int, delay: int = 0) -> Tensor:
        """One recording [n] to its first `num_codes` codes of every frame, [T, num_codes].

        An encoder that was trained with a `delay` gives the codes of frame i after frame i + delay.
        It therefore reads that many frames of silence after the recording.
        """
        if delay:
            samples = F.pad(samples, (0, -len(samples) % self.frame + delay * self.frame))
        return self.quantizer(self.latents(samples[None])[..., delay:], num_codes)
