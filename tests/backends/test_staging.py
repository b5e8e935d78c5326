"""Staged copies to the device read the values written for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.slots import make_prompt, params
from tests.support.tiny import Tiny
from vivace.backends.cuda_graph import staging
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.prefill import Pass
from vivace.backends.cuda_graph.staging import RowNumbers

CPU = torch.device("cpu")
PADDING = 9


class LateCopies(TorchDispatchMode):
    """Delayed asynchronous copies, like behind other GPU work."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[Tensor, Tensor]] = []  # to, from

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func is torch.ops.aten.copy_.default and args[2:] == (True,):
            self.waiting.append(args[:2])
            return args[0]
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def test_staged_pass_is_not_overwritten_before_its_copy(
    tiny: Callable[[str], Tiny],
) -> None:
    part = tiny("custom_voice")
    backend = CudaGraphBackend(part.model, part.codec, max_streams=2, max_frames=64)
    prefill, passes = backend._prefill, list[Pass]()
    for seed, text in enumerate(("Hello.", "Good bye.")):
        prompt = make_prompt(part, text)
        fresh = backend._reservations.reserve(prompt, params(seed), is_full=False)
        assert not isinstance(fresh, Exception)
        columns = prefill._columns(prompt, fresh, start=0)
        passes.append(Pass(columns, [backend._table.line(fresh)]))
    prefill.warm(16)
    with LateCopies() as late:
        for each in passes:
            prefill._set_inputs(each, 16)
    inputs = prefill._inputs[16]
    (first, second) = late.waiting
    for (target, source), each in zip((first, second), passes, strict=True):
        assert target is inputs
        prefill._set_inputs(each, 16)
        assert torch.equal(inputs, source)
    assert not torch.equal(first[1], second[1])


def test_graphs_read_latest_rows() -> None:
    rows = RowNumbers(4, PADDING, CPU)
    for given, batch in (([1], 1), ([1, 2], 4), ([3], 1), ([1, 2], 4), ([1], 2), ([1, 2], 2)):
        rows.write(given, batch)
        assert rows.tensor[:batch].tolist() == [*given, *[PADDING] * (batch - len(given))]
    rows.park()
    assert rows.tensor.tolist() == [PADDING] * 4
    rows.write([1, 2], 2)
    assert rows.tensor.tolist() == [1, 2, PADDING, PADDING]


def test_row_numbers_are_copied_only_on_change(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    pin = staging.pin

    def count(values: Any, *more: Any) -> Tensor:
        copied.append(values)
        return pin(values, *more)

    monkeypatch.setattr(staging, "pin", count)
    rows = RowNumbers(4, PADDING, CPU)
    for given in ([1, 2], [1, 2], [2, 1], [2, 1]):
        rows.write(given, 2)
    assert copied == [[1, 2], [2, 1]]
