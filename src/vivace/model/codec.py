"""The codec, with the parameter names of speech_tokenizer/model.safetensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vivace.model.codec_decoder import CodecDecoder, SnakeBeta
from vivace.model.codec_encoder import CodecEncoder
from vivace.model.config import CodecConfig
from vivace.model.conv import CausalState
from vivace.model.layers import fuse
from vivace.model.precision import full_precision
from vivace.model.quantizer import DecoderCodebook

# Limits the memory of a long decode; on a CPU, to the size of its cache.
FRAMES_PER_PASS = 64
CPU_FRAMES_PER_PASS = 8


class Codec(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = CodecEncoder(config.encoder_config)
        self.decoder = CodecDecoder(config.decoder_config)
        self._is_folded = False

    @property
    def device(self) -> torch.device:
        return self.decoder.pre_conv.conv.weight.device

    def fold(self) -> None:
        """Precompute values that depend only on the weights, after loading. Decoding in PyTorch
        is then faster. The second call has no effect."""
        if self._is_folded:
            return
        self._is_folded = True
        fuse(self)
        for module in self.decoder.modules():
            if isinstance(module, (SnakeBeta, DecoderCodebook)):
                module.fold()

    def encode(self, samples: Tensor) -> Tensor:
        """A recording at `input_sample_rate`, [n], to codes [T, codebooks].

        Raises UnsupportedRequestError if the encoder is not trained.
        """
        self.config.require_encoder("convert audio to codes", "use a released codec")
        num_frames = -(-len(samples) // self.config.encode_downsample_rate)
        with full_precision():
            codes = self.encoder(
                samples, self.config.encoder_valid_num_quantizers, self.config.encoder_delay
            )
        return codes[:num_frames]

    def decode(self, codes: Tensor, state: CausalState | None = None) -> Tensor:
        """Codes [T, codebooks] to samples [T * decode_upsample_rate], continuing `state`."""
        if not len(codes):
            return torch.empty(0, device=self.device)
        state = CausalState() if state is None else state
        most = CPU_FRAMES_PER_PASS if codes.is_cpu else FRAMES_PER_PASS
        pieces = codes[None].split(most, dim=1)
        with full_precision():
            return torch.cat([self.decoder(piece, state)[0] for piece in pieces])
