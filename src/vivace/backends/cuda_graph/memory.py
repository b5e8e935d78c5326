"""How many streams fit in the device's memory, and the error when they do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from vivace.errors import BackendError

DEFAULT_STREAMS = 8  # few, since the GPU is often shared with a language model
SHARE = 0.6  # of the free memory, for slots; the rest is left to graphs and other processes


def fitting_streams(bytes_per_stream: int, device: torch.device) -> int:
    """`DEFAULT_STREAMS`, or as many as fit in the device's free memory."""
    if device.type != "cuda":
        return DEFAULT_STREAMS
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(DEFAULT_STREAMS, int(SHARE * free / bytes_per_stream)))


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
