"""Size of the KV cache, and the error for too little device memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vivace.backends.cuda_graph.slots.pages import num_pages
from vivace.errors import BackendError

DEFAULT_STREAMS = 8  # few, because the GPU is often shared with a language model
STREAM_POSITIONS = 448  # reserved at admission for a text of 300 characters
SHARE = 0.85  # of free memory, at most, for keys and values; graphs and codec need the rest


def pool_size(
    max_streams: int, num_positions: int, bytes_per_page: int, device: torch.device
) -> int:
    """Pages for `max_streams` texts of usual length and one of `num_positions`.

    Less if memory is short, but always enough for one text of `num_positions`.
    """
    longest = num_pages(num_positions)
    wanted = min(max_streams * num_pages(STREAM_POSITIONS) + longest, max_streams * longest)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        wanted = min(wanted, int(SHARE * free / bytes_per_page))
    return max(longest, wanted)


@contextmanager
def checked_allocation(max_streams: int, max_frames: int, device: torch.device) -> Iterator[None]:
    """Convert an out-of-memory error to a BackendError that names the settings to lower."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        raise BackendError(
            f"{max_streams} streams of up to {max_frames} frames do not fit in the "
            f"{total / 2**30:.1f} GiB of {device} ({free / 2**30:.1f} GiB are free); "
            "lower max_streams or max_frames"
        ) from error
