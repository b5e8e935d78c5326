"""Samples codes from logits: penalty, suppression, temperature, top-k, top-p and the draw.

A draw depends only on (seed, frame, codebook, code): each candidate code gets Gumbel noise from a
Philox4x32-10 counter, and the largest noisy score wins. Other requests in the batch, chunk sizes
and the device have no influence. All operations run on tensors without a host sync, so this code
also runs inside a CUDA graph, and kernels can reproduce it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> Tensor:
    """Philox4x32-10 over broadcastable int64 tensors of 32-bit words: [..., 4] words."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        left, right = a * MULTIPLIERS[0], c * MULTIPLIERS[1]  # int64 overflow wraps, as intended
        a, b, c, d = (
            (right >> 32 & WORD) ^ b ^ k0,
            right & WORD,
            (left >> 32 & WORD) ^ d ^ k1,
            left & WORD,
        )
        k0, k1 = k0 + KEY_STEPS[0] & WORD, k1 + KEY_STEPS[1] & WORD
    return torch.stack(torch.broadcast_tensors(a, b, c, d), dim=-1)


def gumbel(words: Tensor) -> Tensor:
    """Convert 32-bit words to Gumbel noise in float32. Only 23 bits are used, so it is finite."""
    uniform = ((words >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


class NoiseTable:
    """Noise for all codes of a frame; codebook g has `sizes[g]` codes."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self._spans = [-(-size // 4) * 4 for size in sizes]
        blocks = [torch.arange(span // 4) for span in self._spans]
        books = [torch.full((span // 4,), book) for book, span in enumerate(self._spans)]
        self._block = torch.cat(blocks).to(device)  # four codes share a counter
        self._book = torch.cat(books).to(device)
        self._sizes = list(sizes)

    def frames(self, seeds: Tensor, first: Tensor, num_frames: int) -> list[Tensor]:
        """Noise of `num_frames` frames from first[b] on: [B, num_frames, size] per codebook."""
        frame = first[:, None, None] + torch.arange(num_frames, device=first.device)[:, None]
        key = (seeds[:, None, None] & WORD, seeds[:, None, None] >> 32)
        counter = (self._block, self._book, frame, torch.zeros_like(frame))
        noise = gumbel(philox(counter, key)).flatten(-2)  # [B, num_frames, all codes]
        parts = noise.split(self._spans, dim=-1)
        return [part[..., :size] for part, size in zip(parts, self._sizes, strict=True)]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sampling settings of each batch row, as tensors that a captured graph can reread."""

    temperature: Tensor  # float32 [B, 1]; 1 where greedy
    is_greedy: Tensor  # bool [B, 1]
    last: Tensor  # int64 [B, 1]: the rank of the last code that top-k keeps, from 0
    top_p: Tensor  # float32 [B, 1]
    num_ranked: int  # scores to sort for top-k; 0 skips top-k
    has_top_p: bool

    @classmethod
    def of(
        cls, rows: Sequence[tuple[float, int, float]], num_codes: int, device: torch.device
    ) -> Shape:
        """Build from (temperature, top_k, top_p) of every row, for `num_codes` codes."""
        temperature, top_k, top_p = zip(*rows, strict=True)
        last = [last_rank(k, num_codes) for k in top_k]
        column = torch.tensor(temperature, dtype=torch.float32, device=device)[:, None]
        return cls(
            temperature=torch.where(column == 0, 1.0, column),
            is_greedy=column == 0,
            last=torch.tensor(last, device=device)[:, None],
            top_p=torch.tensor(top_p, dtype=torch.float32, device=device)[:, None],
            num_ranked=max(last) + 1 if min(last) + 1 < num_codes else 0,
            has_top_p=min(top_p) < 1.0,
        )

    def zero_greedy_noise(self, noise: Tensor) -> Tensor:
        """Set the noise [B, frames, codes] of greedy rows to 0."""
        return noise.masked_fill(self.is_greedy[..., None], 0.0)


def last_rank(top_k: int, num_codes: int) -> int:
    """The rank of the last code that top-k keeps, from 0; a `top_k` of 0 keeps all codes."""
    return (min(top_k, num_codes) if top_k else num_codes) - 1


def talker_scores(
    logits: Tensor, history: Tensor, penalty: Tensor, is_banned: Tensor, shape: Shape
) -> Tensor:
    """Codebook 0, in the official order: penalty, bans, then temperature, top-k and top-p."""
    logits = penalise(logits, history, penalty).masked_fill(is_banned, -torch.inf)
    return shape_scores(logits, shape)


def penalise(logits: Tensor, history: Tensor, penalty: Tensor) -> Tensor:
    """Lower the scores of codes in `history` (bool [B, V]); `penalty` is [B, 1]."""
    punished = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(history, punished, logits)


def shape_scores(logits: Tensor, shape: Shape) -> Tensor:
    """Temperature, then top-k, then top-p, in the official order; dropped codes are -inf."""
    scores = logits / shape.temperature
    if shape.num_ranked:
        ranked = scores.topk(shape.num_ranked).values
        is_dropped = scores < ranked.gather(-1, shape.last)  # keeps ties
        scores = scores.masked_fill(is_dropped, -torch.inf)
    if shape.has_top_p:
        scores = _keep_top_p(scores, shape)
    return scores


def draw(scores: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The sampled code of each row and its score. Non-finite logits give a non-finite score."""
    best, codes = torch.max(scores + noise, dim=-1)
    return codes, best


def _keep_top_p(scores: Tensor, shape: Shape) -> Tensor:
    ascending, order = scores.sort(dim=-1)
    mass = ascending.softmax(dim=-1).cumsum(dim=-1)
    is_dropped = (mass <= 1.0 - shape.top_p) & (shape.top_p < 1.0)
    is_dropped[..., -1] = False
    return scores.masked_fill(is_dropped.scatter(-1, order, is_dropped), -torch.inf)
