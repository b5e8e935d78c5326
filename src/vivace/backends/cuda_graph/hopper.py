"""Loads the CUDA kernels that are written for Hopper GPUs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from vivace.errors import BackendUnavailableError

ARCHITECTURE = "sm_90a"

log = logging.getLogger(__name__)
K = TypeVar("K")


def load_on_hopper(device: torch.device, load: Callable[[], K], replacement: str) -> K | None:
    """Kernels that `load` compiles and checks; None on other GPUs and where `load` fails.

    `replacement` tells the log what runs instead.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return None
    try:
        return load()
    except BackendUnavailableError as error:
        log.warning("%s instead of kernels for Hopper GPUs: %s", replacement, error)
        return None
