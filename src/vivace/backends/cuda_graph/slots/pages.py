"""Assignment of KV cache pages to slots: plain numbers, no tensors.

A slot reserves pages at admission and more while it makes frames, up to its limit. Pages are never
taken back from a running slot. A reservation is granted only if all slots could still reach their
limits one after another (banker's algorithm), so waiting slots cannot deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass

PAGE = 64  # positions; an attention block reads one page


def num_pages(num_positions: int) -> int:
    """Number of pages for `num_positions`."""
    return -(-num_positions // PAGE)


@dataclass(slots=True)
class PageReservation:
    """The pages of one slot, in the order of its positions."""

    pages: list[int]
    most: int  # upper limit

    @property
    def num_missing(self) -> int:
        return self.most - len(self.pages)


class PagePool:
    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(reversed(range(size)))
        self._reservations: dict[int, PageReservation] = {}  # by the slot's row
        self._largest = 0  # the highest limit since the pool was last empty

    @property
    def num_free(self) -> int:
        return len(self._free)

    def open(self, row: int, count: int, most: int) -> list[int] | None:
        """Reserve `count` pages for a new slot; None if it must wait for other slots to end.

        `grow` appends to the returned list.
        """
        assert row not in self._reservations
        assert count <= most <= self.size
        reservation = self._reservations[row] = PageReservation([], most)
        self._largest = max(self._largest, most)
        if count > self.num_free or not self._is_safe(row, count):
            del self._reservations[row]
            return None
        self._take(reservation, count)
        return reservation.pages

    def grow(self, row: int, count: int) -> list[int]:
        """Add pages up to `count` in total; fewer if the slot must wait for other slots to end."""
        reservation = self._reservations[row]
        num_more = min(count, reservation.most) - len(reservation.pages)
        while num_more > 0 and not self._is_safe(row, num_more):
            num_more -= 1
        return self._take(reservation, num_more)

    def _take(self, reservation: PageReservation, count: int) -> list[int]:
        more = [self._free.pop() for _ in range(count)]
        reservation.pages += more
        return more

    def close(self, row: int) -> None:
        """Free the pages of a slot."""
        self._free += reversed(self._reservations.pop(row).pages)
        if not self._reservations:
            self._largest = 0

    def _is_safe(self, row: int, num_more: int) -> bool:
        """Whether all slots can still reach their limits in some order after this reservation."""
        num_free = self.num_free - num_more
        if num_free >= self._largest:  # any slot could reach its limit next
            return True
        if num_free < 0 or all(
            each.num_missing <= num_free for each in self._reservations.values()
        ):
            return num_free >= 0
        reservations = [
            (reservation.num_missing - num_more, len(reservation.pages) + num_more)
            if each == row
            else (reservation.num_missing, len(reservation.pages))
            for each, reservation in self._reservations.items()
        ]
        for num_missing, num_held in sorted(reservations):
            if num_missing > num_free:
                return False
            num_free += num_held
        return True
