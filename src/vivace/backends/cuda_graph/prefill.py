"""Prefill: prompts through the talker, their keys and values into the slots' KV cache.

The rows of all prompts are packed into one array, each row as a column of numbers: text id, slot,
position and embedding indices. The array is cut into passes of sizes that graphs exist for. A
prefix that several prompts share is computed once and copied.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
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
from vivace.backends.cuda_graph.slot_table import SlotTable
from vivace.backends.cuda_graph.state_cache import StateCache
from vivace.model.config import SPEAKER
from vivace.model.talker import Qwen3TTS, Talker
from vivace.prompt import Prompt

FEWEST_SHARED = 32  # rows; a shorter shared prefix is not cached
MAX_KEPT = 1024  # rows of keys and values in the cache, of all voices together

Columns = NDArray[np.int64]  # [fields, rows]


class Field(IntEnum):
    """The fields of a row; from `VECTORS` on, one embedding index per codebook."""

    TEXT = 0
    SLOT = 1
    POSITION = 2
    TARGET = 3  # where to store the hidden state: the slot for its last row, else the padding row
    VECTORS = 4


class Prefill:
    def __init__(
        self,
        model: Qwen3TTS,
        table: SlotTable,
        layers: Layers,
        graphs: GraphPool,
        vectors: Tensor,  # of `join_tables`
    ) -> None:
        self._talker = model.talker
        self._table, self._layers, self._graphs = table, layers, graphs
        sizes = [len(each.weight) for each in model.talker.code_tables]
        self._first = np.cumsum([0, *sizes[:-1]])  # of each codebook
        self._nothing, self._speaker = sum(sizes), sum(sizes) + 1  # indices after the codebooks
        self._vectors = vectors
        parked = [model.config.tts_pad_token_id, 0, table.num_positions, table.padding]
        self._parked = np.array([*parked, *[self._nothing] * len(sizes)])[:, None]
        self._inputs: dict[int, Tensor] = {}  # of each graph, by its number of rows
        row_bytes = 2 * table.keys[:, 0, :, 0].nbytes
        self._kept = StateCache(MAX_KEPT * row_bytes)

    @property
    def num_bytes(self) -> int:
        """Size of the prefix cache."""
        return self._kept.num_bytes

    def run(self, prompts: Sequence[Prompt], slots: Sequence[int]) -> None:
        """Prefill these prompts into these slots, whose pages the table has already."""
        self._write_speakers(prompts, slots)
        found = [self._recall(*each) for each in zip(prompts, slots, strict=True)]
        columns = [self._columns(*each) for each in zip(prompts, slots, found, strict=True)]
        for part in self._passes(columns):
            self._read(part)
        for prompt, slot in zip(prompts, slots, strict=True):
            self._keep(prompt, slot)

    def warm(self, num_rows: int) -> None:
        """Capture the graph for a pass of `num_rows` rows."""
        size = fit(num_rows, PROMPT_ROWS)
        if size is not None:
            self._graph(size)

    # -- packing -----------------------------------------------------------------------------

    def _columns(self, prompt: Prompt, slot: int, start: int) -> Columns:
        """The prompt's rows from `start` on, with padding up to a multiple of `TILE`."""
        length = len(prompt) - start
        columns = self._padding(-(-length // TILE) * TILE)
        columns[Field.TEXT, :length] = prompt.text_ids[start:]
        columns[Field.SLOT] = slot
        columns[Field.POSITION, :length] = np.arange(start, len(prompt))
        columns[Field.TARGET, length - 1] = slot
        codes = prompt.codes[start:]
        vectors = np.where(codes >= 0, codes + self._first, self._nothing)
        vectors[codes[:, 0] == SPEAKER, 0] = self._speaker + slot
        columns[Field.VECTORS :, :length] = vectors.T
        return columns

    def _passes(self, columns: Sequence[Columns]) -> Sequence[Columns]:
        """Any cut gives the same result; layers that do not pack get one prompt per pass."""
        if not self._layers.packs_prompts:
            return columns
        together, size = np.concatenate(columns, axis=1), PROMPT_ROWS[-1]
        return [together[:, i : i + size] for i in range(0, together.shape[1], size)]

    def _write_speakers(self, prompts: Sequence[Prompt], slots: Sequence[int]) -> None:
        given = [
            (s, p.speaker) for s, p in zip(slots, prompts, strict=True) if p.speaker is not None
        ]
        if given:
            rows = self._table.upload([self._speaker + slot for slot, _ in given], torch.int64)
            vectors = self._table.upload(np.stack([vector for _, vector in given]), torch.float32)
            self._vectors.index_copy_(0, rows, vectors.to(self._vectors.dtype))

    # -- passes ------------------------------------------------------------------------------

    def _read(self, columns: Columns) -> None:
        num_rows = columns.shape[1]
        size = fit(num_rows, PROMPT_ROWS)
        if size is None:  # a prompt larger than every graph, for layers that do not pack
            self._run(self._table.upload(columns, torch.int64))
            return
        graph = self._graph(size)  # first, since a capture overwrites the inputs
        self._set_inputs(np.concatenate((columns, self._padding(size - num_rows)), axis=1))
        graph()

    def _graph(self, size: int) -> Work:
        if size not in self._inputs:
            self._inputs[size] = self._table.upload(self._padding(size), torch.int64)
        inputs = self._inputs[size]
        return self._graphs.get(
            ("prefill", size),
            lambda: self._run(inputs),
            lambda: self._set_inputs(self._padding(size)),
        )

    def _set_inputs(self, columns: Columns) -> None:
        host = self._table.pinned(columns, torch.int64)
        self._inputs[columns.shape[1]].copy_(host, non_blocking=True)

    def _padding(self, num_rows: int) -> Columns:
        """Rows whose results are written to padding."""
        return np.repeat(self._parked, num_rows, axis=1)

    def _run(self, inputs: Tensor) -> None:
        vectors = F.embedding(inputs[Field.VECTORS :].T, self._vectors).sum(1)
        x = vectors + self._talker.text_vectors(inputs[Field.TEXT])
        hidden = self._layers.read_prompts(x, inputs[Field.SLOT], inputs[Field.POSITION])
        self._table.hidden.index_copy_(0, inputs[Field.TARGET], hidden)

    # -- shared prefixes ---------------------------------------------------------------------

    def _recall(self, prompt: Prompt, slot: int) -> int:
        """Copy the prefix's keys and values from the cache; returns the number of rows copied."""
        kept = self._kept.get(_shared_key(prompt)) if self._shares(prompt) else None
        if kept is None:
            return 0
        pages = self._shared_pages(prompt, slot)
        self._table.keys.index_copy_(1, pages, kept[0])
        self._table.values.index_copy_(1, pages, kept[1])
        return _num_shared(prompt)

    def _keep(self, prompt: Prompt, slot: int) -> None:
        if not self._shares(prompt) or _shared_key(prompt) in self._kept:
            return
        pages = self._shared_pages(prompt, slot)
        state = (self._table.keys.index_select(1, pages), self._table.values.index_select(1, pages))
        self._kept.put(_shared_key(prompt), state)

    def _shared_pages(self, prompt: Prompt, slot: int) -> Tensor:
        """The slot's pages that hold the prefix; what else the last holds is never attended to."""
        return self._table.pages[slot, : num_pages(_num_shared(prompt))].long()

    def _shares(self, prompt: Prompt) -> bool:
        """Whether to cache the prefix; layers that do not pack need every prompt from row 0."""
        return self._layers.packs_prompts and _num_shared(prompt) >= FEWEST_SHARED


def _num_shared(prompt: Prompt) -> int:
    """Never all rows: the last one is always computed, for its hidden state."""
    return min(prompt.num_shared_rows, len(prompt) - 1)


def _shared_key(prompt: Prompt) -> Hashable:
    """Everything that the prefix's keys and values depend on."""
    length = _num_shared(prompt)
    speaker = None if prompt.speaker is None else prompt.speaker.tobytes()
    return prompt.text_ids[:length], prompt.codes[:length].tobytes(), speaker


def join_tables(talker: Talker, num_slots: int) -> Tensor:
    """The embeddings of all codebooks in one table, a row of zeros, and a row for each slot.

    The talker's own embeddings become views of it, so memory holds them once; layers that keep
    their addresses are built after this.
    """
    num_more = 1 + num_slots
    tables = talker.code_tables
    weights = [table.weight.detach() for table in tables]
    joined = torch.cat([*weights, weights[0].new_zeros(num_more, weights[0].shape[1])])
    parts = joined.split([*(len(weight) for weight in weights), num_more])
    for table, part in zip(tables, parts[:-1], strict=True):
        table.weight = nn.Parameter(part, requires_grad=False)
    return joined
