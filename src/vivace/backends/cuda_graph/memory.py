"""How many pages of keys are allocated, and the error when they do not fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from vivace.backends.cuda_graph.pages import num_pages
from vivace.errors import BackendError

DEFAULT_STREAMS = 8  # few, since the GPU is often shared with a language model
STREAM_POSITIONS = 448  # that a text of 300 characters is given when it is admitted
SHARE = 0.85  # of the free memory, for keys at most; the rest is left to graphs and codec state


def pool_size(
    max_streams: int, num_positions: int, bytes_per_page: int, device: torch.device
) -> int:
    """Pages for `max_streams` ordinary texts and one of the longest, or as many as fit in memory.

    The longest, of `num_positions`, always fits alone, and no more are allocated than all slots
    could hold.
    """
    longest = num_pages(num_positions)
    wanted = min(max_streams * num_pages(STREAM_POSITIONS) + longest, max_streams * longest)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        wanted = min(wanted, int(SHARE * free / bytes_per_page))
    return max(longest, wanted)


@contextmanager
def checked_allocation(max_streams: int, max_frames: int, device: torch.device) -> Iterator[None]:
    """Out of memory becomes a BackendError that names the settings to lower."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        raise BackendError(
            f"{max_streams} streams of up to {max_frames} frames do not fit in the "
            f"{total / 2**30:.1f} GiB of {device} ({free / 2**30:.1f} GiB are free); "
            "lower max_streams or max_frames"
        ) from error


def format_sizes(sizes: Mapping[str, int]) -> str:
    """A table in MiB, with the total."""
    lines = [f"{name:<18}{size / 2**20:>10.1f} MiB" for name, size in sizes.items()]
    return "\n".join([*lines, f"{'together':<18}{sum(sizes.values()) / 2**20:>10.1f} MiB"])
