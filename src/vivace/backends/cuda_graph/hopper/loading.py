"""Loads and checks the CUDA kernels that are written for Hopper GPUs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from vivace.errors import BackendUnavailableError

ARCHITECTURE = "sm_90a"
WORST_ERROR = 1e-2  # of a kernel's result, relative to PyTorch's

log = logging.getLogger(__name__)
K = TypeVar("K")


def load_on_hopper(
    device: torch.device,
    make: Callable[[], K],  # compiles the kernels
    check: Callable[[K, torch.device], object] | None,
    replacement: str,  # what runs instead, for the log
) -> K | None:
    """None on other GPUs, and where the kernels do not compile or fail their check."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return None
    try:
        kernels = make()
        if check is not None:
            check(kernels, device)
    except BackendUnavailableError as error:
        log.warning("%s instead of kernels for Hopper GPUs: %s", replacement, error)
        return None
    return kernels


def compare(found: Tensor, expected: Tensor) -> None:
    """Raise BackendUnavailableError if the relative distance is large."""
    error = float((found - expected).norm() / expected.norm())
    if not error < WORST_ERROR:
        raise BackendUnavailableError(f"their results are off by {error:.1e}")
