"""Codes to samples, strictly causal: decoding in chunks equals decoding at once.

`decoder(codes, state)` continues the stream of `state`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace.model import ops
from vivace.model.config import CodecDecoderConfig
from vivace.model.conv import CausalConv1d, CausalConvTranspose1d, CausalState
from vivace.model.layers import GatedMlp, Linear, RMSNorm, Rope, ScaledBlock
from vivace.model.quantizer import SplitDecoderQuantizer


class SnakeBeta(nn.Module):
    """A periodic activation; its two parameters are stored as logarithms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))
        self.register_buffer("frequency", None, persistent=False)
        self.register_buffer("inverse_gain", None, persistent=False)

    def fold(self) -> None:
        """Compute the exponentials once, in float32."""
        frequency, inverse_gain = self.exponentials()
        self.frequency, self.inverse_gain = frequency.detach(), inverse_gain.detach()

    def forward(self, x: Tensor) -> Tensor:
        return ops.snake_beta(x, *self.exponentials())

    def exponentials(self) -> tuple[Tensor, Tensor]:
        """Frequency and inverse gain: [channels, 1] each."""
        if self.frequency is not None:
            return self.frequency, self.inverse_gain
        frequency, gain = self.alpha.exp()[:, None], self.beta.exp()[:, None]
        return frequency, 1.0 / (gain + 1e-9)


class ConvNeXt(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv1d(channels, channels, 7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = Linear(channels, 4 * channels)
        self.pwconv2 = Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor, state: CausalState) -> Tensor:
        hidden = self.norm(self.dwconv(x, state).transpose(1, 2))
        hidden = self.pwconv2(F.gelu(self.pwconv1(hidden)))
        return x + (self.gamma * hidden).transpose(1, 2)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv1d(channels, channels, 7, dilation=dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv1d(channels, channels, 1)

    def forward(self, x: Tensor, state: CausalState) -> Tensor:
        hidden = self.conv1(self.act1(x), state)
        return x + self.conv2(self.act2(hidden), state)


class CausalSequence(nn.ModuleList):
    """Layers in sequence; activations need no state."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(layers)

    def forward(self, x: Tensor, state: CausalState) -> Tensor:
        for layer in self:
            x = layer(x) if isinstance(layer, SnakeBeta) else layer(x, state)
        return x


class UpsampleBlock(nn.Module):
    def __init__(self, in_channels: int, rate: int) -> None:
        super().__init__()
        channels = in_channels // 2
        self.block = CausalSequence(
            SnakeBeta(in_channels),
            CausalConvTranspose1d(in_channels, channels, 2 * rate, rate),
            *(ResidualUnit(channels, dilation) for dilation in (1, 3, 9)),
        )

    def forward(self, x: Tensor, state: CausalState) -> Tensor:
        return self.block(x, state)


class SlidingWindow:
    """Attention over the last `window` frames including the current one; `state` holds the past."""

    def __init__(self, state: CausalState, window: int) -> None:
        self._state = state
        self._window = window

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = self._extend(k), self._extend(v)
        length, total = q.shape[2], k.shape[2]
        if length == 1:
            return ops.attention(q, k, v)
        seen = torch.ones(length, total, dtype=torch.bool, device=q.device)
        past = total - length
        return ops.attention(q, k, v, mask=seen.tril(past).triu(past - self._window + 1))

    def _extend(self, x: Tensor) -> Tensor:
        return self._state.extend(x, self._window - 1, dim=-2, is_padded=False)


class PreTransformer(nn.Module):
    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.window = config.sliding_window
        self.input_proj = Linear(config.latent_dim, config.hidden_size)
        self.layers = nn.ModuleList(_block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.output_proj = Linear(config.hidden_size, config.latent_dim)
        self.rope = Rope(config.head_dim, config.rope_theta)

    def forward(self, x: Tensor, state: CausalState) -> Tensor:
        """Latents [B, T, latent_dim] to latents."""
        x = self.input_proj(x)
        rope = self.rope.span(state.num_frames, x.shape[1], x)
        attend = SlidingWindow(state, self.window)
        for index, layer in enumerate(self.layers):
            x = layer(index, x, rope, attend)
        return self.output_proj(self.norm(x))


def _block(config: CodecDecoderConfig) -> ScaledBlock:
    first, second = (RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(2))
    return ScaledBlock(config, GatedMlp(config), (first, second))


class CodecDecoder(nn.Module):
    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.quantizer = SplitDecoderQuantizer(
            config.num_semantic_quantizers,
            config.num_quantizers,
            config.codebook_size,
            config.codebook_dim // 2,
            config.codebook_dim,
        )
        self.pre_conv = CausalConv1d(config.codebook_dim, config.latent_dim, 3)
        self.pre_transformer = PreTransformer(config)
        self.upsample = nn.ModuleList(
            CausalSequence(
                CausalConvTranspose1d(config.latent_dim, config.latent_dim, rate, rate),
                ConvNeXt(config.latent_dim),
            )
            for rate in config.upsampling_ratios
        )
        widths = [config.decoder_dim // 2**i for i in range(len(config.upsample_rates) + 1)]
        self.decoder = CausalSequence(
            CausalConv1d(config.latent_dim, widths[0], 7),
            *map(UpsampleBlock, widths, config.upsample_rates),
            SnakeBeta(widths[-1]),
            CausalConv1d(widths[-1], 1, 7),
        )

    def forward(self, codes: Tensor, state: CausalState) -> Tensor:
        """Codes [B, T, codebooks] to samples [B, T * samples per frame], clamped to -1 to 1."""
        return self.decode_latents(self.quantizer(codes.transpose(1, 2)), state)

    def decode_latents(self, latents: Tensor, state: CausalState) -> Tensor:
        """Quantized vectors [B, codebook_dim, T] to samples; the entry point of training."""
        state.rewind()
        x = self.transform_latents(latents, state).transpose(1, 2)
        for stage in self.upsample:
            x = stage(x, state)
        samples = self.decoder(x, state)[:, 0]
        state.num_frames += latents.shape[-1]
        return samples.clamp(-1.0, 1.0)

    def transform_latents(self, latents: Tensor, state: CausalState) -> Tensor:
        """The output of the transformer: [B, codebook_dim, T] to [B, T, latent_dim]."""
        return self.pre_transformer(self.pre_conv(latents, state).transpose(1, 2), state)
