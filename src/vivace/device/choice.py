"""Chooses the device and the precision of a model.

PyTorch is imported by the functions that need it: a small model on a CPU may run without it.
"""

from __future__ import annotations

import logging
import platform
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from vivace.device.interpreter import paused_collector
from vivace.errors import BackendUnavailableError, RequestError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

AUTO = "auto"
DEVICE_TYPES = ("cpu", "cuda", "mps")
SMALL_MODEL_BYTES = 256 << 20  # on disk; released checkpoints are ten times as large
DTYPES = ("float32", "bfloat16")
GPU_FILES = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")  # in /dev


def pick_device(name: str = AUTO, num_bytes: int | None = None) -> torch.device:
    """`auto` runs a small model (`num_bytes`) on the CPU, because starting a GPU takes longer."""
    with paused_collector():
        import torch

    if name == AUTO:
        if num_bytes is not None and num_bytes < SMALL_MODEL_BYTES:
            return torch.device("cpu")
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in DEVICE_TYPES:
        raise RequestError(f"no device named {name!r}; try auto, cpu, cuda, cuda:0 or mps")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailableError(
            f"device {name!r} was requested, but PyTorch {torch.__version__} sees no CUDA GPU "
            "here; use device cpu, or auto for the best one"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BackendUnavailableError(
            f"device {name!r} was requested, but there are {torch.cuda.device_count()} CUDA GPUs"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise BackendUnavailableError("device 'mps' was requested, but it is not available here")
    return device


def picks_cpu(name: str, num_bytes: int | None) -> bool:
    """Whether `pick_device` picks the CPU. Imports PyTorch only if there may be a GPU."""
    if name != AUTO:
        return name.partition(":")[0] == "cpu"
    return not may_have_gpu() or pick_device(name, num_bytes).type == "cpu"


def may_have_gpu() -> bool:
    """False if the system has no device files of a GPU (NVIDIA, Jetson, AMD, or a GPU of Windows in
    a Linux machine). Otherwise PyTorch decides whether `auto` picks one."""
    if sys.platform != "linux":
        return True
    return any(found for pattern in GPU_FILES for found in Path("/dev").glob(pattern))


def can_fork(device_type: str, threads: int | None) -> bool:
    """Whether a forked child can compute: a fork loses threads and GPU contexts.

    On ARM, PyTorch uses threads of Arm's library for any number of threads.
    """
    is_arm = platform.machine().lower() in ("aarch64", "arm64")
    return device_type == "cpu" and threads == 1 and not is_arm


def pick_dtype(name: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The talker's precision; the codec is always float32."""
    import torch

    if name == AUTO:
        if device.type != "cuda":
            return torch.float32
        if torch.cuda.get_device_capability(device) >= (8, 0):
            return torch.bfloat16
        _note_no_bfloat16(torch.cuda.get_device_name(device))
        return torch.float32
    key = str(name).removeprefix("torch.")
    if key in ("float16", "half"):
        raise RequestError(
            "dtype float16 is refused: the talker's logits overflow; use bfloat16 or float32"
        )
    if key not in DTYPES:
        raise RequestError(f"no dtype named {key!r}; try one of: {AUTO}, {', '.join(DTYPES)}")
    dtype: torch.dtype = getattr(torch, key)
    return dtype


@cache
def _note_no_bfloat16(name: str) -> None:
    """Log only once per GPU."""
    log.warning("%s has no bfloat16, so the talker runs in float32: slower, and exact", name)


def is_context_lost() -> bool:
    """Whether the error has made the GPU unusable for this process."""
    if "torch" not in sys.modules:
        return False
    import torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
