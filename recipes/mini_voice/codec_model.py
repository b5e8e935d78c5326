"""The codec in training: a mel encoder, codebooks learned by moving averages, a phoneme head.

The decoder is `vivace.model.codec_decoder.CodecDecoder` with its projections. The codebooks are
kept here during training and written into the decoder at the end.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.mini_voice.mels import MelSpectrogram
from recipes.mini_voice.settings import NUM_PHONEMES
from vivace.model.codec_decoder import CodecDecoder
from vivace.model.conv import CausalConvTranspose1d, CausalState


class MixBlock(nn.Module):
    """A ConvNeXt block with context on both sides."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.depthwise(x).transpose(1, 2))
        hidden = self.gamma * self.down(F.gelu(self.up(hidden)))
        return x + hidden.transpose(1, 2)


class MelEncoder(nn.Module):
    """Samples [B, frames * 1920] to vectors [B, out, frames]."""

    def __init__(self, config: SimpleNamespace, out: int) -> None:
        super().__init__()
        width = config.width
        fast, middle, slow = config.num_blocks
        self.mel = MelSpectrogram(1024, 240, config.num_mels)
        self.stem = nn.Conv1d(config.num_mels, width, 7, stride=2, padding=3)
        self.fast = nn.Sequential(*(MixBlock(width) for _ in range(fast)))
        self.to_middle = nn.Conv1d(width, width, 4, stride=2, padding=1)
        self.middle = nn.Sequential(*(MixBlock(width) for _ in range(middle)))
        self.to_slow = nn.Conv1d(width, width, 4, stride=2, padding=1)
        self.slow = nn.Sequential(*(MixBlock(width) for _ in range(slow)))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, out)

    def forward(self, samples: Tensor) -> Tensor:
        return self.encode_mels(self.mels(samples))

    def mels(self, samples: Tensor) -> Tensor:
        """Log-mels [B, mels, frames * 8]."""
        return self.mel(samples)[..., : samples.shape[-1] // 240]

    def encode_mels(self, mels: Tensor) -> Tensor:
        x = self.fast(self.stem((mels + 5.0) / 3.0))
        x = self.slow(self.to_slow(self.middle(self.to_middle(x))))
        return self.out(self.norm(x.transpose(1, 2))).transpose(1, 2)


MOST_SPEAKERS = 8


class Codebooks(nn.Module):
    """The semantic codebook 0, then the residual acoustic codebooks, all as moving averages.

    Each code of the last codebook belongs to one speaker and is shifted by that speaker's offset,
    so the decoder knows the speaker. `share_books` assigns the codes; before, all belong to the
    first speaker.
    """

    vectors: Tensor  # [books, size, width]
    sums: Tensor
    usage: Tensor  # [books, size]
    owner: Tensor  # [size], the speaker of each code of the last codebook
    marks: Tensor  # [speakers, width]

    def __init__(self, num_books: int, size: int, width: int, decay: float, dead: float) -> None:
        super().__init__()
        self.decay, self.dead = decay, dead
        self.register_buffer("vectors", torch.zeros(num_books, size, width))
        self.register_buffer("sums", torch.zeros(num_books, size, width))
        self.register_buffer("usage", torch.ones(num_books, size))
        self.register_buffer("owner", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("marks", torch.zeros(MOST_SPEAKERS, width))

    def nearest(self, book: int, x: Tensor, speaker: int = 0) -> Tensor:
        table = self.vectors[book]
        distance = table.square().sum(-1) - 2 * (x @ table.T)
        if book == len(self.vectors) - 1:
            distance = torch.where(self.owner == speaker, distance, torch.inf)
        return distance.argmin(-1)

    def quantise(
        self, book: int, x: Tensor, *, learn: bool, speaker: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Rows [N, width] to codes [N] and their vectors."""
        if book == len(self.vectors) - 1:
            x = x + self.marks[speaker]
        codes = self.nearest(book, x, speaker)
        vectors = F.embedding(codes, self.vectors[book])
        if learn:
            self._learn(book, x, codes)
        return codes, vectors

    def _learn(self, book: int, x: Tensor, codes: Tensor) -> None:
        """Move each code towards the mean of its vectors. Reset unused codes to random inputs."""
        sums, usage, vectors = self.sums[book], self.usage[book], self.vectors[book]
        chosen = _one_hot(codes, len(usage))
        usage.lerp_(chosen.sum(0), 1 - self.decay)
        sums.lerp_(chosen.T @ x, 1 - self.decay)
        is_dead = usage < self.dead
        random = x[torch.randint(len(x), (len(usage),), device=x.device)]
        usage.copy_(torch.where(is_dead, 1.0, usage))
        sums.copy_(torch.where(is_dead[:, None], random, sums))
        vectors.copy_(sums / usage[:, None])

    @torch.no_grad()
    def initialise(self, book: int, x: Tensor, rounds: int = 20) -> None:
        """k-means."""
        size = len(self.usage[book])
        self.vectors[book] = x[torch.randperm(len(x), device=x.device)[:size]]
        for _ in range(rounds):
            chosen = _one_hot(self.nearest(book, x), size)
            count = chosen.sum(0)
            mean = (chosen.T @ x) / count.clamp(min=1)[:, None]
            spare = x[torch.randint(len(x), (size,), device=x.device)]
            self.vectors[book] = torch.where(count[:, None] > 0, mean, spare)
        self.usage[book] = 1.0
        self.sums[book] = self.vectors[book]

    def perplexity(self) -> Tensor:
        share = self.usage / self.usage.sum(-1, keepdim=True)
        return (-(share * share.clamp(min=1e-9).log()).sum(-1)).exp()


def _one_hot(codes: Tensor, size: int) -> Tensor:
    return (codes[:, None] == torch.arange(size, device=codes.device)).float()


class CodecTrainer(nn.Module):
    """The encoder belongs to `speaker`. Codebooks and decoder are shared."""

    def __init__(self, settings: SimpleNamespace, decoder: CodecDecoder, speaker: int = 0) -> None:
        super().__init__()
        self.speaker = speaker
        config, train = settings.codec, settings.train_codec
        self.decoder = decoder
        self.encoder = MelEncoder(settings.encoder, config.codebook_dim)
        width = config.codebook_dim // 2
        self.books = Codebooks(
            config.num_quantizers,
            config.codebook_size,
            width,
            train.codebook_decay,
            train.dead_usage,
        )
        self.phonemes = nn.Sequential(
            nn.Linear(width, 256), nn.GELU(), nn.Linear(256, 2 * NUM_PHONEMES)
        )
        self.dropout = train.quantizer_dropout

    def branches(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's vectors, projected for the semantic and the acoustic codebooks."""
        quantizer = self.decoder.quantizer
        first, rest = quantizer.rvq_first.input_proj(z), quantizer.rvq_rest.input_proj(z)
        return first.transpose(1, 2).float(), rest.transpose(1, 2).float()  # [B, T, width]

    def join(self, first: Tensor, rest: Tensor) -> Tensor:
        quantizer = self.decoder.quantizer
        latents = quantizer.rvq_first.output_proj(first.transpose(1, 2))
        return latents + quantizer.rvq_rest.output_proj(rest.transpose(1, 2))

    def quantise(
        self, first: Tensor, rest: Tensor, *, learn: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Quantised branches with straight-through gradients, and the commitment loss.

        Without `learn` the codebooks do not change.
        """
        shape, device = first.shape, first.device
        flat_first, flat_rest = first.detach().flatten(0, 1), rest.detach().flatten(0, 1)
        _, q_first = self.books.quantise(0, flat_first, learn=learn)
        q_first = q_first.view(shape)
        commit = F.mse_loss(first, q_first)
        num_rest = len(self.books.usage) - 1
        # Some items use only their first codebooks, so that these carry most information.
        kept = torch.randint(0, num_rest, (shape[0], 1, 1), device=device)
        is_whole = torch.rand(shape[0], 1, 1, device=device) >= self.dropout
        kept = torch.where(is_whole, num_rest, kept)
        total, residual = torch.zeros_like(rest), flat_rest
        for index in range(num_rest):
            _, vector = self.books.quantise(1 + index, residual, learn=learn, speaker=self.speaker)
            residual = residual - vector
            total = total + vector.view(shape) * (kept > index)
            is_last = index == num_rest - 1
            mark = self.books.marks[self.speaker] * (kept > index) if is_last else 0.0
            commit = commit + F.mse_loss(rest, (total - mark).detach()) / num_rest
        return first + (q_first - first).detach(), rest + (total - rest).detach(), commit

    def encode(self, samples: Tensor) -> Tensor:
        """Samples [B, frames * 1920] to codes [B, frames, books]."""
        return self.codes(*self.branches(self.encoder(samples)))

    def codes(self, first: Tensor, rest: Tensor) -> Tensor:
        """Branches [B, T, width] to codes [B, T, books]."""
        shape = first.shape[:2]
        codes, _ = self.books.quantise(0, first.flatten(0, 1), learn=False)
        found, residual = [codes], rest.flatten(0, 1)
        for index in range(1, len(self.books.usage)):
            codes, vectors = self.books.quantise(index, residual, learn=False, speaker=self.speaker)
            residual = residual - vectors
            found.append(codes)
        return torch.stack(found, -1).unflatten(0, shape)

    @torch.no_grad()
    def write_codebooks(self) -> None:
        """Write the vectors into the decoder's parameters, as sums with counts of one."""
        quantizer = self.decoder.quantizer
        layers = [*quantizer.rvq_first.vq.layers, *quantizer.rvq_rest.vq.layers]
        for layer, vectors in zip(layers, self.books.vectors, strict=True):
            layer._codebook.embedding_sum.copy_(vectors)
            layer._codebook.cluster_usage.fill_(1.0)


class Past(torch.autograd.Function):
    """Prepend `width` zeros to x [B, C, T], and zero the past of the first `num_cold` items."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int, num_cold: int, margin: int) -> Tensor:
        ctx.sizes = width, num_cold, margin
        joined = F.pad(x, (width, 0))
        joined[:num_cold, :, : width + margin] = 0
        return joined

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        width, num_cold, margin = ctx.sizes
        grad[:num_cold, :, : width + margin] = 0  # the tensor is not shared, so in-place is safe
        return grad[..., width:], None, None, None


class CropState(CausalState):
    """Left context within a crop: none at an utterance's start, else `margin` columns."""

    def __init__(self, num_cold: int) -> None:
        super().__init__()
        self.num_cold, self.margin = num_cold, 0

    def extend(self, x: Tensor, width: int, *, dim: int = -1, is_padded: bool = True) -> Tensor:
        if not is_padded:
            return x
        joined: Tensor = Past.apply(x, width, self.num_cold, self.margin)
        return joined

    def cut(self, x: Tensor, margin: int) -> Tensor:
        """Shorten the kept context."""
        x = x[..., self.margin - margin :]
        self.margin = margin
        return x


# Columns that a sample depends on: 14 before the first block, 23 after it.
MARGIN_BEFORE_BLOCKS, MARGIN_AFTER_FIRST = 16, 24


def decode_part(decoder: CodecDecoder, latents: Tensor, frames: int, num_cold: int) -> Tensor:
    """Decode the first `frames` frames of `num_cold` items and the last ones of the others.

    The samples equal those of a decoder with the whole past. The most expensive layers compute
    only the judged part and the context that it depends on.
    """
    state = CropState(num_cold)
    x = decoder.pre_conv(latents, state).transpose(1, 2)
    x = decoder.pre_transformer(x, state).transpose(1, 2)
    for stage in decoder.upsample:
        assert isinstance(stage, nn.ModuleList)
        upsample, mix = stage
        x = mix(upsample(x, state), state)
    first, *blocks, snake, last = decoder.decoder
    x = first(x, state)
    length = frames * (x.shape[-1] // latents.shape[-1])
    state.margin = MARGIN_BEFORE_BLOCKS
    cold = F.pad(x[:num_cold, :, :length], (state.margin, 0))
    x = torch.cat((cold, x[num_cold:, :, -length - state.margin :]))
    for index, block in enumerate(blocks):
        assert isinstance(block.block, nn.ModuleList)
        act, upsample, *units = block.block
        assert isinstance(upsample, CausalConvTranspose1d)
        x = upsample(act(x), state)
        state.margin *= upsample.stride
        for unit in units:
            x = unit(x, state)
        if index == 0:
            x = state.cut(x, MARGIN_AFTER_FIRST)
    samples: Tensor = last(snake(x), state)
    return state.cut(samples, 0)[:, 0].float()


def part_begins(begin: Tensor, crop: int, frames: int, num_cold: int) -> Tensor:
    """The first decoded frames of crops that begin at `begin`."""
    return torch.cat((begin[:num_cold], begin[num_cold:] + crop - frames))


def take_part(samples: Tensor, length: int, num_cold: int) -> Tensor:
    """The original samples of the part that `decode_part` decodes."""
    return torch.cat((samples[:num_cold, :length], samples[num_cold:, -length:]))
