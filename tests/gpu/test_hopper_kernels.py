"""The CUDA kernels of Hopper GPUs against the Triton kernels that they replace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from tests.support.cuda import CUDA, has_hopper, make_norm, random_rows
from tests.support.teacher_forced import distance
from vivace.backends.cuda_graph.layers import attention, product_wgmma, products
from vivace.backends.cuda_graph.layers.attention import Heads, Scratch, SlotKeys
from vivace.backends.cuda_graph.layers.frame import KvPositions
from vivace.backends.cuda_graph.layers.product_wgmma import GATED, SPLIT, WgmmaTiles, load_products
from vivace.backends.cuda_graph.layers.products import Residual
from vivace.model import ops

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_hopper(), reason="no Hopper GPU"),
    pytest.mark.usefixtures("seeded_inference"),
]


def use_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_wgmma, "find_tiles", lambda *_: None)
    monkeypatch.setattr(products, "load_products", lambda device: None)
    monkeypatch.setattr(attention, "load_attention", lambda *_: None)


@pytest.mark.parametrize("num_rows", [33, 64, 100, 128, 256, 300, 1024])
@pytest.mark.parametrize("hidden", [1024, 2048])
def test_products_are_bit_identical_to_triton(
    num_rows: int, hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, norm = random_rows(num_rows, hidden), make_norm(hidden)
    weight = random_rows(6 * hidden, hidden, scale=hidden**-0.5)
    residual = random_rows(num_rows, hidden)

    def multiply() -> list[Tensor]:
        added = Residual(residual, norm).add_linear(x, weight[:hidden], norm)
        gated = products.linear(x, weight, is_gated=True)
        some = products.linear(x[::2], weight, is_gated=True)
        return [gated, some, added.rows, added.normalised()]

    found = multiply()
    use_triton(monkeypatch)
    for each, expected in zip(found, multiply(), strict=True):
        assert torch.equal(each, expected)


@pytest.mark.parametrize("is_gated", [True, False])
def test_every_tile_size_computes_the_product(is_gated: bool) -> None:
    kernels = load_products(CUDA)
    assert kernels is not None
    cuts = {cut for *_, cut in (GATED if is_gated else SPLIT) if cut is not None}
    for cut in cuts | {WgmmaTiles(64, 32, 3)}:
        num_columns = 3 * cut.columns
        x = random_rows(200, 1536)
        weight = random_rows((1 + is_gated) * num_columns, 1536, scale=1 / 40)
        expected = x.float() @ weight.float().T
        out = torch.full((4, 200, num_columns), torch.nan, device=CUDA)
        if is_gated:
            gate, up = expected.bfloat16().chunk(2, dim=-1)
            expected, out = ops.gated_mlp(gate, up).float(), out[0].bfloat16()
        kernels.multiply(cut, x, weight, out)
        assert distance(out if is_gated else out.sum(0), expected) < 0.01


@pytest.mark.parametrize("size", product_wgmma.NORM_SIZES)
def test_norm_is_bit_identical_to_triton(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, residual = torch.randn(4, 70, size, device=CUDA), random_rows(70, size)
    norm = make_norm(size)
    found = products.add_parts(parts, residual, norm)
    use_triton(monkeypatch)
    expected = products.add_parts(parts, residual, norm)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[2], expected[2])
    assert torch.equal(found[2], products.rms_norm(found[0], norm))


SIZES = [(16, 8, 128), (4, 4, 64), (8, 2, 64)]  # heads, KV heads, their size


def make_heads(num_heads: int, num_kv: int, head_dim: int) -> Heads:
    cos, sin = ops.rope_table(torch.arange(1025, device=CUDA), head_dim, 1e6)
    return Heads(num_heads, num_kv, head_dim, cos.bfloat16(), sin.bfloat16())


def make_block(head_dim: int) -> Any:
    norms = SimpleNamespace(q_norm=make_norm(head_dim), k_norm=make_norm(head_dim))
    return SimpleNamespace(self_attn=norms)


@pytest.mark.parametrize(("first", "num_new"), [(0, 2), (2, 1), (7, 1), (15, 1)])
@pytest.mark.parametrize("size", SIZES)
def test_frame_attention_equals_triton_and_does_not_depend_on_the_batch(
    first: int, num_new: int, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_heads, num_kv, head_dim = size
    heads, block = make_heads(*size), make_block(head_dim)
    assert heads.cuda_kernels(CUDA) is not None
    qkv = random_rows(37 * num_new, (num_heads + 2 * num_kv) * head_dim)
    keys, values = (random_rows(37, num_kv, 16, head_dim) for _ in range(2))

    def run(num_slots: int) -> tuple[Tensor, SlotKeys]:
        cache = SlotKeys(keys[:num_slots].clone(), values[:num_slots].clone())
        torch.cuda.synchronize()  # the kernel reads its cache before the previous kernel ends
        some = qkv[: num_slots * num_new]
        return attention.attend_frame(some, block, heads, cache, first, num_new), cache

    found, cache = run(37)
    assert torch.equal(run(3)[0], found[: 3 * num_new])
    use_triton(monkeypatch)
    expected, expected_cache = run(37)
    assert distance(found, expected) < 0.003
    assert distance(cache.keys, expected_cache.keys) < 0.001
    assert torch.equal(cache.values, expected_cache.values)


@pytest.mark.parametrize("span", [256, 1024])
@pytest.mark.parametrize("size", SIZES)
def test_slot_attention_equals_triton_and_does_not_depend_on_the_batch(
    span: int, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 1 to `span` keys, in pages of any order; the last row is idle."""
    num_heads, num_kv, head_dim = size
    heads, block, num_pages = make_heads(*size), make_block(head_dim), 17
    counts = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, span - 1, span]
    num_keys = torch.tensor([*counts, 1], device=CUDA)
    position = torch.tensor([*(count - 1 for count in counts), 1024], device=CUDA)
    batch = len(num_keys)
    qkv = random_rows(batch, (num_heads + 2 * num_kv) * head_dim)
    keys, values = (random_rows(num_pages * batch, num_kv, 64, head_dim) for _ in range(2))
    pages = torch.randperm(num_pages * batch, device=CUDA).int().view(batch, num_pages)
    table: Any = SimpleNamespace(
        pages=pages, watch=torch.tensor([3, 1, 0], dtype=torch.int32, device=CUDA)
    )

    def run(num_rows: int) -> tuple[Tensor, SlotKeys, Tensor]:
        cache = SlotKeys(keys.clone(), values.clone(), layer=3)
        table.scores = torch.zeros(batch, 1025, device=CUDA)
        slots = torch.arange(batch, device=CUDA).flip(0)[:num_rows]
        place = KvPositions(slots, position[:num_rows], num_keys[:num_rows], span)
        scratch = Scratch.make(num_rows, heads, span, CUDA)
        torch.cuda.synchronize()  # the kernel reads its cache before the previous kernel ends
        out = attention.attend_slots(qkv[:num_rows], block, heads, cache, table, place, scratch)
        return out, cache, table.scores

    assert heads.cuda_kernels(CUDA) is not None
    found, cache, scores = run(batch)
    assert torch.equal(run(4)[0], found[:4])
    use_triton(monkeypatch)
    expected, expected_cache, expected_scores = run(batch)
    assert distance(found, expected) < 0.005
    assert distance(cache.keys, expected_cache.keys) < 0.001
    assert torch.equal(cache.values, expected_cache.values)
    assert torch.equal(scores == 0, expected_scores == 0)
    assert distance(scores, expected_scores) < 0.01
