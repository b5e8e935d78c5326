"""Residual vector quantizers: codes to vectors for the decoder, vectors to codes for the encoder.

Encoder and decoder name their tensors differently in the checkpoint, so there are two codebook
classes. Both store sums and counts: a code's vector is its sum divided by its count.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vivace.model import ops

SMALLEST_USAGE = 1e-5


class DecoderCodebook(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.empty(size))
        self.embedding_sum = nn.Parameter(torch.empty(size, width))
        self.register_buffer("folded", None, persistent=False)

    def fold(self) -> None:
        """Compute the vectors once, in float32."""
        self.folded = self.vectors().detach()

    def vectors(self) -> Tensor:
        if self.folded is not None:
            return self.folded
        return self.embedding_sum / self.cluster_usage.clamp(min=SMALLEST_USAGE)[:, None]


class DecoderLayer(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self._codebook = DecoderCodebook(size, width)

    def forward(self, codes: Tensor) -> Tensor:
        return nn.functional.embedding(codes, self._codebook.vectors())


class DecoderStack(nn.Module):
    def __init__(self, num_layers: int, size: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(size, width) for _ in range(num_layers))


class DecoderQuantizer(nn.Module):
    """A stack of codebooks whose vectors are summed and projected out."""

    def __init__(self, num_layers: int, size: int, width: int, out_width: int) -> None:
        super().__init__()
        self.input_proj = nn.Conv1d(out_width, width, 1, bias=False)  # of training, never run
        self.output_proj = nn.Conv1d(width, out_width, 1, bias=False)
        self.vq = DecoderStack(num_layers, size, width)

    def forward(self, codes: Tensor) -> Tensor:
        """Codes [B, layers, T] to vectors [B, out_width, T]."""
        vectors = self.vq.layers[0](codes[:, 0])
        for index, layer in enumerate(self.vq.layers[1:], start=1):
            vectors = vectors + layer(codes[:, index])
        return ops.convolve(vectors.transpose(1, 2), self.output_proj.weight, None, 1, 1)


class SplitDecoderQuantizer(nn.Module):
    """Sum of the semantic and the acoustic codebooks, each with its own projection."""

    def __init__(self, num_semantic: int, num_total: int, size: int, width: int, out: int) -> None:
        super().__init__()
        self.num_semantic = num_semantic
        self.rvq_first = DecoderQuantizer(num_semantic, size, width, out)
        self.rvq_rest = DecoderQuantizer(num_total - num_semantic, size, width, out)

    def forward(self, codes: Tensor) -> Tensor:
        first, rest = codes[:, : self.num_semantic], codes[:, self.num_semantic :]
        return self.rvq_first(first) + self.rvq_rest(rest)


class EncoderCodebook(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.initialized = nn.Parameter(torch.empty(1))  # a flag of training
        self.cluster_usage = nn.Parameter(torch.empty(size))
        self.embed_sum = nn.Parameter(torch.empty(size, width))

    def vectors(self) -> Tensor:
        return self.embed_sum / self.cluster_usage.clamp(min=SMALLEST_USAGE)[:, None]


class EncoderLayer(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.codebook = EncoderCodebook(size, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest code of each row of x [N, width], and that code's vector."""
        vectors = self.codebook.vectors()
        codes = torch.cdist(x[None].float(), vectors[None].float())[0].argmin(dim=-1)
        return codes, nn.functional.embedding(codes, vectors)


class EncoderQuantizer(nn.Module):
    def __init__(self, num_layers: int, size: int, width: int, in_width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(size, width) for _ in range(num_layers))
        self.input_proj = nn.Conv1d(in_width, width, 1, bias=False)
        self.output_proj = nn.Conv1d(width, in_width, 1, bias=False)  # of training, never run

    def forward(self, x: Tensor, num_layers: int) -> Tensor:
        """Vectors [1, in_width, T] to the first `num_layers` codes of each, [T, num_layers]."""
        residual = self.input_proj(x)[0].T
        codes = []
        for layer in self.layers[:num_layers]:
            code, vector = layer(residual)
            residual = residual - vector
            codes.append(code)
        return torch.stack(codes, dim=-1)


class SplitEncoderQuantizer(nn.Module):
    """Semantic and acoustic codes of the same vectors, with independent residuals."""

    def __init__(
        self, num_semantic: int, num_total: int, size: int, width: int, in_width: int
    ) -> None:
        super().__init__()
        self.num_semantic = num_semantic
        self.semantic_residual_vector_quantizer = EncoderQuantizer(
            num_semantic, size, width, in_width
        )
        self.acoustic_residual_vector_quantizer = EncoderQuantizer(
            num_total - num_semantic, size, width, in_width
        )

    def forward(self, x: Tensor, num_codes: int) -> Tensor:
        semantic = self.semantic_residual_vector_quantizer(x, self.num_semantic)
        acoustic = self.acoustic_residual_vector_quantizer(x, num_codes - self.num_semantic)
        return torch.cat((semantic, acoustic), dim=-1)
