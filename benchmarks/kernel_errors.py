"""References of the Triton kernels in float64, without intermediate rounding.

A reference takes a kernel's arguments by name before the launch and yields pairs: the expected
result, and a call that reads the kernel's result. Draws and noise are compared with sampling.py,
which they repeat bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vivace.backends.cuda_graph.codec import kernels as codec_kernels
from vivace.sampling import NoiseTable, Shape, draw, shape_scores, talker_scores

Given = dict[str, Any]
Read = Callable[[], Tensor]


class Pair(NamedTuple):
    expected: Tensor
    read: Read
    dtype: torch.dtype  # of the output


class Error(NamedTuple):
    relative: float  # root of the mean square, over that of the expected
    rounding: float  # the same of the expected numbers, rounded once to the output's dtype


def measure_error(pairs: list[Pair]) -> Error:
    """The largest error of all outputs."""
    return max(_distance(pair.read(), pair) for pair in pairs)


def _distance(found: Tensor, pair: Pair) -> Error:
    expected = pair.expected.double()
    size = float(expected.norm()) or 1.0
    if not pair.dtype.is_floating_point:
        return Error(float((found != expected).double().mean()), 0.0)
    rounded = expected.to(pair.dtype).double()
    return Error(
        float((found.double() - expected).norm()) / size, float((rounded - expected).norm()) / size
    )


def _output(tensor: Tensor, expected: Tensor) -> Pair:
    return Pair(expected, lambda: tensor, tensor.dtype)


def _tensors(given: Given, *names: str) -> list[Tensor]:
    return [given[name] for name in names]


# -- norms and products ----------------------------------------------------------


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


def _linear(given: Given) -> Iterator[Pair]:
    x, weight = given["x"].double(), given["weight"].double()
    if given["NORM_ROWS"]:
        x = _normed(x, given["norm_weight"], given["eps"])
    y = x @ weight.T
    if given["bias"] is not None:
        y = y + given["bias"].double()
    if given["IS_GATED"]:
        gate, up = y.chunk(2, dim=-1)
        y = F.silu(gate) * up
    yield _output(given["out"], y)


def _residual_linear(given: Given) -> Iterator[Pair]:
    product = given["x"].double() @ given["weight"].double().T
    yield _output(given["out"], given["residual"].double() + product)


def _split_linear(given: Given) -> Iterator[Pair]:
    parts = given["parts"]
    product = given["x"].double() @ given["weight"].double().T
    yield Pair(product, lambda: parts.double().sum(0), parts.dtype)


def _residual_norm(given: Given) -> Iterator[Pair]:
    rows = given["residual"].double() + given["parts"].double().sum(0)
    yield _output(given["out"], rows)
    yield _output(given["normed"], _normed(rows, given["weight"], given["eps"]))


def _rms_norm(given: Given) -> Iterator[Pair]:
    yield _output(given["out"], _normed(given["x"], given["weight"], given["eps"]))


# -- attention of talker and predictor ----------------------------------------------------------


def _rotated(heads: Tensor, weight: Tensor, given: Given, positions: Tensor) -> Tensor:
    """Heads [rows, heads, D] at positions [rows]."""
    x = _normed(heads, weight, given["eps"])
    cos, sin = _tensors(given, "cos", "sin")
    cos, sin = (each.double()[positions][:, None] for each in (cos, sin))
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def _heads(given: Given, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [rows, heads, D], new keys and values [rows, kv_heads, D]."""
    num_kv, group = given["NUM_KV"], given["GROUP"]
    qkv = given["qkv"].view(len(given["qkv"]), -1, given["D"])
    q, k, v = qkv.split([num_kv * group, num_kv, num_kv], dim=1)
    k = _rotated(k, given["k_weight"], given, positions) if "k_weight" in given else k
    q = _rotated(q, given["q_weight"], given, positions) if "q_weight" in given else q
    return q, k, v.double()


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, given: Given) -> Tensor:
    """q [rows, heads, D], k and v [rows, kv_heads, T, D], mask [rows, T]."""
    group = q.shape[1] // k.shape[1]
    k, v = (each.double().repeat_interleave(group, dim=1) for each in (k, v))
    scale: float = given["softmax_scale"]
    scores = (k @ q[..., None])[..., 0] * scale
    share = scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
    return (share[:, :, None] @ v)[:, :, 0]


def _stored(given: Given, name: str, num_chunks: int) -> Tensor:
    """The keys or values of the rows' slots: [rows, kv_heads, T, D]."""
    pages, slots, cache = _tensors(given, "pages", "slots", name)
    return cache[pages[slots][:, :num_chunks].long()].double().transpose(1, 2).flatten(2, 3)


def _attend_slots(given: Given) -> Iterator[Pair]:
    positions, num_keys, chunk = given["positions"], given["num_keys"], given["CHUNK"]
    num_chunks = -(-int(num_keys.max()) // chunk)
    q, new_k, new_v = _heads(given, positions)
    rows = torch.arange(len(q), device=q.device)
    k, v = (_stored(given, name, num_chunks) for name in ("keys", "values"))
    k[rows, :, positions], v[rows, :, positions] = new_k, new_v
    mask = torch.arange(k.shape[2], device=q.device) < num_keys[:, None]
    expected, out = _attend(q, k, v, mask, given), given["out"]
    if given["NUM_SPANS"] == 1:
        yield _output(out, expected.flatten(1))
        return
    peak, total = _tensors(given, "part_max", "part_sum")
    num_spans = -(-num_chunks // given["SPAN"])
    yield Pair(expected, lambda: _merged(out, peak, total, num_spans), out.dtype)


def _merged(out: Tensor, peak: Tensor, total: Tensor, num_spans: int) -> Tensor:
    """Partial results [rows, heads, spans, D] of rows with the same number of spans."""
    out, peak, total = (each[:, :, :num_spans].double() for each in (out, peak, total))
    share = (peak - peak.amax(-1, keepdim=True)).exp()
    return (share[..., None] * out).sum(2) / (share * total).sum(2)[..., None]


def _merge_spans(given: Given) -> Iterator[Pair]:
    num_spans = -(-int(given["num_keys"].max()) // given["KEYS"])
    out, peak, total = _tensors(given, "part_out", "part_max", "part_sum")
    yield _output(given["out"], _merged(out, peak, total, num_spans).flatten(1))


def _attend_frame(given: Given) -> Iterator[Pair]:
    first, num_new, out = given["first"], given["NUM_NEW"], given["out"]
    batch, num_positions = given["keys"].shape[0], given["NUM_POSITIONS"]
    positions = first + torch.arange(num_new, device=out.device).repeat(batch)
    q, new_k, new_v = _heads(given, positions)
    k, v = (given[name].double().clone() for name in ("keys", "values"))  # [B, kv_heads, T, D]
    for cache, new in ((k, new_k), (v, new_v)):
        cache[:, :, first : first + num_new] = new.view(batch, num_new, -1, k.shape[-1]).transpose(
            1, 2
        )
        cache[:, :, first + num_new :] = 0.0  # not written yet
    k, v = (each.repeat_interleave(num_new, dim=0) for each in (k, v))
    mask = torch.arange(num_positions, device=out.device) <= positions[:, None]
    yield _output(out, _attend(q, k, v, mask, given).flatten(1))


def _store_keys(given: Given) -> Iterator[Pair]:
    positions, chunk = given["positions"], given["CHUNK"]
    _, k, v = _heads(given, positions)
    pages = given["pages"][given["slots"], positions // chunk].long()
    where = (pages, slice(None), positions % chunk)
    for cache, expected in zip(_tensors(given, "keys", "values"), (k, v), strict=True):
        yield Pair(expected, partial(cache.__getitem__, where), cache.dtype)


def _attend_prompts(given: Given) -> Iterator[Pair]:
    positions = given["positions"]
    q, _, _ = _heads(given, positions)
    num_chunks = int(positions.max()) // given["CHUNK"] + 1
    k, v = (_stored(given, name, num_chunks) for name in ("keys", "values"))
    mask = torch.arange(k.shape[2], device=q.device) <= positions[:, None]
    yield _output(given["out"], _attend(q, k, v, mask, given).flatten(1))


# -- draws ----------------------------------------------------------


def _gumbel_noise(given: Given) -> Iterator[Pair]:
    first, rest = 4 * given["num_first"], 4 * given["num_rest"]
    num_books = 1 + (given["num_counters"] - given["num_first"]) // given["num_rest"]
    table = NoiseTable([first] + [rest] * (num_books - 1), given["noise"].device)
    expected = torch.cat(table.frames(given["seeds"], given["frames"], 1), dim=-1)[:, 0]
    yield _output(given["noise"], expected)


def _draw(given: Given) -> Iterator[Pair]:
    logits, num_codes = given["logits"].float(), given["num_codes"]
    shape = Shape(
        temperature=given["temperature"][:, None], is_greedy=given["is_greedy"][:, None] != 0,
        last=given["last"][:, None], top_p=torch.ones_like(logits[:, :1]),
        num_ranked=int(given["last"].max()) + 1, has_top_p=False,
    )  # fmt: skip
    if given["IS_FIRST"]:
        ids = torch.arange(num_codes, device=logits.device)
        is_closed = (ids != given["eos"]) | (given["is_early"][:, None] != 0)
        is_banned = (ids >= given["first_special"]) & is_closed
        penalty = given["penalty"][:, None]
        history = given["history"][:, :num_codes]
        scores = talker_scores(logits, history, penalty, is_banned, shape)
    else:
        scores = shape_scores(logits, shape)
    noise = shape.zero_greedy_noise(given["noise"][:, None, :num_codes])[:, 0]
    codes, book = given["codes"], given["book"]
    yield Pair(draw(scores, noise)[0], lambda: codes[:, book], codes.dtype)


# -- the codec ----------------------------------------------------------


def _sum_codes(given: Given) -> Iterator[Pair]:
    codes, tables, first = given["codes"], given["tables"].double(), given["num_first"]
    books = torch.arange(len(tables), device=codes.device)
    vectors = tables[books, codes]  # [B, T, books, width]
    halves = (vectors[..., :first, :].sum(-2), vectors[..., first:, :].sum(-2))
    yield _output(given["out"], torch.cat(halves, dim=-1))


def _with_past(given: Given, reach: int) -> Tensor:
    """The input with the previous `reach` steps in front: [B, reach + T, in]."""
    x: Tensor = given["x"].double()
    if not reach:
        return x
    past = given["history"][given["slots"]][:, : reach * x.shape[-1]]
    return torch.cat((past.double().view(len(x), reach, -1), x), dim=1)


def _convolved(given: Given, dilation: int) -> Tensor:
    """The product with all fused operations before the activation."""
    x, weight = _tensors(given, "x", "weight")
    length = x.shape[1]
    x = _with_past(given, (len(weight) - 1) * dilation)
    if given["norm"] is not None:
        x = _normed(x, given["norm"], given["eps"])
    taps = (
        x[:, tap * dilation : tap * dilation + length] @ weight[tap].double().T
        for tap in range(len(weight))
    )
    y = reduce(torch.add, taps)
    if given["IS_GATED"]:
        gate, up = y.chunk(2, dim=-1)
        y = F.silu(gate) * up
    if (bias := given["bias"]) is not None:
        y = y + bias.double().repeat(y.shape[-1] // len(bias))
    if given["scale"] is not None:
        y = y * given["scale"].double()
    if (residual := given["residual"]) is not None:
        y = y + residual.double().view(y.shape)
    return y


def _product(given: Given) -> Iterator[Pair]:
    y = _convolved(given, given["dilation"])
    if given["out"] is not None:
        yield _output(given["out"], y)
    if given["active"] is not None:
        yield _output(given["active"], _activated(y, given))


def _activated(y: Tensor, given: Given) -> Tensor:
    if given["ACTIVATION"] == codec_kernels.SNAKE.value:
        count = y.shape[-1] // given["frequency"].numel()
        pair = _tensors(given, "frequency", "inverse_gain")
        factor, share = (each.double().flatten().repeat(count) for each in pair)
        return y + share * (y * (factor * math.pi)).sin().square()
    return F.gelu(y) if given["ACTIVATION"] == codec_kernels.GELU.value else y


def _keep(given: Given) -> Iterator[Pair]:
    history, slots, width = given["history"], given["slots"], given["width"]
    expected = _with_past(given, width)[:, -width:].flatten(1)
    yield Pair(expected, lambda: history[slots][:, : expected.shape[1]], history.dtype)


def _mix(given: Given) -> Iterator[Pair]:
    weight, length = given["weight"].double(), given["x"].shape[1]
    x = _with_past(given, len(weight) - 1)
    y = given["bias"].double() + sum(
        x[:, tap : tap + length] * weight[tap] for tap in range(len(weight))
    )
    norm = (given["norm_weight"].double(), given["norm_bias"].double())
    yield _output(given["out"], F.layer_norm(y, y.shape[-1:], *norm, given["eps"]))


def _attend_ring(given: Given) -> Iterator[Pair]:
    slots, length, window, out = given["slots"], given["length"], given["WINDOW"], given["out"]
    num_heads, num_kv, size, ring_size = (given[n] for n in ("NUM_HEADS", "NUM_KV", "D", "RING"))
    qkv, seen = given["qkv"].double(), given["num_seen"][slots]
    batch, steps = len(qkv), torch.arange(length, device=out.device)
    rotations = given["rotations"].double().view(batch, length, 1, 2, size // 2)
    cos, sin = rotations.unbind(dim=3)
    q, k, v = qkv.view(batch, length, -1, size).split([num_heads, num_kv, num_kv], dim=2)

    def rotate(x: Tensor) -> Tensor:
        low, high = x.chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)

    ring = given["ring"][slots][:, : 2 * num_kv * ring_size * size].double()
    ring = ring.view(batch, 2, num_kv, ring_size, size)
    past = seen[:, None] - (window - 1) + torch.arange(window - 1, device=out.device)  # positions
    rows = torch.arange(batch, device=out.device)[:, None]
    old = ring.transpose(2, 3)[rows, :, past % ring_size]  # [B, past, 2, kv_heads, D]
    keys = torch.cat((old[:, :, 0], rotate(k)), dim=1).transpose(1, 2)
    values = torch.cat((old[:, :, 1], v), dim=1).transpose(1, 2)
    j = torch.arange(window - 1 + length, device=out.device)
    is_near = (j >= steps[:, None]) & (j < steps[:, None] + window)
    is_real = seen[:, None] - (window - 1) + j >= 0
    mask = (is_near & is_real[:, None])[:, None]
    group = num_heads // num_kv
    keys, values = (each.repeat_interleave(group, dim=1) for each in (keys, values))
    scores = rotate(q).transpose(1, 2) @ keys.transpose(2, 3) * given["softmax_scale"]
    mixed = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values
    yield _output(out, mixed.transpose(1, 2).flatten(2))


REFERENCES: dict[str, Callable[[Given], Iterator[Pair]]] = {
    "linear_kernel": _linear,
    "residual_linear_kernel": _residual_linear,
    "split_linear_kernel": _split_linear,
    "residual_norm_kernel": _residual_norm,
    "rms_norm_kernel": _rms_norm,
    "attend_slots_kernel": _attend_slots,
    "merge_spans_kernel": _merge_spans,
    "attend_frame_kernel": _attend_frame,
    "store_keys_kernel": _store_keys,
    "attend_prompts_kernel": _attend_prompts,
    "gumbel_noise_kernel": _gumbel_noise,
    "draw_kernel": _draw,
    "sum_codes_kernel": _sum_codes,
    "product_kernel": _product,
    "keep_kernel": _keep,
    "mix_kernel": _mix,
    "attend_kernel": _attend_ring,
    "wgmma_gated": _linear,
    "wgmma_parts": _split_linear,
    "add_and_normalise": _residual_norm,
    "attend_one": _attend_frame,
    "attend_two": _attend_frame,
    "attend_slots": _attend_slots,
}
