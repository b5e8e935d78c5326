"""Reading a prompt: its rows through the talker, keys and values into the slot.

One slot at a time, padded to a number of rows that a graph exists for; what follows a prompt's
last row is never seen by it, and its keys are overwritten as the slot speaks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vivace.backends.cuda_graph.buckets import PROMPT_ROWS, fit
from vivace.backends.cuda_graph.graphs import GraphPool, Work
from vivace.backends.cuda_graph.slot_table import SlotTable
from vivace.model.config import NO_CODE, SPEAKER
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt


class Prefill:
    def __init__(self, model: Qwen3TTS, table: SlotTable, graphs: GraphPool) -> None:
        self._talker = model.talker
        self._table, self._graphs = table, graphs
        self._pad_id = model.config.tts_pad_token_id
        device, num_groups = model.device, table.config.num_code_groups
        size = PROMPT_ROWS[-1]
        self._text_ids = torch.zeros(size, dtype=torch.int64, device=device)
        self._codes = torch.full((size, num_groups), NO_CODE, device=device)
        self._speaker = torch.zeros(table.config.hidden_size, dtype=model.dtype, device=device)
        self._place = torch.zeros(2, dtype=torch.int64, device=device)  # slot, last row
        model.talker.rope.span(0, table.num_positions, table.hidden)  # no growth in a capture

    def run(self, prompt: Prompt, row: int) -> None:
        size = fit(len(prompt), PROMPT_ROWS)
        if size is None or size > self._table.num_positions:
            self._run_plainly(prompt, row)
            return
        padding = size - len(prompt)
        upload = self._table.upload
        self._text_ids[:size] = upload([*prompt.text_ids] + [self._pad_id] * padding, torch.int64)
        self._codes[: len(prompt)] = upload(prompt.codes.tolist(), torch.int64)
        self._codes[len(prompt) : size] = NO_CODE
        self._write_speaker(prompt)
        self._place.copy_(upload([row, len(prompt) - 1], torch.int64))
        self._graph(size)()

    def warm(self, num_rows: int, row: int) -> None:
        """Capture what a prompt of `num_rows` rows needs; `row` must be free."""
        size = fit(num_rows, PROMPT_ROWS)
        if size is not None and size <= self._table.num_positions:
            self._place.copy_(self._table.upload([row, 0], torch.int64))
            self._graph(size)

    def _graph(self, size: int) -> Work:
        def read() -> None:
            self._read(self._text_ids[:size], self._codes[:size], self._place)

        # A capture reads the prompt once more; that changes nothing.
        return self._graphs.get(("prefill", size), read, lambda: None)

    def _write_speaker(self, prompt: Prompt) -> None:
        if prompt.speaker is not None:
            vector = self._table.upload(prompt.speaker.tolist(), torch.float32)
            self._speaker.copy_(vector)

    def _run_plainly(self, prompt: Prompt, row: int) -> None:
        upload = self._table.upload
        self._write_speaker(prompt)
        self._read(
            upload(prompt.text_ids, torch.int64),
            upload(prompt.codes.tolist(), torch.int64),
            upload([row, len(prompt) - 1], torch.int64),
        )

    def _read(self, text_ids: Tensor, codes: Tensor, place: Tensor) -> None:
        talker = self._talker
        rows = torch.where(codes[:, :1] == SPEAKER, self._speaker, talker.code_vectors(codes))
        rows = rows + talker.text_vectors(text_ids)
        rope = talker.rope.span(0, len(rows), rows)
        slot, last = place[:1], place[1:]
        hidden = talker(rows[None], rope, StoringAttention(self._table, slot))[0]
        self._table.hidden.index_copy_(0, slot, hidden.index_select(0, last))


class StoringAttention:
    """Causal attention within the prompt, whose keys and values go into the slot."""

    def __init__(self, table: SlotTable, slot: Tensor) -> None:
        self._table, self._slot = table, slot

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = k.shape[2]
        self._table.keys[layer, :, :, :length].index_copy_(0, self._slot, k)
        self._table.values[layer, :, :, :length].index_copy_(0, self._slot, v)
        group = q.shape[1] // k.shape[1]
        k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
