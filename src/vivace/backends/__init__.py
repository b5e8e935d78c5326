"""Backend registry. `auto` tries the backends in the order of `BACKENDS`.

Modules that need PyTorch are imported by the functions that use them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from vivace.backends.base import Backend, CodecPrecision
from vivace.errors import BackendUnavailableError, RequestError
from vivace.model.config import CodecConfig, ModelConfig
from vivace.speech import check_least

if TYPE_CHECKING:
    import torch

    from vivace.model.codec import Codec
    from vivace.model.talker import Qwen3TTS

log = logging.getLogger(__name__)

AUTO_BACKEND = "auto"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Limits that a backend allocates memory for; None selects the backend's default."""

    max_streams: int | None = None  # concurrent streams
    max_frames: int | None = None  # of one utterance
    codec_precision: CodecPrecision = "auto"  # of the CUDA backends and of the C++ codec

    def __post_init__(self) -> None:
        if self.max_frames is not None:
            check_least("max_frames", self.max_frames, 1)
        if self.codec_precision not in (known := get_args(CodecPrecision)):
            raise RequestError(
                f"codec_precision must be one of {', '.join(known)}, not {self.codec_precision!r}"
            )


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """A checkpoint whose weights the backend reads itself."""

    folder: Path
    config: ModelConfig
    codec_config: CodecConfig
    num_threads: int


@dataclass(frozen=True, slots=True)
class BackendEntry:
    name: str
    summary: str
    refusal: Callable[[torch.device], str | None]  # why it cannot run on a device, or None
    build: Callable[[Qwen3TTS, Codec, Capacity], Backend]
    # Why the backend cannot run this model with this capacity, or None.
    unfit: Callable[[Qwen3TTS, Capacity], str | None] = lambda model, capacity: None
    # Why `auto` should prefer a later backend for this model and capacity, or None.
    slower: Callable[[Qwen3TTS, Capacity], str | None] = lambda model, capacity: None
    max_streams: int | None = None  # upper limit; None: unlimited
    mixes_adapters: bool = False  # rows of a batch can have different adapters

    def find_unfit(self, model: Qwen3TTS, capacity: Capacity) -> str | None:
        """Why the backend cannot run this model with this capacity, or None."""
        if model.num_adapters and not self.mixes_adapters:
            mixers = " or ".join(entry.name for entry in BACKENDS if entry.mixes_adapters)
            return (
                f"it cannot mix adapters; use backend {mixers}, or merge one adapter into the "
                "weights with adapter="
            )
        return self.unfit(model, capacity)


def _graph_refusal(device: torch.device) -> str | None:
    if device.type == "cuda" and _has_cuda():
        return None
    return f"it needs an NVIDIA GPU; the device is {device}"


def _has_cuda() -> bool:
    """Whether PyTorch was built for NVIDIA GPUs."""
    import torch

    return torch.version.cuda is not None


def _build_eager(model: Qwen3TTS, codec: Codec, capacity: Capacity) -> Backend:
    from vivace.backends.eager import EagerBackend

    return EagerBackend(model, codec, max_streams=capacity.max_streams)


def _build_on_gpu(
    model: Qwen3TTS, codec: Codec, capacity: Capacity, *, is_megakernel: bool = False
) -> Backend:
    import torch

    from vivace.backends.cuda_graph.backend import MAX_FRAMES, CudaGraphBackend

    # Other threads may have copied the weights. cuBLAS needs a CUDA context in this thread.
    torch.cuda.synchronize(model.device)
    return (_megakernel().MegakernelBackend if is_megakernel else CudaGraphBackend)(
        model,
        codec,
        max_streams=capacity.max_streams,
        max_frames=capacity.max_frames or MAX_FRAMES,
        codec_precision=capacity.codec_precision,
    )


def _megakernel() -> Any:
    """The module, imported when it is needed: most machines have no NVIDIA GPU."""
    from vivace.backends.megakernel import backend

    return backend


def _cpu() -> Any:
    """The module, imported when it is needed: its library is compiled at first use."""
    from vivace.backends.cpu import backend

    return backend


def _build_on_cpu(model: Qwen3TTS, codec: Codec, capacity: Capacity) -> Backend:
    return _cpu().CpuBackend(
        model,
        codec,
        max_streams=capacity.max_streams,
        codec_precision=capacity.codec_precision,
    )


def import_backends(device: torch.device) -> None:
    """Import what a GPU's backends need, so that it is there when the weights are."""
    if device.type != "cuda" or not _has_cuda():
        return
    with contextlib.suppress(Exception):  # the backend that needs the module reports the error
        from vivace.backends.cuda_graph import compile
        from vivace.backends.cuda_graph.layers import selection  # noqa: F401

        _megakernel()
        compile.import_kernels()


BACKENDS: tuple[BackendEntry, ...] = (
    BackendEntry(
        "megakernel",
        "talker and predictor as one persistent kernel each, up to 8 streams",
        lambda device: _graph_refusal(device) or _megakernel().device_refusal(device),
        partial(_build_on_gpu, is_megakernel=True),
        lambda model, capacity: _megakernel().unfit(model, capacity.max_streams),
        lambda model, capacity: _megakernel().slower(model, capacity.max_streams),
        max_streams=8,
    ),
    BackendEntry(
        "cuda_graph",
        "a whole frame in one CUDA graph",
        _graph_refusal,
        _build_on_gpu,
        mixes_adapters=True,
    ),
    BackendEntry(
        "cpu",
        "a whole frame in C++, for float32, int8 and int4 weights",
        lambda device: _cpu().device_refusal(device),
        _build_on_cpu,
        lambda model, capacity: _cpu().unfit(model),
        lambda model, capacity: _cpu().slower(model),
    ),
    BackendEntry(
        "eager",
        "plain PyTorch on any device",
        lambda device: None,
        _build_eager,
        mixes_adapters=True,
    ),
)


def survey(device: torch.device) -> list[tuple[BackendEntry, str | None]]:
    """All backends, each with the reason why it cannot run on `device`, or None."""
    return [(entry, entry.refusal(device)) for entry in BACKENDS]


def build_backend(
    name: str,
    model: Qwen3TTS | CheckpointFiles,
    codec: Codec | None,
    capacity: Capacity | None = None,
) -> Backend:
    """Raises BackendUnavailableError. Files are read by the `cpu` backend, without PyTorch; if it
    refuses them, the caller loads a model."""
    known = [entry.name for entry in BACKENDS]
    if name not in (AUTO_BACKEND, *known):
        raise BackendUnavailableError(
            f"no backend named {name!r}; try one of: {', '.join([AUTO_BACKEND, *known])}"
        )
    capacity = capacity or Capacity()
    if isinstance(model, CheckpointFiles):
        return _open_files(model, capacity)
    assert codec is not None
    for entry, refusal in survey(model.device):
        if name not in (AUTO_BACKEND, entry.name):
            continue
        refusal = refusal or entry.find_unfit(model, capacity)
        if name == AUTO_BACKEND:
            refusal = refusal or entry.slower(model, capacity)
        if refusal is None:
            try:
                return entry.build(model, codec, capacity)
            except BackendUnavailableError as error:
                if name == entry.name:
                    raise
                log.warning("backend %s failed, trying the next one: %s", entry.name, error)
                continue
        if name == entry.name:
            raise BackendUnavailableError(f"backend {name} cannot run here: {refusal}")
        log.info("backend %s skipped: %s", entry.name, refusal)
    raise BackendUnavailableError(f"no backend can run on {model.device}")


def _open_files(files: CheckpointFiles, capacity: Capacity) -> Backend:
    cpu = _cpu()
    if refusal := cpu.find_refusal() or cpu.find_unfit(files.config.talker_config):
        raise BackendUnavailableError(refusal)
    configs = (files.config, files.codec_config)
    backend: Backend = cpu.CpuBackend.open(
        files.folder,
        *configs,
        files.num_threads,
        capacity.max_streams,
        capacity.codec_precision,
    )
    return backend
