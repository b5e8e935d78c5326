"""Staged copies to the device read the values written for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.slots import make_prompt, params
from tests.support.tiny import Tiny
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.prefill import Field
from vivace.backends.cuda_graph.slots import staging
from vivace.backends.cuda_graph.slots.staging import HostCopies, RowNumbers, StagedNumbers
from vivace.backends.cuda_graph.slots.table import GraphSlot

CPU = torch.device("cpu")
PADDING = 9


class LateCopies(TorchDispatchMode):
    """Delays asynchronous copies, like behind other GPU work, until `finish`."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[Tensor, Tensor]] = []  # to, from

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func is torch.ops.aten.copy_.default and args[2:] == (True,):
            self._waiting.append(args[:2])
            return args[0]
        return func(*args, **(kwargs or {}))

    def finish(self) -> None:
        for target, source in self._waiting:
            target[:] = source
        self._waiting.clear()


class LateEvent:
    """A CUDA event that is complete after the copies queued before it."""

    def __init__(self, copies: LateCopies) -> None:
        self._copies, self.streams = copies, list[object]()

    def record(self, stream: object) -> None:
        self.streams.append(stream)

    def synchronize(self) -> None:
        if self.streams:
            self._copies.finish()


def test_staged_numbers_are_not_overwritten_before_their_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late, padding, stream = LateCopies(), np.full(4, PADDING), cast("torch.cuda.Stream", object())
    event = LateEvent(late)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    staged = StagedNumbers(padding, CPU, stream)
    with late:
        staged.clear()
        staged.numbers[:2] = [1, 2]
        staged.copy()
        assert staged.tensor.tolist() == [PADDING] * 4  # control: the copy is late
        staged.clear()
        assert staged.tensor.tolist() == [1, 2, PADDING, PADDING]
        staged.numbers[3] = 3
        staged.copy()
        late.finish()
    assert staged.tensor.tolist() == [PADDING, PADDING, PADDING, 3]
    assert padding.tolist() == [PADDING] * 4
    assert event.streams == [stream, stream]


@torch.inference_mode()
def test_pass_contains_rows_and_lines_of_its_prompts(tiny: Callable[[str], Tiny]) -> None:
    part = tiny("custom_voice")
    backend = CudaGraphBackend(part.model, part.codec, max_streams=4, max_frames=64)
    prefill, table = backend._prefill, backend._table
    prefill._layers.packs_prompts = True
    prompts = [make_prompt(part, text) for text in ("Hello.", "Good bye.", "Good night.")]
    slots = [backend._reservations.reserve(one, params(1), is_full=False) for one in prompts]
    pairs = [(p, s) for p, s in zip(prompts, slots, strict=True) if isinstance(s, GraphSlot)]
    [parts] = prefill._passes(pairs, [0, 3, 0])
    inputs = prefill._new_inputs(64)
    prefill._write(parts, inputs)
    assert [one.at % 8 for one in parts] == [0, 0, 0]
    assert [one.rows for one in parts] == [
        range(start, len(prompt)) for start, prompt in zip((0, 3, 0), prompts, strict=True)
    ]
    for line, (prompt, slot, rows, at, _) in zip(inputs.lines, parts, strict=False):
        assert line.tolist() == table.line(slot)
        text, owner, position, target = inputs.fields[:, at : at + len(rows)].tolist()
        assert tuple(text) == prompt.text_ids[rows.start :]
        assert (set(owner), position) == ({slot.row}, [*rows])
        assert target == [table.padding] * (len(rows) - 1) + [slot.row]
        for row in rows:
            codes = [
                prefill._nothing if code < 0 else first + code
                for first, code in zip(prefill._first, prompt.codes[row], strict=True)
            ]
            assert inputs.vectors[at + row - rows.start].tolist() == codes
    rest = inputs.fields[Field.POSITION, parts[-1].end :]
    assert set(rest.tolist()) == {table.num_positions}
    assert (inputs.lines[3:] == table.padding_line()).all()


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


def test_results_outlive_later_copies() -> None:
    copies, source = HostCopies(), torch.arange(6.0).view(2, 3)
    read = copies.start(source)
    source += 10
    later = copies.start(source)
    assert later().tolist() == [[10, 11, 12], [13, 14, 15]]
    kept = read()
    assert kept.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read() is kept
    del read, later
    for _ in range(3):
        copies.start(torch.full((2, 3), -1.0))()
    assert kept.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("is_read", [True, False])
def test_copies_reuse_their_memory(is_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    empty = torch.empty

    def count(size: int, **options: Any) -> Tensor:
        sizes.append(size)
        return empty(size, **options)

    monkeypatch.setattr(torch, "empty", count)
    copies, small, large = HostCopies(), torch.zeros(3), torch.zeros(1500)
    for _ in range(3):
        pending = [copies.start(small), copies.start(small), copies.start(large)]
        if is_read:
            assert [read().size for read in pending] == [3, 3, 1500]
    assert sizes.count(4096) <= 4
    assert sizes.count(8192) <= 2
    del pending
    num_allocated = len(sizes)
    copies.start(small), copies.start(large)
    assert len(sizes) == num_allocated
