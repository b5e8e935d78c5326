"""Which computer runs the layers: fused kernels where they can, else the model's own modules."""

from __future__ import annotations

import logging
from importlib import metadata
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vivace.backends.cuda_graph.buckets import TILE, spans
from vivace.backends.cuda_graph.frame import Computer, FrameLoop, Place
from vivace.backends.cuda_graph.plain import PlainComputer
from vivace.backends.cuda_graph.slot_table import SlotTable
from vivace.errors import BackendUnavailableError
from vivace.model.cache import KeyValueCache
from vivace.model.talker import Qwen3TTS
from vivace.speech import SamplingParams

if TYPE_CHECKING:
    from vivace.backends.cuda_graph.fused import FusedComputer

log = logging.getLogger(__name__)

AUTO = "auto"
COMPUTERS = (AUTO, "fused", "megakernel", "plain")
OLDEST_TRITON = (3, 4)  # kernels that start before the last one ends
TRIAL_ROWS = 2 * TILE
WORST_ERROR = 0.15  # roundings differ by some 0.02 with random weights, a broken kernel by about 1


def pick_computer(name: str, model: Qwen3TTS, table: SlotTable) -> Computer:
    if name not in COMPUTERS:
        raise BackendUnavailableError(
            f"no computer named {name!r}; try one of: {', '.join(COMPUTERS)}"
        )
    if name == "plain":
        return PlainComputer(model, table)
    kernels = "fused" if name == AUTO else name
    refusal = fused_refusal(model)
    if refusal is None:
        try:
            tried = _tried_megakernel if kernels == "megakernel" else _tried_fused
            return tried(model, table)
        except Exception as error:  # whatever a compiler or a driver may throw
            refusal = f"they do not work: {str(error).strip().splitlines()[-1]}"
            if name == AUTO:
                log.warning("layers run as plain PyTorch, fused kernels failed: %s", error)
    if name != AUTO:
        raise BackendUnavailableError(f"the {kernels} kernels cannot run here: {refusal}")
    log.info("layers run as plain PyTorch: %s", refusal)
    return PlainComputer(model, table)


def _tried_fused(model: Qwen3TTS, table: SlotTable) -> Computer:
    """The fused kernels, after a frame for nobody and a prompt that came out as it should."""
    from vivace.backends.cuda_graph.fused import FusedComputer

    return _tried(FusedComputer(model, table), model, table)


def _tried_megakernel(model: Qwen3TTS, table: SlotTable) -> Computer:
    """The same with the predictor's frame as one kernel, whose logits are those of the others."""
    from vivace.backends.megakernel.layers import MegakernelLayers

    layers = MegakernelLayers(model, table)
    _tried(layers, model, table)
    if not (error := layers.trial()) < WORST_ERROR:
        raise BackendUnavailableError(f"the megakernel's logits are off by {error:.1%}")
    return layers


def _tried(computer: FusedComputer, model: Qwen3TTS, table: SlotTable) -> Computer:
    loop = FrameLoop(table, computer, model.config.tts_pad_token_id)
    nobody = torch.full((1,), table.padding, device=model.device)
    loop.make(nobody, spans(table.num_positions)[0], computer.kind([SamplingParams()]))
    expected = _talker_states(PlainComputer(model, table), model, table)
    found = _talker_states(computer, model, table)
    for tensor in (table.keys, table.values):
        tensor[:, 0, :, : len(expected)] = 0
    pair = expected[None, -2:]  # as if a hidden state and a code's vector
    error = max(
        _distance(found, expected), _distance(computer.predict(pair, 1), _predict(model, pair))
    )
    if not error < WORST_ERROR:
        raise BackendUnavailableError(f"their numbers are off by {error:.1%}")
    return computer


def _talker_states(computer: Computer, model: Qwen3TTS, table: SlotTable) -> Tensor:
    """What a prompt and the row after it give: [rows + 1, hidden]; slot 0 is overwritten."""
    x = model.talker.codec_head.weight[: TRIAL_ROWS + 1]  # vectors of every direction
    positions = torch.arange(TRIAL_ROWS + 1, device=model.device)
    slots = torch.zeros_like(positions)
    prompt = computer.read_prompts(x[:-1], slots[:-1], positions[:-1])
    span = spans(table.num_positions)[0]
    place = Place(slots[-1:], positions[-1:], positions[-1:] + 1, span)
    return torch.cat((prompt, computer.read(x[-1:], place)))


def _predict(model: Qwen3TTS, pair: Tensor) -> Tensor:
    """Logits of codebook 1."""
    predictor = model.talker.code_predictor
    cache = KeyValueCache(predictor.config.num_hidden_layers)
    logits: Tensor = predictor.lm_head[0](predictor(pair, 0, cache)[:, -1])
    return logits


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


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
