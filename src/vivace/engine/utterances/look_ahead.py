"""How many of the frames made are final. The others are the look-ahead."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

MAX_LOOKAHEAD = 8  # frames that are not yet final, so that a fault in them can be repaired
FREE_FRAMES = 8  # at the start, final at once: first audio is not delayed
FRAMES_PER_HELD = 4  # after those, made for each frame of look-ahead
LOOKAHEAD_FULL = FREE_FRAMES + FRAMES_PER_HELD * MAX_LOOKAHEAD  # frames until it is complete


def num_settled(num_made: int) -> int:
    """Frames that are final when `num_made` frames were made without a fault."""
    if num_made >= LOOKAHEAD_FULL:  # the usual case
        return num_made - MAX_LOOKAHEAD
    return num_made - max(0, num_made - FREE_FRAMES) // FRAMES_PER_HELD


def num_needed(num_final: int) -> int:
    """Frames to make until `num_final` are final: the inverse of `num_settled`."""
    return _NEEDED[num_final] if num_final < len(_NEEDED) else num_final + MAX_LOOKAHEAD


def _first_needed() -> Iterator[int]:
    """`num_needed` for 0, 1, 2 … final frames, until the look-ahead is complete."""
    num_made = 0
    for num_final in itertools.count():
        while num_settled(num_made) < num_final:
            num_made += 1
        if num_made == num_final + MAX_LOOKAHEAD:
            return
        yield num_made


_NEEDED = tuple(_first_needed())
