"""Prefill: runs prompts through the talker and stores their keys and values.

The rows of all prompts are packed one after another: embedding indices, text id, slot and position
of each. They are cut into passes of sizes that graphs exist for. A pass also initialises the slots
whose rows begin in it, so it needs a single copy to the device. A prefix that several prompts share
is computed once and copied.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vivace.backends.cuda_graph.buckets import PROMPT_ROWS, TILE, fit
from vivace.backends.cuda_graph.graphs import GraphPool, Work
from vivace.backends.cuda_graph.layers.frame import Layers
from vivace.backends.cuda_graph.slots.pages import num_pages
from vivace.backends.cuda_graph.slots.staging import StagedNumbers
from vivace.backends.cuda_graph.slots.state_cache import StateCache
from vivace.backends.cuda_graph.slots.table import GraphSlot, SlotTable
from vivace.model.config import NO_CODE, SPEAKER
from vivace.model.talker import Qwen3TTS, Talker
from vivace.prompt import Prompt

FEWEST_SHARED = 32  # rows; a shorter shared prefix is not cached
MAX_KEPT = 1024  # cached rows of keys and values, all voices together

Numbers = NDArray[np.int64]


class Field(IntEnum):
    """The fields of a row besides its embedding indices."""

    TEXT = 0
    SLOT = 1
    POSITION = 2
    TARGET = 3  # where to store the hidden state: the slot for its last row, else the padding row


class PromptPart(NamedTuple):
    """Rows of a prompt in a pass. The first part of a prompt initialises its slot."""

    prompt: Prompt
    slot: GraphSlot
    rows: range
    at: int  # row of the pass
    is_first: bool

    @property
    def end(self) -> int:
        """Row of the pass after the padding up to a multiple of `TILE`."""
        return self.at + -(-len(self.rows) // TILE) * TILE


class PassInputs(StagedNumbers):
    """The numbers of a pass: embedding indices, fields, and a line per tile; else padding."""

    def __init__(
        self,
        vectors: Numbers,  # [rows, codebooks]
        fields: Numbers,  # [fields, rows]
        lines: Numbers,  # [tiles, `SlotTable.line_size`]
        device: torch.device,
        stream: torch.cuda.Stream | None,
    ) -> None:
        parts = (vectors, fields, lines)
        super().__init__(np.concatenate([part.ravel() for part in parts]), device, stream)
        ends = np.cumsum([part.size for part in parts])
        views = np.split(self.numbers, ends[:-1])
        self.vectors, self.fields, self.lines = (
            view.reshape(part.shape) for view, part in zip(views, parts, strict=True)
        )


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
        self._positions = np.arange(table.num_positions)
        self._num_books = len(sizes)
        self._no_codes = np.full((TILE, len(sizes)), NO_CODE)  # of rows between two prompts
        parked = [model.config.tts_pad_token_id, 0, table.num_positions, table.padding]
        self._parked = np.array(parked)[:, None]
        self._inputs: dict[int, PassInputs] = {}  # of graphs, by number of rows
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
        starts = [self._recall(*pair) for pair in pairs]
        for part in self._passes(pairs, starts):
            self._read(part)
        for pair in pairs:
            self._keep(*pair)

    def warm(self, num_rows: int) -> None:
        """Capture the graph for a pass of `num_rows` rows."""
        size = fit(num_rows, PROMPT_ROWS)
        if size is not None:
            self._graph(size)

    # -- packing -----------------------------------------------------------------------------

    def _passes(
        self, pairs: Sequence[tuple[Prompt, GraphSlot]], starts: Sequence[int]
    ) -> list[list[PromptPart]]:
        """Cut the prompts' rows from `starts` on into passes.

        Layers that do not pack get one prompt per pass.
        """
        passes: list[list[PromptPart]] = []
        packs, at = self._layers.packs_prompts, (size := PROMPT_ROWS[-1])
        for (prompt, slot), start in zip(pairs, starts, strict=True):
            first = start
            while first < len(prompt):
                if at >= size or not packs:
                    passes.append([])
                    at = 0
                stop = min(len(prompt), first + size - at) if packs else len(prompt)
                part = PromptPart(prompt, slot, range(first, stop), at, first == start)
                passes[-1].append(part)
                first, at = stop, part.end
        return passes

    def _write(self, parts: Sequence[PromptPart], inputs: PassInputs) -> None:
        """Store the rows of these prompts, and a line for each slot that begins."""
        inputs.clear()
        self._write_fields(parts, inputs.fields)
        self._write_vectors(parts, inputs)
        if lines := [self._table.line(part.slot) for part in parts if part.is_first]:
            inputs.lines[: len(lines)] = lines

    def _write_fields(self, parts: Sequence[PromptPart], fields: Numbers) -> None:
        texts, owners = fields[Field.TEXT], fields[Field.SLOT]
        positions, targets = fields[Field.POSITION], fields[Field.TARGET]
        for part in parts:
            prompt, slot, rows, at, _ = part
            start, stop, end = rows.start, rows.stop, at + len(rows)
            texts[at:end] = prompt.text_ids[start:stop]
            owners[at : part.end] = slot.row
            positions[at:end] = self._positions[start:stop]
            if stop == len(prompt):
                targets[end - 1] = slot.row

    def _write_vectors(self, parts: Sequence[PromptPart], inputs: PassInputs) -> None:
        """Store the embedding indices of all prompts at once: numpy releases the GIL."""
        blocks: list[Numbers] = []
        for part in parts:
            blocks.append(part.prompt.codes[part.rows.start : part.rows.stop])
            blocks.append(self._no_codes[: part.end - part.at - len(part.rows)])
        codes = np.concatenate(blocks)
        vectors = inputs.vectors[: len(codes)]
        np.add(codes, self._first, out=vectors, where=codes >= 0)
        if any(part.prompt.speaker is not None for part in parts):
            is_speaker = codes[:, 0] == SPEAKER
            owners = inputs.fields[Field.SLOT, : len(codes)]
            vectors[is_speaker, 0] = self._speaker + owners[is_speaker]

    def _write_speakers(self, pairs: Sequence[tuple[Prompt, GraphSlot]]) -> None:
        given = [(slot.row, p.speaker) for p, slot in pairs if p.speaker is not None]
        if given:
            rows = self._table.upload([self._speaker + slot for slot, _ in given], torch.int64)
            vectors = self._table.upload(np.stack([vector for _, vector in given]), torch.float32)
            self._vectors.index_copy_(0, rows, vectors.to(self._vectors.dtype))

    # -- passes ------------------------------------------------------------------------------

    def _read(self, parts: Sequence[PromptPart]) -> None:
        num_rows = parts[-1].end
        size = fit(num_rows, PROMPT_ROWS)
        if size is None:  # a prompt larger than every graph, for layers that do not pack
            inputs = self._new_inputs(num_rows)
            self._write(parts, inputs)
            inputs.copy()
            self._run(inputs.tensor, num_rows)
            return
        graph = self._graph(size)  # first, since a capture overwrites the inputs
        self._write(parts, self._inputs[size])
        self._inputs[size].copy()
        graph()

    def _graph(self, size: int) -> Work:
        if size not in self._inputs:
            self._inputs[size] = self._new_inputs(size)
        inputs = self._inputs[size]

        def park() -> None:
            inputs.clear()
            inputs.copy()

        return self._graphs.get(("prefill", size), lambda: self._run(inputs.tensor, size), park)

    def _new_inputs(self, num_rows: int) -> PassInputs:
        return PassInputs(
            np.full((num_rows, self._num_books), self._nothing),
            self._parked.repeat(num_rows, axis=1),
            np.tile(self._table.padding_line(), (-(-num_rows // TILE), 1)),
            self._table.device,
            self._graphs.stream,
        )

    def _run(self, packed: Tensor, num_rows: int) -> None:
        sizes = [num_rows * self._num_books, num_rows * len(Field)]
        indices, numbers, lines = packed.split([*sizes, len(packed) - sum(sizes)])
        self._table.write(lines.view(-1, self._table.line_size))
        vectors = F.embedding(indices.view(num_rows, -1), self._vectors).sum(1)
        fields = numbers.view(-1, num_rows)
        slots = fields[Field.SLOT]
        owners = slots if self._layers.packs_prompts else slots[:1]
        x = vectors + self._layers.text_vectors(fields[Field.TEXT], owners)
        hidden = self._layers.read_prompts(x, slots, fields[Field.POSITION])
        self._table.hidden.index_copy_(0, fields[Field.TARGET], hidden)

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
