"""Prefill: runs prompts through the talker and stores their keys and values.

The rows of all prompts are packed into one array, each row as a column of numbers: text id, slot,
position and embedding indices. The array is cut into passes of sizes that graphs exist for. A pass
also initialises the slots whose rows begin in it, so it needs a single copy to the device. A prefix
that several prompts share is computed once and copied.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vivace.backends.cuda_graph.buckets import PROMPT_ROWS, TILE, fit
from vivace.backends.cuda_graph.frame import Layers
from vivace.backends.cuda_graph.graphs import GraphPool, Work
from vivace.backends.cuda_graph.pages import num_pages
from vivace.backends.cuda_graph.slot_table import GraphSlot, SlotTable
from vivace.backends.cuda_graph.staging import stage
from vivace.backends.cuda_graph.state_cache import StateCache
from vivace.model.config import SPEAKER
from vivace.model.talker import Qwen3TTS, Talker
from vivace.prompt import Prompt

FEWEST_SHARED = 32  # rows; a shorter shared prefix is not cached
MAX_KEPT = 1024  # cached rows of keys and values, all voices together

Columns = NDArray[np.int64]  # [fields, rows]


class Field(IntEnum):
    """The fields of a row; from `VECTORS` on, one embedding index per codebook."""

    TEXT = 0
    SLOT = 1
    POSITION = 2
    TARGET = 3  # where to store the hidden state: the slot for its last row, else the padding row
    VECTORS = 4


@dataclass(frozen=True, slots=True)
class Pass:
    columns: Columns
    lines: Sequence[Sequence[int]]  # initial values of slots whose first row is in this pass


class Prefill:
    def __init__(
        self,
        model: Qwen3TTS,
        table: SlotTable,
        layers: Layers,
        graphs: GraphPool,
        vectors: Tensor,  # of `join_tables`
    ) -> None:
        self._table, self._layers, self._graphs = table, layers, graphs
        sizes = [len(each.weight) for each in model.talker.code_tables]
        self._first = np.cumsum([0, *sizes[:-1]])  # of each codebook
        self._nothing, self._speaker = sum(sizes), sum(sizes) + 1  # indices after the codebooks
        self._vectors = vectors
        parked = [model.config.tts_pad_token_id, 0, table.num_positions, table.padding]
        self._parked = np.array([*parked, *[self._nothing] * len(sizes)])[:, None]
        self._no_rows = Pass(self._parked[:, :0], ())
        self._paddings: dict[int, NDArray[np.int64]] = {}  # by number of rows
        self._inputs: dict[int, Tensor] = {}  # of graphs, by number of rows
        row_bytes = 2 * table.keys[:, 0, :, 0].nbytes
        self._kept = StateCache(MAX_KEPT * row_bytes)

    @property
    def num_bytes(self) -> int:
        """Size of the prefix cache."""
        return self._kept.num_bytes

    def run(self, prompts: Sequence[Prompt], slots: Sequence[GraphSlot]) -> None:
        """Prefill these prompts into these slots, and initialise the slots."""
        pairs = list(zip(prompts, slots, strict=True))
        self._write_speakers(pairs)
        self._table.lay_adapters(slots)
        columns = [self._columns(*pair, start=self._recall(*pair)) for pair in pairs]
        for part in self._passes(columns, [self._table.line(slot) for slot in slots]):
            self._read(part)
        for pair in pairs:
            self._keep(*pair)

    def warm(self, num_rows: int) -> None:
        """Capture the graph for a pass of `num_rows` rows."""
        size = fit(num_rows, PROMPT_ROWS)
        if size is not None:
            self._graph(size)

    # -- packing -----------------------------------------------------------------------------

    def _columns(self, prompt: Prompt, fresh: GraphSlot, start: int) -> Columns:
        """The prompt's rows from `start` on, with padding up to a multiple of `TILE`."""
        length, slot = len(prompt) - start, fresh.row
        columns = self._parked.repeat(-(-length // TILE) * TILE, axis=1)
        columns[Field.TEXT, :length] = prompt.text_ids[start:]
        columns[Field.SLOT] = slot
        columns[Field.POSITION, :length] = np.arange(start, len(prompt))
        columns[Field.TARGET, length - 1] = slot
        codes = prompt.codes[start:]
        vectors = np.where(codes >= 0, codes + self._first, self._nothing)
        if prompt.speaker is not None:
            vectors[codes[:, 0] == SPEAKER, 0] = self._speaker + slot
        columns[Field.VECTORS :, :length] = vectors.T
        return columns

    def _passes(self, columns: Sequence[Columns], lines: Sequence[Sequence[int]]) -> Sequence[Pass]:
        """Split rows into passes. Layers that do not pack get one prompt per pass."""
        size = PROMPT_ROWS[-1]
        is_short = len(columns) == 1 and columns[0].shape[1] <= size
        if is_short or not self._layers.packs_prompts:
            return [Pass(*each) for each in zip(columns, [[line] for line in lines], strict=True)]
        together = np.concatenate(columns, axis=1)
        starts = np.cumsum([0, *(part.shape[1] for part in columns[:-1])])
        return [
            Pass(
                together[:, i : i + size],
                [line for line, at in zip(lines, starts, strict=True) if i <= at < i + size],
            )
            for i in range(0, together.shape[1], size)
        ]

    def _write_speakers(self, pairs: Sequence[tuple[Prompt, GraphSlot]]) -> None:
        given = [(slot.row, p.speaker) for p, slot in pairs if p.speaker is not None]
        if given:
            rows = self._table.upload([self._speaker + slot for slot, _ in given], torch.int64)
            vectors = self._table.upload(np.stack([vector for _, vector in given]), torch.float32)
            self._vectors.index_copy_(0, rows, vectors.to(self._vectors.dtype))

    # -- passes ------------------------------------------------------------------------------

    def _read(self, part: Pass) -> None:
        num_rows = part.columns.shape[1]
        size = fit(num_rows, PROMPT_ROWS)
        if size is None:  # a prompt larger than every graph, for layers that do not pack
            packed = self._stage(part, num_rows).to(self._table.device, non_blocking=True)
            self._run(packed, num_rows)
            return
        graph = self._graph(size)  # first, since a capture overwrites the inputs
        self._set_inputs(part, size)
        graph()

    def _graph(self, size: int) -> Work:
        if size not in self._inputs:
            self._inputs[size] = self._stage(self._no_rows, size).to(self._table.device)
        packed = self._inputs[size]
        return self._graphs.get(
            ("prefill", size),
            lambda: self._run(packed, size),
            lambda: self._set_inputs(self._no_rows, size),
        )

    def _set_inputs(self, part: Pass, size: int) -> None:
        self._inputs[size].copy_(self._stage(part, size), non_blocking=True)

    def _stage(self, part: Pass, size: int) -> Tensor:
        """A pass in pinned memory: columns of `size` rows, then a line per tile; else padding."""
        padding, num_numbers = self._padding(size), size * len(self._parked)
        host = stage(len(padding), self._table.device)
        numbers = host.numpy()
        numbers[:] = padding
        numbers[:num_numbers].reshape(-1, size)[:, : part.columns.shape[1]] = part.columns
        if part.lines:
            lines = np.array(part.lines, np.int64)
            numbers[num_numbers : num_numbers + lines.size] = lines.ravel()
        return host

    def _padding(self, size: int) -> NDArray[np.int64]:
        """A pass of `size` rows without a prompt."""
        if size not in self._paddings:
            columns = np.repeat(self._parked, size)
            lines = np.tile(self._table.padding_line(), -(-size // TILE))
            self._paddings[size] = np.concatenate((columns, lines))
        return self._paddings[size]

    def _run(self, packed: Tensor, num_rows: int) -> None:
        num_numbers = num_rows * len(self._parked)
        inputs = packed[:num_numbers].view(-1, num_rows)
        self._table.write(packed[num_numbers:].view(-1, self._table.line_size))
        vectors = F.embedding(inputs[Field.VECTORS :].T, self._vectors).sum(1)
        slots = inputs[Field.SLOT]
        owners = slots if self._layers.packs_prompts else slots[:1]
        x = vectors + self._layers.text_vectors(inputs[Field.TEXT], owners)
        hidden = self._layers.read_prompts(x, slots, inputs[Field.POSITION])
        self._table.hidden.index_copy_(0, inputs[Field.TARGET], hidden)

    # -- shared prefixes ---------------------------------------------------------------------

    def _recall(self, prompt: Prompt, slot: GraphSlot) -> int:
        """Copy the prefix's keys and values from the cache; returns the number of rows copied."""
        kept = self._kept.get(_shared_key(prompt)) if self._shares(prompt) else None
        if kept is None:
            return 0
        pages = self._shared_pages(prompt, slot)
        self._table.keys.index_copy_(1, pages, kept[0])
        self._table.values.index_copy_(1, pages, kept[1])
        return _num_shared(prompt)

    def _keep(self, prompt: Prompt, slot: GraphSlot) -> None:
        if not self._shares(prompt) or _shared_key(prompt) in self._kept:
            return
        pages = self._shared_pages(prompt, slot)
        state = (self._table.keys.index_select(1, pages), self._table.values.index_select(1, pages))
        self._kept.put(_shared_key(prompt), state)

    def _shared_pages(self, prompt: Prompt, slot: GraphSlot) -> Tensor:
        """The slot's pages that hold the prefix. The rest of the last page is never read."""
        return self._table.upload(slot.pages[: num_pages(_num_shared(prompt))], torch.int64)

    def _shares(self, prompt: Prompt) -> bool:
        """Whether to cache the prefix. Layers that do not pack compute every row."""
        return self._layers.packs_prompts and _num_shared(prompt) >= FEWEST_SHARED


def _num_shared(prompt: Prompt) -> int:
    """Number of shared rows, always less than all: the last row's hidden state is needed."""
    return min(prompt.num_shared_rows, len(prompt) - 1)


def _shared_key(prompt: Prompt) -> Hashable:
    """Cache key: everything that determines the prefix's keys and values."""
    length = _num_shared(prompt)
    speaker = None if prompt.speaker is None else prompt.speaker.tobytes()
    return prompt.adapter, prompt.text_ids[:length], prompt.codes[:length].tobytes(), speaker


def join_tables(talker: Talker, num_slots: int) -> Tensor:
    """One table of the embeddings of all codebooks, a row of zeros, and a row per slot.

    The talker's embeddings become views of this table, without a second copy. Build layers that
    store addresses after this call.
    """
    num_more = 1 + num_slots
    tables = talker.code_tables
    weights = [table.weight.detach() for table in tables]
    joined = torch.cat([*weights, weights[0].new_zeros(num_more, weights[0].shape[1])])
    parts = joined.split([*(len(weight) for weight in weights), num_more])
    for table, part in zip(tables, parts[:-1], strict=True):
        table.weight = nn.Parameter(part, requires_grad=False)
    return joined
