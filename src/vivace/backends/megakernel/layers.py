"""The fused layers, with talker and predictor as one persistent kernel each; up to eight slots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from vivace.backends.cuda_graph.compile import is_collecting
from vivace.backends.cuda_graph.graphs import Work
from vivace.backends.cuda_graph.layers.frame import KvPositions, SamplingRows, SamplingState
from vivace.backends.cuda_graph.layers.fused import FusedLayers
from vivace.backends.cuda_graph.slots.table import SlotTable
from vivace.backends.frame_maker import FrameCodes
from vivace.backends.megakernel.kernel import start_compiling
from vivace.backends.megakernel.predictor import Dimensions, PredictorKernel
from vivace.backends.megakernel.talker import TalkerDimensions, TalkerKernel
from vivace.model.talker import Qwen3TTS


class MegakernelLayers(FusedLayers):
    name = "megakernel"
    frames_per_graph = 4  # equals LOOKAHEAD: one launch per queued batch of frames

    def __init__(self, model: Qwen3TTS, table: SlotTable) -> None:
        super().__init__(model, table)
        config = model.config.talker_config
        self._model = model
        self._size = Dimensions.of(config, model.weights)
        self._talker_size = TalkerDimensions.of(config, model.weights)
        sizes = {"predictor": self._size, "talker": self._talker_size}
        self._code = start_compiling(sizes, model.device)  # Triton compiles at the same time

    def load(self) -> None:
        """Wait for the compiler and load both kernels."""
        _ = self.kernel, self.talker

    @cached_property
    def kernel(self) -> PredictorKernel:
        return PredictorKernel(self._model, self._size, self._code["predictor"].result())

    @cached_property
    def talker(self) -> TalkerKernel:
        code = self._code["talker"].result()
        return TalkerKernel(self._model, self._table, self._heads, self._talker_size, code)

    @property
    def num_packed_bytes(self) -> int:
        """Bytes of weight copies: fp8 numbers or padded rows."""
        return self.kernel.num_packed_bytes + self.talker.num_packed_bytes

    @property
    def num_faults(self) -> int:
        """Number of blocks that timed out while waiting for another block, in all launches."""
        return self.kernel.num_faults + self.talker.num_faults

    def read(self, x: Tensor, place: KvPositions) -> Tensor:
        return torch.empty_like(x) if is_collecting() else self.talker.run(x, place)

    def _draw_residual(
        self, x: Tensor, noise: Tensor, draws: SamplingState, drawn: FrameCodes
    ) -> None:
        if not is_collecting():
            self.kernel.run(x, noise[:, self._noise_starts[1] :], draws.predictor, drawn)

    def force(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """Teacher-forced logits [B, groups - 1, codes] of hidden states [B, hidden] and codes."""
        batch, num_groups = codes.shape
        num_codes, device = self._predictor.config.vocab_size, codes.device
        logits = hidden.new_empty(batch, num_groups - 1, num_codes)
        ones = torch.ones(batch, device=device)
        self.kernel.run(
            torch.stack((hidden, self._tables[0](codes[:, 0])), dim=1),
            torch.zeros(batch, num_codes * (num_groups - 1), device=device),
            SamplingRows(ones, ones, ones.long(), num_codes * ones.long() - 1),
            FrameCodes(
                codes.clone(), torch.zeros_like(hidden, dtype=torch.float), ones.to(torch.int8)
            ),
            forced=codes,
            logits=logits,
        )
        return logits

    @property
    def tested(self) -> Sequence[Work]:
        """The work of `trial` with the fused kernels, and their predictor."""
        hidden, codes = self._test_input()
        pair = hidden[None]  # used as a hidden state and a code's embedding
        return partial(self._force_fused, hidden, codes), partial(self.predict, pair, 1)

    def trial(self) -> float:
        """Relative distance of its logits to those of the fused kernels, for a test input."""
        hidden, codes = self._test_input()
        found, expected = self.force(hidden, codes), self._force_fused(hidden, codes)
        difference = (found.float() - expected.float()).norm() / expected.float().norm()
        return float("inf") if self.num_faults else float(difference)

    def _test_input(self) -> tuple[Tensor, Tensor]:
        hidden = self._talker.codec_head.weight[:2].contiguous()
        codes = torch.arange(2 * self._config.num_code_groups, device=hidden.device).view(2, -1)
        return hidden, codes

    def _force_fused(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """`force` with the fused kernels."""
        x, logits = hidden[:, None], list[Tensor]()
        for book in range(1, codes.shape[1]):
            vector = self._tables[book - 1](codes[:, book - 1])[:, None]
            x = torch.cat((x, vector), dim=1) if book == 1 else vector
            logits.append(self.predict(x, book))
        return torch.stack(logits, dim=1)
