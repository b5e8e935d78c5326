"""Selects the `Layers` implementation: fused kernels where possible, else PyTorch modules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vivace.backends.cuda_graph.buckets import PROMPT_ROWS, TILE, spans
from vivace.backends.cuda_graph.compile import kernel_compiler, triton_refusal
from vivace.backends.cuda_graph.graphs import Work
from vivace.backends.cuda_graph.layers.frame import FrameLoop, KvPositions, Layers
from vivace.backends.cuda_graph.layers.plain import PlainLayers
from vivace.backends.cuda_graph.slots.table import SlotTable
from vivace.backends.kernel_cache import Comparison
from vivace.errors import BackendUnavailableError
from vivace.model.cache import KeyValueCache
from vivace.model.lora import adapted
from vivace.model.talker import Qwen3TTS
from vivace.speech import SamplingParams

if TYPE_CHECKING:
    from vivace.backends.cuda_graph.layers.fused import FusedLayers

log = logging.getLogger(__name__)

AUTO_LAYERS = "auto"
CHOICES = (AUTO_LAYERS, "fused", "megakernel", "plain")
TRIAL_ROWS = 2 * TILE
WORST_ERROR = 0.15  # relative; rounding gives about 0.02, a broken kernel about 1


def pick_layers(name: str, model: Qwen3TTS, table: SlotTable) -> Layers:
    if name not in CHOICES:
        raise BackendUnavailableError(f"no layers named {name!r}; try one of: {', '.join(CHOICES)}")
    if name == "plain":
        return PlainLayers(model, table)
    kernels = "fused" if name == AUTO_LAYERS else name
    refusal = fused_refusal(model)
    if refusal is None:
        try:
            tried = _tried_megakernel if kernels == "megakernel" else _tried_fused
            return tried(model, table)
        except Exception as error:  # compilers and drivers raise many types
            refusal = f"they do not work: {str(error).strip().splitlines()[-1]}"
            if name == AUTO_LAYERS:
                log.warning("layers run as plain PyTorch, fused kernels failed: %s", error)
    if name != AUTO_LAYERS:
        raise BackendUnavailableError(f"the {kernels} kernels cannot run here: {refusal}")
    log.info("layers run as plain PyTorch: %s", refusal)
    return PlainLayers(model, table)


def _tried_fused(model: Qwen3TTS, table: SlotTable) -> Layers:
    """Build the fused kernels and compare them with the plain layers on a test prompt."""
    from vivace.backends.cuda_graph.layers.fused import FusedLayers

    return _tried(FusedLayers(model, table), model, table)


def _tried_megakernel(model: Qwen3TTS, table: SlotTable) -> Layers:
    """Build the megakernel and compare it with the plain layers and the fused kernels."""
    from vivace.backends.megakernel.layers import MegakernelLayers

    layers = MegakernelLayers(model, table)
    _tried(layers, model, table, layers.tested, layers.trial)
    layers.load()
    return layers


def _tried(
    layers: FusedLayers,
    model: Qwen3TTS,
    table: SlotTable,
    tested: Sequence[Work] = (),  # what `trial` runs
    trial: Callable[[], float] = lambda: 0.0,  # relative distance of more numbers
) -> Layers:
    """Compile in parallel, then compare, unless these kernels have passed on this machine."""
    shape = (
        layers.name,
        repr(model.config.talker_config),
        model.weights,
        str(table.num_positions),
        f"{model.num_adapters} adapters",
    )
    comparison = Comparison(shape, model.device)
    has_passed = comparison.has_passed
    if (compile_kernels := kernel_compiler(model.device)) is not None:
        tested = [partial(_talker_states, layers, model, table), *tested]
        compile_kernels([*_first_work(layers, model, table), *(() if has_passed else tested)])
    if not has_passed:
        _compare(layers, model, table, trial)
        comparison.note_passed()
    return layers


def _first_work(layers: FusedLayers, model: Qwen3TTS, table: SlotTable) -> list[Work]:
    """The work of the first request: a short prompt, the first frame and the next ones."""
    loop = FrameLoop(layers, model.config.tts_pad_token_id)
    padding = torch.full((1,), table.padding, device=model.device)
    kind = layers.kind([SamplingParams()])
    frames = [
        partial(loop.make, padding, span, kind) for span in (0, spans(table.num_positions)[0])
    ]
    report = torch.zeros(1, table.report_size, dtype=torch.int32, device=model.device)
    frames.append(partial(loop.report, padding, report))
    return [*frames, *(partial(_read_padding, layers, table, rows) for rows in PROMPT_ROWS[:2])]


def _read_padding(layers: Layers, table: SlotTable, num_rows: int) -> None:
    rows = table.hidden.new_zeros(num_rows, table.hidden.shape[1])
    slots = torch.full((num_rows,), table.padding, device=rows.device)
    layers.read_prompts(rows, slots, torch.full_like(slots, table.num_positions))


def _compare(
    layers: FusedLayers, model: Qwen3TTS, table: SlotTable, trial: Callable[[], float]
) -> None:
    loop = FrameLoop(layers, model.config.tts_pad_token_id)
    padding = torch.full((1,), table.padding, device=model.device)
    loop.make(padding, spans(table.num_positions)[0], layers.kind([SamplingParams()]))
    no_page = table.pages[0, 0].clone()
    table.pages[0, 0] = 0
    adapters = _try_adapter(table, table.num_adapters)
    expected = _talker_states(PlainLayers(model, table), model, table)
    found = _talker_states(layers, model, table)
    table.pages[0, 0] = no_page
    for tensor in (table.keys, table.values):
        tensor[:, 0] = 0
    pair = expected[None, -2:]  # used as a hidden state and a code's embedding
    predicted = _distance(layers.predict(pair, 1, adapters), _predict(model, pair, adapters))
    _try_adapter(table, 0)
    errors = (_distance(found, expected), predicted, trial())
    if not all(error < WORST_ERROR for error in errors):
        raise BackendUnavailableError(f"their numbers are off by {max(errors):.1%}")


def _try_adapter(table: SlotTable, number: int) -> Tensor | None:
    """Give slot 0 an adapter. Returns its number as a tensor, None if no adapters are loaded."""
    if table.adapters is not None:
        table.adapters[0] = number
    return table.adapters_of(torch.zeros(1, dtype=torch.int64, device=table.device))


def _talker_states(layers: Layers, model: Qwen3TTS, table: SlotTable) -> Tensor:
    """Hidden states of a test prompt and one more row, [rows + 1, hidden]; overwrites slot 0."""
    x = model.talker.codec_head.weight[: TRIAL_ROWS + 1]  # arbitrary vectors of this width
    positions = torch.arange(TRIAL_ROWS + 1, device=model.device)
    slots = torch.zeros_like(positions)
    prompt = layers.read_prompts(x[:-1], slots[:-1], positions[:-1])
    span = spans(table.num_positions)[0]
    place = KvPositions(slots[-1:], positions[-1:], positions[-1:] + 1, span)
    return torch.cat((prompt, layers.read(x[-1:], place)))


def _predict(model: Qwen3TTS, pair: Tensor, adapters: Tensor | None) -> Tensor:
    """Logits of codebook 1."""
    predictor = model.talker.code_predictor
    cache = KeyValueCache(predictor.config.num_hidden_layers)
    return adapted(predictor.lm_head[0], predictor(pair, 0, cache, adapters)[:, -1], adapters)


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def fused_refusal(model: Qwen3TTS) -> str | None:
    """Why the fused kernels cannot run this model here, or None."""
    if model.device.type != "cuda":
        return f"they need an NVIDIA GPU; the model is on {model.device}"
    if model.dtype != torch.bfloat16:
        return "they support bfloat16 only; float32 runs as plain PyTorch"
    if torch.cuda.get_device_capability(model.device) < (8, 0):
        return "bfloat16 needs a GPU of compute capability 8.0 or newer"
    return triton_refusal()
