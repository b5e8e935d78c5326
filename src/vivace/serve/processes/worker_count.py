"""How many worker processes a server has."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from vivace.errors import RequestError
from vivace.serve.settings import ServeSettings

MIN_CORES = 8  # below, one process is faster
CORES_PER_WORKER = 4
MAX_WORKERS = 8
GPU_FILES = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))  # NVIDIA, AMD, WSL


def count_workers(settings: ServeSettings) -> int:
    """The setting, or a number by cores if a GPU runs the models. 1: one process for everything."""
    if settings.workers is not None:
        if settings.workers > 1 and sys.platform != "linux":
            raise RequestError(f"workers cannot be {settings.workers}: several need Linux")
        return settings.workers
    num_cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if num_cores < MIN_CORES or not _uses_gpu(settings):
        return 1
    return min(MAX_WORKERS, num_cores // CORES_PER_WORKER)


def _uses_gpu(settings: ServeSettings) -> bool:
    """Without importing PyTorch. The embedded voice runs on the CPU by default."""
    if settings.device != "auto":
        return settings.device.startswith("cuda")
    has_large_model = any(spec.source is not None for spec in settings.models)
    return has_large_model and any(path.exists() for path in GPU_FILES)
