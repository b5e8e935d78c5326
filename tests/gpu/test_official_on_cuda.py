"""Teacher-forced logits in bfloat16 against the official ones, which were made on a CPU.

A GPU sums in another order, and every layer propagates rounding differences, in PyTorch's layers as
in the fused kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.support.tiny import Tiny
from vivace.backends.cuda_graph.backend import CudaGraphBackend

pytest.importorskip("triton")
from tests.support.teacher_forced import distance, predictor_logits, share_within, talker_states

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CUDA = torch.device("cuda")
OFFICIAL = load_file(Path(__file__).parent.parent / "golden" / "bf16.safetensors")
MODELS = ("custom_voice", "base_projected")
NAMES = ("talker", "predictor")
Load = Callable[[str, str], CudaGraphBackend]


@pytest.fixture
def load(tiny: Callable[[str], Tiny]) -> Load:
    def load(model: str, layers: str) -> CudaGraphBackend:
        checkpoint = tiny(model).checkpoint
        return CudaGraphBackend(
            checkpoint.load_model(CUDA, torch.bfloat16),
            checkpoint.load_codec(CUDA),
            max_streams=2,
            max_frames=640,
            layers=layers,
            is_capturing=False,
        )

    return load


def logits(backend: CudaGraphBackend, model: str) -> tuple[Tensor, Tensor]:
    """Logits of the talker (step by step) and of the predictor."""
    talker = backend.model.talker
    prompt, frames, hidden, codes = (
        OFFICIAL[f"{model}.{name}"].to(CUDA)
        for name in ("prefill_rows", "frame_rows", "hidden", "codes")
    )
    states = talker_states(backend, torch.cat((prompt, frames)))[len(prompt) - 1 :]
    columns = [*range(64), talker.config.codec_eos_token_id]
    return talker.codec_head(states)[:, columns], predictor_logits(backend, hidden, codes.long())


@pytest.mark.parametrize("layers", ["fused", "plain"])
@pytest.mark.parametrize("model", MODELS)
@torch.inference_mode()
def test_logits_are_close_to_official_ones(load: Load, model: str, layers: str) -> None:
    talker, predictor = logits(load(model, layers), model)
    assert distance(talker, OFFICIAL[f"{model}.logits"]) < 0.02
    assert distance(predictor, OFFICIAL[f"{model}.predictor_logits"]) < 0.02


@pytest.mark.parametrize("model", MODELS)
@torch.inference_mode()
def test_fused_logits_are_within_two_ulp_of_pytorch_on_the_same_gpu(load: Load, model: str) -> None:
    fused, plain = (logits(load(model, layers), model) for layers in ("fused", "plain"))
    official = [OFFICIAL[f"{model}.{name}"].to(CUDA) for name in ("logits", "predictor_logits")]
    for name, ours, theirs, golden in zip(NAMES, fused, plain, official, strict=True):
        share = share_within(ours, theirs, 2)
        golden_shares = [round(share_within(found, golden, 2), 4) for found in (ours, theirs)]
        print(f"{name} {model}: {share:.4f}; to the goldens {golden_shares}")  # noqa: T201 - the log
        assert share >= 0.99
