"""Reserves rows and pages for slots at admission, and more pages while they make frames."""

from __future__ import annotations

from collections.abc import Sequence

from vivace.backends.cuda_graph.slots.pages import PAGE, PagePool, num_pages
from vivace.backends.cuda_graph.slots.table import GraphSlot, SlotTable
from vivace.backends.slots import check_adapter, frame_limit
from vivace.errors import BackendError, BackendFullError
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

# Share of a slot's frame limit that is reserved at admission. The limit is 12 frames per text id;
# ordinary speech takes 3 to 4. Live text reserves FRAMES_PER_TEXT frames per id.
FIRM = 2 / 5
FRAMES_PER_TEXT = 5
LEAST_TEXTS = 16  # ids assumed for live text, whose length is unknown


class Reservations:
    def __init__(self, table: SlotTable, pool: PagePool) -> None:
        self._table, self._pool = table, pool
        self.free = list(reversed(range(table.num_slots)))  # rows without a slot

    def reserve(
        self, prompt: Prompt, sampling: SamplingParams, *, is_full: bool
    ) -> GraphSlot | BackendError:
        """Reserve a row and pages for the prompt. Returns an error if that is not possible."""
        try:
            check_adapter(prompt, self._table.num_adapters)
            max_frames = frame_limit(prompt, sampling, self._table.num_positions)
        except BackendError as error:
            return error
        if not self.free:
            return BackendError(
                f"all {self._table.num_slots} slots are taken; release one or raise max_streams"
            )
        max_frames = min(max_frames, self._table.num_texts)  # a frame reads one text id
        num_firm = round(FIRM * max_frames)
        if not prompt.is_complete:
            num_firm = FRAMES_PER_TEXT * max(LEAST_TEXTS, len(prompt.trailing_ids))
        num_rows = len(prompt)
        most = num_pages(num_rows + max_frames)
        count = min(most, num_pages(num_rows + num_firm))
        pages = None if is_full else self._pool.open(self.free[-1], count, most)
        if pages is None:
            return BackendFullError(count, most, self._pool.num_free, self._pool.size)
        return GraphSlot(
            row=self.free.pop(),
            sampling=sampling,
            num_rows=num_rows,
            pages=pages,
            max_frames=max_frames,
            text_ids=[*prompt.trailing_ids[: self._table.num_texts]],
            is_complete=prompt.is_complete,
            own_row=prompt.own_row,
            num_own=prompt.num_own_ids,
            adapter=prompt.adapter,
        )

    def vacate(self, row: int) -> None:
        self._pool.close(row)
        self.free.append(row)

    def grow_all(self, slots: Sequence[GraphSlot], num_frames: int) -> None:
        """Reserve pages for `num_frames` frames after those that are queued."""
        wanted = [(slot, slot.num_frames + slot.num_queued + num_frames) for slot in slots]
        self._grow([(s, n) for s, n in wanted if s.num_rows + n > PAGE * len(s.pages)])

    def grow(self, slot: GraphSlot, num_frames: int) -> None:
        """Reserve pages for `num_frames` frames, as far as pages are available."""
        self._grow([(slot, num_frames)])

    def _grow(self, wanted: Sequence[tuple[GraphSlot, int]]) -> None:
        """`grow` for several slots, which are stored at once."""
        grown = [(slot, more) for slot, count in wanted if (more := self._take(slot, count))]
        if grown:
            self._table.append_pages(grown)

    def _take(self, slot: GraphSlot, num_frames: int) -> list[int]:
        """New pages of a slot for `num_frames` frames."""
        num_positions = slot.num_rows + min(num_frames, slot.max_frames)
        is_enough = num_positions <= PAGE * len(slot.pages)
        if is_enough or slot.is_over or slot.row == self._table.padding:
            return []
        return self._pool.grow(slot.row, num_pages(num_positions))
