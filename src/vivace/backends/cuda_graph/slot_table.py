"""Device state of all slots, in tensors with fixed addresses for CUDA graphs.

Every tensor has one row or column per slot and a last one for padding in incomplete batches. Keys
and values are stored in pages (pages.py); `pages` maps slots to pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

import torch
from torch import Tensor

from vivace.backends.base import SlotStatus
from vivace.backends.cuda_graph.pages import PAGE, num_pages
from vivace.backends.cuda_graph.staging import upload
from vivace.model.config import Head, TalkerConfig
from vivace.speech import SamplingParams

STATUSES: tuple[SlotStatus, ...] = ("running", "waiting", "stop", "length", "failed")
RUNNING, WAITING, STOP, LENGTH, FAILED = range(len(STATUSES))
LAST_OPEN = WAITING  # statuses after this one are final
RING = 16  # frames a slot can make before the host must read them


class Number(IntEnum):
    """Rows of `numbers`."""

    STATUS = 0
    NUM_FRAMES = 1
    HAS_SUM = 2  # the talker has not yet read the last frame's embeddings
    NEXT_TEXT = 3
    POSITION = 4  # of the next key and value
    NUM_TEXTS = 5
    IS_COMPLETE = 6
    MAX_FRAMES = 7
    MIN_FRAMES = 8
    SEED = 9
    IS_GREEDY = 10
    LAST = 11  # rank of the last code that top-k keeps
    PREDICTOR_IS_GREEDY = 12
    PREDICTOR_LAST = 13
    OWN_ROW = 14  # position of the first id of the request's text
    NUM_OWN = 15  # number of ids of the request's text


NUMBERS = tuple(Number)
PROGRESS = (  # updated by every frame
    Number.STATUS,
    Number.NUM_FRAMES,
    Number.HAS_SUM,
    Number.NEXT_TEXT,
    Number.POSITION,
)
TEXT_NUMBERS = (Number.NUM_TEXTS, Number.IS_COMPLETE)


def as_slice(numbers: Sequence[Number]) -> slice:
    """A slice of consecutive rows of `numbers`, to copy them at once."""
    assert list(numbers) == list(range(numbers[0], numbers[0] + len(numbers)))
    return slice(numbers[0], numbers[-1] + 1)


class Scale(IntEnum):
    """Rows of `scales`."""

    TEMPERATURE = 0
    TOP_P = 1
    PENALTY = 2
    PREDICTOR_TEMPERATURE = 3
    PREDICTOR_TOP_P = 4


SCALES = tuple(Scale)
_FLOATS, _BITS = (Struct(f"{len(SCALES)}{kind}") for kind in "dq")


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshSlot:
    """Initial state of a slot before its first frame."""

    row: int
    sampling: SamplingParams
    num_rows: int  # prompt rows
    pages: Sequence[int]  # reserved so far
    max_frames: int  # upper limit
    text_ids: Sequence[int]  # read one per frame, at most `SlotTable.num_texts`
    is_complete: bool  # no more text will be appended
    own_row: int = 0
    num_own: int = 0

    @property
    def num_reserved(self) -> int:
        """Number of frames that fit in the reserved pages."""
        return min(self.max_frames, PAGE * len(self.pages) - self.num_rows)


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
    ) -> None:
        assert num_positions % PAGE == 0
        self.device = device
        self.config = config
        self.num_slots, self.num_positions, self.num_texts = num_slots, num_positions, num_texts
        rows = num_slots + 1
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
        # Unreserved entries, and the entry of position `num_positions`, are the padding page.
        self._no_page, width = pool_size, num_pages(num_positions) + 1
        self.pages = torch.full((rows, width), self._no_page, dtype=torch.int32, device=device)
        self.hidden = torch.zeros(rows, config.hidden_size, dtype=dtype, device=device)
        self.code_sum = torch.zeros_like(self.hidden)
        self.history = torch.zeros(rows, config.vocab_size, dtype=torch.bool, device=device)
        self.text_ids = torch.zeros(rows, num_texts + 1, dtype=torch.int32, device=device)
        self.ring = torch.zeros(
            rows, RING, config.num_code_groups, dtype=torch.int32, device=device
        )
        self.head: Head | None = None  # watched attention head
        # The watched head for kernels: layer, KV head, query head within the group; -1: none.
        self.watch = torch.full((3,), -1, dtype=torch.int32, device=device)
        self.scores = torch.zeros(rows, num_positions + 1, dtype=torch.float32, device=device)
        self.places = torch.full((rows, RING), -1, dtype=torch.int32, device=device)
        self.shares = torch.zeros(rows, RING, dtype=torch.float32, device=device)
        self.numbers = torch.zeros(len(Number), rows, dtype=torch.int64, device=device)
        self.scales = torch.ones(len(Scale), rows, dtype=torch.float32, device=device)
        self.numbers[Number.STATUS, self.padding] = STOP

    @property
    def num_bytes(self) -> dict[str, int]:
        kept = (
            *(self.hidden, self.code_sum, self.history, self.text_ids, self.ring, self.pages),
            *(self.scores, self.places, self.shares),
        )
        return {
            "keys and values": self.keys.nbytes + self.values.nbytes,
            "slots": sum(tensor.nbytes for tensor in kept),
        }

    def upload(self, values: object, dtype: torch.dtype) -> Tensor:
        """Copy to the device asynchronously."""
        return upload(values, dtype, self.device)

    @property
    def line_size(self) -> int:
        """Length of the result of `line`."""
        return 1 + len(NUMBERS) + len(SCALES) + self.pages.shape[1]

    def line(self, slot: FreshSlot) -> list[int]:
        """Initial values of a slot: row, numbers, scales (bits of float64), pages."""
        return self._line(slot.row, self._numbers(slot), _scales(slot.sampling), slot.pages)

    def padding_line(self) -> list[int]:
        numbers = [0] * len(NUMBERS)
        numbers[Number.STATUS] = STOP
        return self._line(self.padding, numbers, [1.0] * len(SCALES), ())

    def _line(
        self,
        row: int,
        numbers: Sequence[int],
        scales: Sequence[float],
        pages: Sequence[int],
    ) -> list[int]:
        bits = _BITS.unpack(_FLOATS.pack(*scales))
        no_pages = [self._no_page] * (self.pages.shape[1] - len(pages))
        return [row, *numbers, *bits, *pages, *no_pages]

    def write(self, lines: Tensor) -> None:
        """Initialise slots from lines, int64 [slots, line_size]. May be captured in a graph."""
        sizes = [1, len(NUMBERS), len(SCALES), self.pages.shape[1]]
        row, numbers, scales, pages = lines.split(sizes, dim=1)
        rows = row[:, 0]
        self.pages.index_copy_(0, rows, pages.int())
        self.numbers.index_copy_(1, rows, numbers.T)
        self.scales.index_copy_(1, rows, scales.contiguous().view(torch.float64).T.float())
        self.history.index_fill_(0, rows, False)
        self.places.index_fill_(0, rows, -1)

    def set_head(self, head: Head) -> None:
        """Record the attention of this head in all later frames."""
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        place = [head.layer, head.index // group, head.index % group]
        self.head = head
        self.watch.copy_(self.upload(place, torch.int32))

    def lay_texts(self, fresh: Sequence[FreshSlot]) -> None:
        """Store the text ids that these slots read, one per frame."""
        if not (width := max(len(slot.text_ids) for slot in fresh)):
            return
        lines = [[slot.row, *slot.text_ids, *[0] * (width - len(slot.text_ids))] for slot in fresh]
        block = self.upload(lines, torch.int64)
        self.text_ids[:, :width].index_copy_(0, block[:, 0], block[:, 1:].int())

    def _numbers(self, slot: FreshSlot) -> list[int]:
        """Initial values of `numbers`."""
        sampling, predictor = slot.sampling, self.config.code_predictor_config
        numbers = [0] * len(NUMBERS)
        numbers[Number.POSITION] = slot.num_rows
        numbers[Number.NUM_TEXTS] = len(slot.text_ids)
        numbers[Number.IS_COMPLETE] = int(slot.is_complete)
        numbers[Number.MAX_FRAMES] = slot.num_reserved
        numbers[Number.MIN_FRAMES] = min(sampling.min_frames, 2**62)
        numbers[Number.SEED] = sampling.seed or 0
        numbers[Number.IS_GREEDY] = int(sampling.temperature == 0)
        numbers[Number.LAST] = _last(sampling.top_k, self.config.vocab_size)
        numbers[Number.PREDICTOR_IS_GREEDY] = int(sampling.residual_temperature == 0)
        numbers[Number.PREDICTOR_LAST] = _last(sampling.predictor_top_k, predictor.vocab_size)
        numbers[Number.OWN_ROW], numbers[Number.NUM_OWN] = slot.own_row, slot.num_own
        return numbers

    def append_pages(self, row: int, start: int, pages: Sequence[int], num_reserved: int) -> None:
        """Add pages to a slot. A slot that stopped at the end of its last page resumes."""
        self.pages[row, start : start + len(pages)] = self.upload(pages, torch.int32)
        numbers = self.numbers[:, row]
        is_stopped = numbers[Number.STATUS] == LENGTH
        goes_on = is_stopped & (numbers[Number.NUM_FRAMES] < num_reserved)
        numbers[Number.STATUS].masked_fill_(goes_on, RUNNING)
        numbers[Number.MAX_FRAMES].fill_(num_reserved)

    def append_texts(
        self, row: int, start: int, ids: Sequence[int], is_complete: bool, num_own: int
    ) -> int:
        """Append text ids after the first `start`; returns the new number of ids.

        The first `num_own` ids are the request's text; an end marker may follow. Ids after the
        slot's last possible frame are dropped, because no frame would read them.
        """
        self.numbers[Number.NUM_OWN, row].add_(num_own)
        ids = ids[: self.num_texts - start]
        end = start + len(ids)
        if ids:
            self.text_ids[row, start:end] = self.upload(ids, torch.int32)
        self.numbers[as_slice(TEXT_NUMBERS), row] = self.upload(
            [end, int(is_complete)], torch.int64
        )
        return end


def _scales(sampling: SamplingParams) -> list[float]:
    scales = [1.0] * len(SCALES)
    scales[Scale.TEMPERATURE] = sampling.temperature or 1.0
    scales[Scale.TOP_P] = sampling.top_p
    scales[Scale.PENALTY] = sampling.repetition_penalty
    scales[Scale.PREDICTOR_TEMPERATURE] = sampling.residual_temperature or 1.0
    scales[Scale.PREDICTOR_TOP_P] = sampling.predictor_top_p
    return scales


def _last(top_k: int, num_codes: int) -> int:
    return (min(top_k, num_codes) if top_k else num_codes) - 1
