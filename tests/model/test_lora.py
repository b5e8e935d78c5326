"""Tests of low-rank changes by row, against the products of each row alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vivace.model.lora import Pair, StackedLora, adapted, add_change, lora_bytes, one_adapter

WIDTH = 6
SIZES = (4, 2, 2)  # outputs of queries, keys and values
RANKS = ((2, 2, 1), (None, 3, None))  # of two adapters; None: the part is not changed


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture(name="pairs")
def draw_pairs() -> list[list[Pair | None]]:
    torch.manual_seed(3)
    return [
        [
            None if rank is None else (drawn(rank, WIDTH), drawn(size, rank))
            for rank, size in zip(ranks, SIZES, strict=True)
        ]
        for ranks in RANKS
    ]


@pytest.fixture(name="lora")
def stack_pairs(pairs: list[list[Pair | None]]) -> StackedLora:
    return StackedLora.stack(pairs, SIZES, like=drawn(SIZES[0], WIDTH))


def expected_change(pairs: list[list[Pair | None]], x: Tensor, number: int) -> Tensor:
    """The change of one row [in] by the definition B · A · x of each part."""
    if number == 0:
        return x.new_zeros(sum(SIZES))
    parts = zip(pairs[number - 1], SIZES, strict=True)
    return torch.cat([x.new_zeros(n) if p is None else p[1] @ (p[0] @ x) for p, n in parts])


def test_each_row_has_the_change_of_its_adapter(
    pairs: list[list[Pair | None]], lora: StackedLora
) -> None:
    numbers = torch.tensor([2, 0, 1, 2])
    x = drawn(4, 3, WIDTH)  # three positions of four slots
    found = lora(x, numbers)
    assert found.shape == (4, 3, sum(SIZES))
    for slot, number in enumerate(numbers.tolist()):
        for place in range(3):
            wanted = expected_change(pairs, x[slot, place], number)
            torch.testing.assert_close(found[slot, place], wanted)
    assert not found[1].any()


@pytest.mark.parametrize("number", [1, 2])
def test_one_row_has_the_change_of_a_batch(
    pairs: list[list[Pair | None]], lora: StackedLora, number: int
) -> None:
    x = drawn(WIDTH)
    torch.testing.assert_close(lora.change_row(x, number), expected_change(pairs, x, number))
    adapters = one_adapter(number, x.device)
    assert adapters is not None
    torch.testing.assert_close(lora(x[None, None], adapters)[0, 0], lora.change_row(x, number))


def test_no_adapter_has_no_number() -> None:
    assert one_adapter(0, torch.device("cpu")) is None


def test_matrices_are_padded_to_the_largest_rank(lora: StackedLora) -> None:
    assert lora.rank == 3
    assert lora.state_dict() == {}  # adapters are not part of a checkpoint
    assert lora.a.shape == (2, 3 * 3, WIDTH)
    assert lora.b.shape == (2, sum(SIZES), 3)
    assert lora.starts.tolist() == [0, 0, 0, 0, 3, 3, 6, 6]
    assert not lora.a[0, 2].any()  # rank 2 of 3
    assert not lora.b[1, : SIZES[0]].any()  # not changed


def test_layer_without_stack_or_rows_without_numbers_keep_their_product(lora: StackedLora) -> None:
    layer, x = nn.Linear(WIDTH, sum(SIZES), dtype=torch.float64), drawn(2, 1, WIDTH)
    numbers = torch.tensor([1, 0])
    assert torch.equal(adapted(layer, x, numbers), layer(x))
    assert torch.equal(add_change(layer(x), None, x, numbers), layer(x))
    layer.lora = lora
    assert torch.equal(adapted(layer, x, None), layer(x))
    changed = adapted(layer, x, numbers)
    torch.testing.assert_close(changed, layer(x) + lora(x, numbers))
    assert torch.equal(changed[1], layer(x)[1])
    assert not torch.equal(changed[0], layer(x)[0])


def test_bytes_are_those_of_all_stacks_of_a_module(lora: StackedLora) -> None:
    module = nn.Sequential(nn.Linear(WIDTH, 2), lora)
    assert lora_bytes(module) == lora.a.nbytes + lora.b.nbytes + lora.starts.nbytes
    assert lora_bytes(nn.Linear(WIDTH, 2)) == 0
