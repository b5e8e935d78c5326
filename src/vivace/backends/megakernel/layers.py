"""The fused layers with the predictor's frame as one persistent kernel, for up to eight slots."""

from __future__ import annotations

from torch import Tensor

from vivace.backends.cuda_graph.frame import Draws
from vivace.backends.cuda_graph.fused import FusedComputer, knobs
from vivace.backends.cuda_graph.launch import Drawn
from vivace.backends.cuda_graph.slot_table import Scale, SlotTable
from vivace.backends.megakernel.predictor import PredictorKernel
from vivace.model.talker import Qwen3TTS


class MegakernelLayers(FusedComputer):
    """The same bits as the fused kernels, so that the size of a batch may decide which run."""

    name = "megakernel"

    def __init__(self, model: Qwen3TTS, table: SlotTable) -> None:
        super().__init__(model, table)
        self._kernel = PredictorKernel(model)

    def _speak_rest(self, x: Tensor, noise: Tensor, draws: Draws, drawn: Drawn) -> None:
        rest = noise[:, self._noise_starts[1] :]
        top_p = draws.scales[Scale.PREDICTOR_TOP_P]
        self._kernel.run(x, rest, knobs(draws, is_first=False), top_p, drawn)
