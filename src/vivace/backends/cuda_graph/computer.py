"""Which computer runs the layers: fused kernels where they can, else the model's own modules."""

from __future__ import annotations

import logging
from importlib import metadata

import torch

from vivace.backends.cuda_graph.buckets import spans
from vivace.backends.cuda_graph.frame import Computer, FrameLoop
from vivace.backends.cuda_graph.plain import PlainComputer
from vivace.backends.cuda_graph.slot_table import SlotTable
from vivace.errors import BackendUnavailableError
from vivace.model.talker import Qwen3TTS
from vivace.speech import SamplingParams

log = logging.getLogger(__name__)

AUTO = "auto"
COMPUTERS = (AUTO, "fused", "plain")
OLDEST_TRITON = (3, 4)  # kernels that start before the last one ends


def pick_computer(name: str, model: Qwen3TTS, table: SlotTable) -> Computer:
    if name not in COMPUTERS:
        raise BackendUnavailableError(
            f"no computer named {name!r}; try one of: {', '.join(COMPUTERS)}"
        )
    if name == "plain":
        return PlainComputer(model, table)
    refusal = fused_refusal(model)
    if refusal is None:
        try:
            return _tried_fused(model, table)
        except Exception as error:  # whatever a compiler or a driver may throw
            refusal = f"they do not work: {str(error).strip().splitlines()[-1]}"
            log.warning("layers run as plain PyTorch, fused kernels failed: %s", error)
    if name == "fused":
        raise BackendUnavailableError(f"the fused kernels cannot run here: {refusal}")
    log.info("layers run as plain PyTorch: %s", refusal)
    return PlainComputer(model, table)


def _tried_fused(model: Qwen3TTS, table: SlotTable) -> Computer:
    """The fused kernels, after a frame for nobody: what cannot be compiled shows at load."""
    from vivace.backends.cuda_graph.fused import FusedComputer

    computer = FusedComputer(model, table)
    loop = FrameLoop(table, computer, model.config.tts_pad_token_id)
    nobody = torch.full((1,), table.padding, device=model.device)
    loop.make(nobody, spans(table.num_positions)[0], computer.kind([SamplingParams()]))
    return computer


def fused_refusal(model: Qwen3TTS) -> str | None:
    """Why the fused kernels cannot run this model here, or None."""
    if model.device.type != "cuda":
        return f"they need an NVIDIA GPU, and the model is on {model.device}"
    if model.dtype != torch.bfloat16:
        return "they are for bfloat16; float32 keeps PyTorch's own products"
    if torch.cuda.get_device_capability(model.device) < (8, 0):
        return "bfloat16 needs a GPU of compute capability 8.0 or newer"
    return triton_refusal()


def triton_refusal() -> str | None:
    """Why Triton's kernels cannot be compiled here, or None."""
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "triton is not installed"
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TRITON:
        return f"triton {version} is too old; they need {'.'.join(map(str, OLDEST_TRITON))}"
    return None
