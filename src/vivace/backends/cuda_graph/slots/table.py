"""Device state of all slots, in tensors with fixed addresses for CUDA graphs.

Every tensor has one row or column per slot and a last one for padding in incomplete batches. Keys
and values are stored in pages (pages.py); `pages` maps slots to pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from vivace.backends.base import Loudness, Samples, SlotStatus, Sound
from vivace.backends.cuda_graph.slots.pages import PAGE, num_pages
from vivace.backends.cuda_graph.slots.staging import pin, upload
from vivace.backends.slots import SlotState
from vivace.model.config import Head, TalkerConfig
from vivace.sampling import last_rank
from vivace.speech import SamplingParams

STATUSES: tuple[SlotStatus, ...] = get_args(SlotStatus)  # by `Status`
RING = 16  # frames a slot can make before the host must read them

Sounds = tuple[Sequence[Samples], Sequence[Loudness]]
"""The audio of a codec pass, by slot."""


class Status(IntEnum):
    """Values of `Number.STATUS`; those after WAITING are final."""

    RUNNING = 0
    WAITING = 1
    STOP = 2
    LENGTH = 3
    FAILED = 4


class Number(IntEnum):
    """Rows of `numbers`."""

    STATUS = 0
    NUM_FRAMES = 1
    HAS_SUM = 2  # the talker has not yet read the last frame's embeddings
    NEXT_TEXT = 3
    POSITION = 4  # of the next key and value
    NUM_TEXTS = 5
    IS_COMPLETE = 6
    NUM_OWN = 7  # number of ids of the request's text
    OWN_ROW = 8  # position of the first of them
    MAX_FRAMES = 9
    MIN_FRAMES = 10
    SEED = 11
    IS_GREEDY = 12
    LAST = 13  # rank of the last code that top-k keeps
    PREDICTOR_IS_GREEDY = 14
    PREDICTOR_LAST = 15


REPORT = slice(Number.STATUS, Number.NUM_FRAMES + 1)  # rows that the host reads
PROGRESS = slice(Number.STATUS, Number.POSITION + 1)  # rows that every frame updates
TEXT_NUMBERS = slice(Number.NUM_TEXTS, Number.NUM_OWN + 1)  # rows that live text updates


class Scale(IntEnum):
    """Rows of `scales`."""

    TEMPERATURE = 0
    TOP_P = 1
    PENALTY = 2
    PREDICTOR_TEMPERATURE = 3
    PREDICTOR_TOP_P = 4


_FLOATS, _BITS = (Struct(f"{len(Scale)}{kind}") for kind in "dq")


class QueuedAudio(NamedTuple):
    """Audio of a slot's next frames, queued on the device behind these frames."""

    num_frames: int
    read: Callable[[], Sounds]  # waits for the audio of the whole pass
    row: int  # of the pass

    def first(self, num_frames: int) -> Sound:
        """The audio of the first `num_frames` frames; of all if there are fewer."""
        passed = self.read()
        samples, loudness = passed[0][self.row], passed[1][self.row]
        if num_frames >= self.num_frames:
            return samples, loudness
        return samples[: num_frames * (len(samples) // self.num_frames)], loudness[:num_frames]


@dataclass(slots=True, kw_only=True, eq=False)
class GraphSlot(SlotState):
    """Host state of a slot. `num_frames` counts the frames copied to the host."""

    row: int
    pages: list[int]  # reserved so far: the page pool's list, which grows
    text_ids: list[int]  # read one per frame, at most `SlotTable.num_texts`
    num_queued: int = 0  # frames queued after `num_frames`, upper limit
    num_coded: int = 0  # frames queued for the codec
    ahead: deque[QueuedAudio] = field(default_factory=deque)  # not yet requested by render calls
    draw: tuple[float, ...] = field(init=False)  # the sampling settings that select a graph

    def __post_init__(self) -> None:
        given = self.sampling
        self.draw = (given.top_k, given.predictor_top_k, given.top_p, given.predictor_top_p)

    @property
    def num_reserved(self) -> int:
        """Number of frames that fit in the reserved pages."""
        return min(self.max_frames, PAGE * len(self.pages) - self.num_rows)

    @property
    def num_left(self) -> int:
        """Number of frames up to the slot's limit that are not yet queued."""
        return self.max_frames - self.num_frames - self.num_queued

    @property
    def is_fresh(self) -> bool:
        return self.num_frames + self.num_queued == 0

    @property
    def is_sure(self) -> bool:
        """Whether no queued frame can wait for text or pages; the slot may still end early.

        Live text always has an id for the first frame.
        """
        num_made = self.num_frames + self.num_queued
        has_text = self.is_complete or num_made == 1
        return has_text and self.num_rows + min(num_made, self.max_frames) <= PAGE * len(self.pages)


def bytes_per_page(config: TalkerConfig, dtype: torch.dtype) -> int:
    width = config.num_key_value_heads * config.head_dim * dtype.itemsize
    return 2 * config.num_hidden_layers * PAGE * width


class SlotTable:
    def __init__(
        self,
        config: TalkerConfig,
        num_slots: int,
        num_positions: int,  # per slot, a multiple of PAGE
        num_texts: int,
        device: torch.device,
        dtype: torch.dtype,
        pool_size: int,  # pages shared by all slots
        num_adapters: int = 0,  # that slots can choose
    ) -> None:
        assert num_positions % PAGE == 0
        self.device = device
        self.config = config
        self.num_slots, self.num_positions, self.num_texts = num_slots, num_positions, num_texts
        self.padding = num_slots  # row without a slot
        kv_shape = (
            config.num_hidden_layers,
            pool_size + 1,  # padding writes to the last page
            config.num_key_value_heads,
            PAGE,
            config.head_dim,
        )
        self.keys = torch.zeros(kv_shape, dtype=dtype, device=device)
        self.values = torch.zeros(kv_shape, dtype=dtype, device=device)
        self._no_page = pool_size

        def rows_of(*shape: int, dtype: torch.dtype = torch.int32, value: int = 0) -> Tensor:
            return torch.full((num_slots + 1, *shape), value, dtype=dtype, device=device)

        # Unreserved entries, and the entry of position `num_positions`, are the padding page.
        self.pages = rows_of(num_pages(num_positions) + 1, value=self._no_page)
        self.hidden = rows_of(config.hidden_size, dtype=dtype)
        self.code_sum = rows_of(config.hidden_size, dtype=dtype)
        self.history = rows_of(config.vocab_size, dtype=torch.bool)
        self.text_ids = rows_of(num_texts + 1)
        self.ring = rows_of(RING, config.num_code_groups)
        self.head: Head | None = None  # watched attention head
        # The watched head for kernels: layer, KV head, query head within the group; -1: none.
        self.watch = torch.full((3,), -1, dtype=torch.int32, device=device)
        self.scores = rows_of(num_positions + 1, dtype=torch.float32)
        self.places = rows_of(RING, value=-1)
        self.shares = rows_of(RING, dtype=torch.float32)
        self.numbers = torch.zeros(len(Number), num_slots + 1, dtype=torch.int64, device=device)
        self.scales = torch.ones(len(Scale), num_slots + 1, dtype=torch.float32, device=device)
        self.numbers[Number.STATUS, self.padding] = Status.STOP
        self.num_adapters = num_adapters
        # The adapter of each slot; None: graphs have no operations for adapters.
        self.adapters = rows_of(dtype=torch.int64) if num_adapters else None

    @property
    def num_bytes(self) -> dict[str, int]:
        tensors = [each for each in vars(self).values() if isinstance(each, Tensor)]
        cache = self.keys.nbytes + self.values.nbytes
        return {"keys and values": cache, "slots": sum(tensor.nbytes for tensor in tensors) - cache}

    @property
    def report_size(self) -> int:
        """Numbers of a slot's report to the host: those of REPORT, places, shares, codes."""
        return REPORT.stop - REPORT.start + RING * (2 + self.ring.shape[2])

    def upload(self, values: object, dtype: torch.dtype) -> Tensor:
        """Copy to the device asynchronously."""
        return upload(values, dtype, self.device)

    @property
    def line_size(self) -> int:
        """Length of the result of `line`."""
        return 1 + len(Number) + len(Scale) + self.pages.shape[1]

    def line(self, slot: GraphSlot) -> list[int]:
        """Initial values of a slot: row, numbers, scales (bits of float64), pages."""
        return self._line(slot.row, self._numbers(slot), _scales(slot.sampling), slot.pages)

    def padding_line(self) -> list[int]:
        numbers = [Status.STOP, *[0] * (len(Number) - 1)]
        return self._line(self.padding, numbers, [1.0] * len(Scale), ())

    def _line(
        self, row: int, numbers: Sequence[int], scales: Sequence[float], pages: Sequence[int]
    ) -> list[int]:
        bits = _BITS.unpack(_FLOATS.pack(*scales))
        no_pages = [self._no_page] * (self.pages.shape[1] - len(pages))
        return [row, *numbers, *bits, *pages, *no_pages]

    def write(self, lines: Tensor) -> None:
        """Initialise slots from lines, int64 [slots, line_size]. May be captured in a graph."""
        sizes = [1, len(Number), len(Scale), self.pages.shape[1]]
        row, numbers, scales, pages = lines.split(sizes, dim=1)
        rows = row[:, 0]
        self.pages.index_copy_(0, rows, pages.int())
        self.numbers.index_copy_(1, rows, numbers.T)
        self.scales.index_copy_(1, rows, scales.contiguous().view(torch.float64).T.float())
        self.history.index_fill_(0, rows, False)
        self.places.index_fill_(0, rows, -1)

    def adapters_of(self, slots: Tensor) -> Tensor | None:
        """The adapter of each of these slots: int64 [slots]. None if no adapters are loaded."""
        return None if self.adapters is None else self.adapters.index_select(0, slots)

    def lay_adapters(self, fresh: Sequence[GraphSlot]) -> None:
        """Store the adapters of slots, before their prompts are read."""
        if self.adapters is not None:
            rows = self.upload([slot.row for slot in fresh], torch.int64)
            numbers = self.upload([slot.adapter for slot in fresh], torch.int64)
            self.adapters.index_copy_(0, rows, numbers)

    def set_head(self, head: Head) -> None:
        """Record the attention of this head in all later frames."""
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        place = [head.layer, head.index // group, head.index % group]
        self.head = head
        self.watch.copy_(self.upload(place, torch.int32))

    def lay_texts(self, fresh: Sequence[GraphSlot]) -> None:
        """Store the text ids that these slots read, one per frame."""
        if len(fresh) == 1:
            self._store_texts(fresh[0], 0)
            return
        if not (width := max(len(slot.text_ids) for slot in fresh)):
            return
        lines = [[slot.row, *slot.text_ids, *[0] * (width - len(slot.text_ids))] for slot in fresh]
        block = self.upload(lines, torch.int64)
        self.text_ids[:, :width].index_copy_(0, block[:, 0], block[:, 1:].int())

    def _store_texts(self, slot: GraphSlot, start: int) -> None:
        """Store the slot's text ids from number `start` on, in one copy."""
        if more := slot.text_ids[start:]:
            stored = self.text_ids[slot.row, start : start + len(more)]
            stored.copy_(pin(more, torch.int32, self.device), non_blocking=True)

    def _numbers(self, slot: GraphSlot) -> list[int]:
        """Initial values of `numbers`, in the order of `Number`."""
        sampling, predictor = slot.sampling, self.config.code_predictor_config
        progress = [Status.RUNNING, 0, 0, 0, slot.num_rows]  # as in PROGRESS
        return [
            *progress,
            len(slot.text_ids),
            int(slot.is_complete),
            slot.num_own,
            slot.own_row,
            slot.num_reserved,
            min(sampling.min_frames, 2**62),
            sampling.seed or 0,
            int(sampling.temperature == 0),
            last_rank(sampling.top_k, self.config.vocab_size),
            int(sampling.residual_temperature == 0),
            last_rank(sampling.predictor_top_k, predictor.vocab_size),
        ]

    def append_pages(self, grown: Sequence[tuple[GraphSlot, Sequence[int]]]) -> None:
        """Store the last pages of slots. A slot that stopped at the end of a page resumes."""
        width = self.pages.shape[1]
        places = [
            (slot.row * width + len(slot.pages) - len(pages) + index, page)
            for slot, pages in grown
            for index, page in enumerate(pages)
        ]
        at, new_pages = self.upload(places, torch.int64).T
        self.pages.view(-1).index_copy_(0, at, new_pages.int())
        slots = [(slot.row, slot.num_reserved) for slot, _ in grown]
        rows, num_reserved = self.upload(slots, torch.int64).T
        status = self.numbers[Number.STATUS].index_select(0, rows)
        num_frames = self.numbers[Number.NUM_FRAMES].index_select(0, rows)
        goes_on = (status == Status.LENGTH) & (num_frames < num_reserved)
        status.masked_fill_(goes_on, Status.RUNNING)
        self.numbers[Number.STATUS].index_copy_(0, rows, status)
        self.numbers[Number.MAX_FRAMES].index_copy_(0, rows, num_reserved)

    def append_texts(self, slot: GraphSlot, ids: Sequence[int]) -> None:
        """Append text ids to a slot whose other text fields are up to date.

        Ids after the slot's last possible frame are dropped, because no frame would read them.
        """
        start = len(slot.text_ids)
        slot.text_ids += ids[: self.num_texts - start]
        self._store_texts(slot, start)
        numbers = [len(slot.text_ids), int(slot.is_complete), slot.num_own]  # as in TEXT_NUMBERS
        self.numbers[TEXT_NUMBERS, slot.row] = self.upload(numbers, torch.int64)


def _scales(sampling: SamplingParams) -> list[float]:
    """Initial values of `scales`, in the order of `Scale`."""
    return [
        sampling.temperature or 1.0,
        sampling.top_p,
        sampling.repetition_penalty,
        sampling.residual_temperature or 1.0,
        sampling.predictor_top_p,
    ]
