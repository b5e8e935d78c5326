# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Triton kernels that draw codes, bit-identical to sampling.py, and their launches."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from vivace.backends.cuda_graph.launch_sizes import power_of_two
from vivace.backends.cuda_graph.layers.frame import SamplingState
from vivace.backends.cuda_graph.layers.product_kernels import wait_for_last
from vivace.backends.cuda_graph.layers.products import options
from vivace.backends.cuda_graph.slots.table import Scale
from vivace.backends.frame_maker import FrameCodes


@triton.jit
def gumbel_noise_kernel(
    seeds, frames, noise, num_first, num_rest, num_counters,
    BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Gumbel noise of one frame as in sampling.py: one Philox counter per four codes."""
    wait_for_last(OVERLAPS)
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_first = i < num_first
    block = tl.where(is_first, i, (i - num_first) % num_rest)
    book = tl.where(is_first, 0, 1 + (i - num_first) // num_rest)
    seed = tl.load(seeds + row)
    frame = tl.load(frames + row).to(tl.int32) + i * 0
    words = tl.philox(seed, block, book, frame, i * 0)
    at = noise + row.to(tl.int64) * num_counters * 4 + i * 4
    for j in tl.static_range(4):
        uniform = ((words[j] >> 9).to(tl.float32) + 0.5) * (2.0**-23)
        tl.store(at + j, -libdevice.log(-libdevice.log(uniform)), mask=i < num_counters)


@triton.jit
def _kth_largest(values, rank, NUM_BITS: tl.constexpr):
    """The `rank`-th largest value, by radix search of two bits at a time.

    Floats become unsigned integers of the same order; bfloat16 needs the upper 16 bits only.
    """
    bits = values.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, ~bits, bits | (-2147483648)).to(tl.uint32, bitcast=True)
    found = tl.zeros((), tl.uint32)
    step = tl.full((), 1073741824, tl.uint32)
    for _ in range(NUM_BITS // 2):
        reach_1 = (order >= found + step).to(tl.int64)
        reach_2 = (order >= found + 2 * step).to(tl.int64)
        reach_3 = (order >= found + 3 * step).to(tl.int64)
        counts = tl.sum(reach_1 + (reach_2 << 20) + (reach_3 << 40), 0)
        num_steps = (
            ((counts & 1048575) >= rank).to(tl.uint32)
            + ((counts >> 20 & 1048575) >= rank).to(tl.uint32)
            + ((counts >> 40) >= rank).to(tl.uint32)
        )
        found += num_steps * step
        step = step >> 2
    return tl.min(tl.where(order >= found, values, float("inf")), 0)


@triton.jit(do_not_specialize=["book"])
def draw_kernel(
    logits, noise, temperature, is_greedy, last, history, penalty, is_early,
    embedding, codes, is_finite, next_x, code_sum,
    noise_stride, code_stride, next_stride, book, num_codes, width, eos, first_special,
    IS_FIRST: tl.constexpr, IS_SHAPED: tl.constexpr,  # codebook 0; sampling params applied already
    NUM_BITS: tl.constexpr,  # significant bits of a logit
    BLOCK: tl.constexpr, WIDTH_BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Draw one code per row as in sampling.py; store its embedding and add it to `code_sum`."""
    row = tl.program_id(0)
    v = tl.arange(0, BLOCK)
    is_code = v < num_codes
    extra = tl.load(noise + row.to(tl.int64) * noise_stride + v, mask=is_code, other=0.0)
    extra = tl.where(tl.load(is_greedy + row) != 0, 0.0, extra)
    heat = tl.load(temperature + row)
    rank = tl.load(last + row).to(tl.int32) + 1
    w = tl.arange(0, WIDTH_BLOCK)
    sum_at = code_sum + row * width + w
    total = tl.zeros((WIDTH_BLOCK,), tl.float32)
    was_good = tl.full((), 1, tl.int8)
    if not IS_FIRST:  # an earlier draw wrote them
        total = tl.load(sum_at, mask=w < width, other=0.0)
        was_good = tl.load(is_finite + row)
    wait_for_last(OVERLAPS)
    scores = tl.load(logits + row * num_codes + v, mask=is_code, other=-float("inf"))
    scores = scores.to(tl.float32)
    if IS_FIRST and not IS_SHAPED:
        factor = tl.load(penalty + row)
        punished = tl.where(scores < 0, scores * factor, tl.div_rn(scores, factor))
        is_said = tl.load(history + row * num_codes + v, mask=is_code, other=0) != 0
        scores = tl.where(is_said, punished, scores)
        is_closed = (v != eos) | (tl.load(is_early + row) != 0)
        scores = tl.where((v >= first_special) & is_closed, -float("inf"), scores)
    if not IS_SHAPED:
        lowest = -float("inf")
        if rank < num_codes:
            # Division keeps the order, so search before it, where bfloat16 logits have 16 bits.
            lowest = tl.div_rn(_kth_largest(scores, rank, NUM_BITS), heat)
        scores = tl.div_rn(scores, heat)
        scores = tl.where(scores < lowest, -float("inf"), scores)
    is_broken = tl.max((scores != scores).to(tl.int32), 0) > 0
    scores += extra
    scores = tl.where(is_code, scores, -float("inf"))
    best, code = tl.max(scores, 0, return_indices=True, return_indices_tie_break_left=True)
    code = tl.minimum(code, num_codes - 1)
    is_good = (best > -float("inf")) & (best < float("inf")) & (is_broken == 0)
    tl.store(codes + row * code_stride + book, code.to(tl.int64))
    vector = tl.load(embedding + code.to(tl.int64) * width + w, mask=w < width, other=0.0)
    tl.store(next_x + row * next_stride + w, vector, mask=w < width)
    tl.store(sum_at, total + vector.to(tl.float32), mask=w < width)
    tl.store(is_finite + row, was_good & is_good.to(tl.int8))


def gumbel_noise(
    seeds: Tensor, frames: Tensor, num_first: int, num_rest: int, books: int
) -> Tensor:
    """Noise of `sampling.NoiseTable` for one frame: [B, codes]; codebooks padded to 4."""
    first, rest = -(-num_first // 4), -(-num_rest // 4)
    num_counters = first + rest * (books - 1)
    noise = torch.empty(len(seeds), 4 * num_counters, device=seeds.device)
    gumbel_noise_kernel[(len(seeds), -(-num_counters // 256))](
        seeds, frames, noise, first, rest, num_counters,
        BLOCK=256, num_warps=4, **options(seeds),
    )  # fmt: skip
    return noise


def draw_code(
    logits: Tensor,  # [B, codes]; with top-p, scores after all sampling parameters
    noise: Tensor,  # [B, codes], rows of any stride
    draws: SamplingState,
    embedding: Tensor,  # [codes, hidden]
    next_x: Tensor,  # [B, hidden], rows of any stride: output, the code's embedding
    drawn: FrameCodes,
    book: int,
    *,
    eos: int,
    first_special: int,
) -> None:
    """Draw one code per row."""
    batch, num_codes = logits.shape
    rows = draws.predictor if book else draws.talker
    draw_kernel[(batch,)](
        logits, noise, rows.temperature, rows.is_greedy, rows.last,
        draws.history, draws.scales[Scale.PENALTY], draws.is_early,
        embedding, drawn.codes, drawn.is_finite, next_x, drawn.code_sum,
        noise.stride(0), drawn.codes.stride(0), next_x.stride(0), book, num_codes,
        embedding.shape[1], eos, first_special,
        IS_FIRST=book == 0, IS_SHAPED=draws.kind.has_top_p,
        NUM_BITS=16 if book and logits.dtype == torch.bfloat16 else 32,
        BLOCK=power_of_two(num_codes),
        WIDTH_BLOCK=power_of_two(embedding.shape[1]), num_warps=4, **options(logits),
    )  # fmt: skip
