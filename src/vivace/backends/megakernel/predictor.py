"""The code predictor's frame as one kernel launch; see predictor.cu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from torch import Tensor

from vivace.backends.megakernel.kernel import (
    MAX_BATCH,
    Kernel,
    StackSize,
    head_bytes,
    layer_tensors,
    padded,
    stack_sizes,
)
from vivace.model.config import TalkerConfig, Weights
from vivace.model.layers import Linear
from vivace.model.talker import Qwen3TTS

if TYPE_CHECKING:
    from vivace.backends.cuda_graph.layers.frame import SamplingRows
    from vivace.backends.frame_maker import FrameCodes


POSITIONS = 16  # maximum per frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions(StackSize):
    books: int
    vocab: int
    width: int  # the talker's hidden size
    kept_layers: int = 1  # number of layers whose weights should stay in the L2 cache

    @classmethod
    def of(cls, talker: TalkerConfig, weights: Weights = "full") -> Dimensions:
        config = talker.code_predictor_config
        is_fp8 = int(weights == "fp8")
        return cls(
            **stack_sizes(config),
            books=talker.num_code_groups,
            vocab=config.vocab_size,
            width=talker.hidden_size,
            fp8_mlp=is_fp8,
            fp8_others=is_fp8,
        )

    @property
    def refusal(self) -> str | None:
        """Why the kernel does not support them, or None; predictor.cu asserts the same."""
        fits = (
            self.fits(max_group=4)
            and not any(size % 64 for size in (self.width, self.vocab))
            and self.vocab <= 2048
            and 2 <= self.books <= POSITIONS
        )
        return None if fits else "the predictor's dimensions do not fit its tiles"


class PredictorKernel(Kernel):
    def __init__(self, model: Qwen3TTS, size: Dimensions, code: bytes) -> None:
        super().__init__("predictor", code, size.slot_bytes, model.device)
        self._dimensions = size
        self.set_weights(self._tensors(model))

    def _tensors(self, model: Qwen3TTS) -> list[Tensor]:
        """Weights in the order of `Weights` in predictor.cu."""
        predictor = model.talker.code_predictor
        pack = self.packer(is_fp8=bool(self._dimensions.fp8_others))
        norm = predictor.model.norm.weight
        layers = layer_tensors(predictor.model.layers, mlp=pack, others=pack)
        tables = predictor.rope.span(0, self._dimensions.books, model.talker.codec_head.weight)
        rope = [part.contiguous() for part in tables]
        projection = predictor.small_to_mtp_projection
        if isinstance(projection, Linear):
            projections = [pack(projection.weight), cast("Tensor", projection.bias)]
        else:
            projections = [norm, norm]  # not read
        heads = [pack(cast("Linear", head).weight) for head in predictor.lm_head]
        embeddings = [table.weight for table in model.talker.code_tables[1:]]
        return [
            *layers,
            norm,
            *(part.contiguous() for part in rope),
            *projections,
            *heads,
            *embeddings,
        ]

    def run(
        self,
        x: Tensor,  # [B, 2, hidden]: the talker's hidden state and the first code's embedding
        noise: Tensor,  # [B, codes] from codebook 1 on, rows of any stride
        sampling: SamplingRows,
        drawn: FrameCodes,  # codebook 0 is filled in
        *,
        forced: Tensor | None = None,  # int64 [B, groups]: codes for teacher forcing
        logits: Tensor | None = None,  # bfloat16 [B, groups - 1, codes]: output, all logits
    ) -> None:
        """Draw codebooks 1 and up of a frame."""
        batch = len(x)
        self.check_shared(self._fixed_bytes(batch), batch)
        self.launch(
            x=x,
            noise=noise,
            temperature=sampling.temperature,
            is_greedy=sampling.is_greedy,
            last=sampling.last,
            top_p=sampling.top_p,
            codes=drawn.codes,
            is_finite=drawn.is_finite,
            code_sum=drawn.code_sum,
            forced=forced,
            logits=logits,
            noise_pitch=noise.stride(0),
            batch=batch,
        )

    def _fixed_bytes(self, batch: int) -> int:
        """Shared memory in bytes without the ring buffer."""
        size = self._dimensions
        units = -(-batch * size.kv_heads // self.num_blocks)  # of attention, in one block
        keys = units * size.layers * 2 * POSITIONS * head_bytes(size.head_dim)
        most_rows = 2 * batch if 2 * batch <= MAX_BATCH else batch  # of a frame's first sweep
        widest = padded(max(size.inter, size.mixed, size.width))
        rows = most_rows * (2 * padded(size.hidden) + 16 + 2 * widest + 16)
        return self.shared_bytes + keys + rows
