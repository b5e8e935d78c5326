"""The CUDA graph backend with talker and predictor as one persistent kernel each.

For up to eight streams. The order of its sums differs from the Triton kernels, so an engine uses
only one of the two: codes must not depend on the batch.
"""

from __future__ import annotations

import torch

from vivace.backends.cuda import driver, nvrtc
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.megakernel.fp8 import DEPTH
from vivace.backends.megakernel.kernel import MAX_BATCH
from vivace.backends.megakernel.predictor import Dimensions
from vivace.backends.megakernel.talker import TalkerDimensions
from vivace.errors import BackendUnavailableError
from vivace.model.talker import Qwen3TTS

OLDEST = (8, 0)  # compute capability with bfloat16 products and asynchronous copies


class MegakernelBackend(CudaGraphBackend):
    name = "megakernel"
    # The kernels need all multiprocessors at once, so the codec must not run concurrently.
    renders_beside_frames = False

    default_layers = "megakernel"

    @staticmethod
    def unfit(model: Qwen3TTS, max_streams: int | None) -> str | None:
        return unfit(model, max_streams)

    def memory(self) -> dict[str, int]:
        packed = getattr(self._layers, "num_packed_bytes", 0)
        name = "fp8 weights" if self.model.weights == "fp8" else "padded weights"
        return super().memory() | ({name: packed} if packed else {})


def unfit(model: Qwen3TTS, max_streams: int | None) -> str | None:
    """Why the megakernel cannot run this model with `max_streams` streams, or None."""
    if max_streams is not None and max_streams > MAX_BATCH:
        return f"it serves up to {MAX_BATCH} streams, not {max_streams}"
    if model.dtype != torch.bfloat16:
        return f"it computes in bfloat16, and the model is in {str(model.dtype)[6:]}"
    config = model.config.talker_config
    return Dimensions.of(config).refusal or TalkerDimensions.of(config).refusal


def slower(model: Qwen3TTS, max_streams: int | None) -> str | None:
    """Why the graph backend serves this model faster, or None.

    A small model's rows are padded, and its codec takes most of the time. The graph backend runs
    the codec at the same time as the next frames, the megakernel between them.
    """
    config = model.config.talker_config
    is_padded = any(
        size % DEPTH for size in (config.hidden_size, config.code_predictor_config.hidden_size)
    )
    if is_padded and max_streams != 1:
        return "cuda_graph is faster for several streams of a small model"
    return None


def device_refusal(device: torch.device) -> str | None:
    """Why the kernel cannot run on this GPU, or None."""
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        return "it needs a GPU of compute capability 8.0 or newer, not {}.{}".format(*capability)
    try:
        nvrtc.check_installed()
        if not driver.supports_cooperative_launch(device):
            return "the driver does not support cooperative launches"
    except BackendUnavailableError as error:
        return str(error)
    return None
