"""Who holds which pages of the KV cache: plain numbers, no tensors.

A slot takes pages when it is admitted and more while it speaks, up to the most that it may need.
None is ever taken back from it. What is given leaves every slot able to get its most, one after
another as others end (the banker's algorithm), so slots that wait for pages cannot block each other
for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

PAGE = 64  # positions; also the keys of one attention block, which so reads one page


def num_pages(num_positions: int) -> int:
    """The pages that hold so many positions."""
    return -(-num_positions // PAGE)


@dataclass(slots=True)
class Lease:
    """The pages of one slot, in the order of its positions."""

    pages: list[int]
    most: int  # that it may hold in the end

    @property
    def num_missing(self) -> int:
        return self.most - len(self.pages)


class PagePool:
    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(reversed(range(size)))
        self._leases: dict[int, Lease] = {}  # by the slot's row

    @property
    def num_free(self) -> int:
        return len(self._free)

    def open(self, row: int, count: int, most: int) -> list[int] | None:
        """So many pages for a new slot; None if it has to wait for others to end."""
        assert row not in self._leases
        assert count <= most <= self.size
        self._leases[row] = Lease([], most)
        if count > self.num_free or not self._is_safe(row, count):
            del self._leases[row]
            return None
        return self.grow(row, count)

    def grow(self, row: int, count: int) -> list[int]:
        """Further pages until the slot has `count`; fewer if it has to wait for others to end."""
        lease = self._leases[row]
        num_more = min(count, lease.most) - len(lease.pages)
        while num_more > 0 and not self._is_safe(row, num_more):
            num_more -= 1
        more = [self._free.pop() for _ in range(num_more)]
        lease.pages += more
        return more

    def close(self, row: int) -> None:
        """The slot has ended: its pages are free."""
        self._free += reversed(self._leases.pop(row).pages)

    def _is_safe(self, row: int, num_more: int) -> bool:
        """Whether all slots can still get their most in some order if this one gets more now."""
        num_free = self.num_free - num_more
        if num_free < 0 or all(each.num_missing <= num_free for each in self._leases.values()):
            return num_free >= 0
        leases = [
            (lease.num_missing - num_more, len(lease.pages) + num_more)
            if each == row
            else (lease.num_missing, len(lease.pages))
            for each, lease in self._leases.items()
        ]
        for num_missing, num_held in sorted(leases):
            if num_missing > num_free:
                return False
            num_free += num_held
        return True
