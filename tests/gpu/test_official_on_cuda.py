"""Teacher-forced logits in bfloat16 against the official ones, which were made on a CPU.

A GPU sums in another order, and a rounding that falls the other way is passed on by every layer, by
PyTorch's own layers as by ours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from conftest import Tiny
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.frame import Place
from vivace.model.cache import KeyValueCache

pytest.importorskip("triton")
from vivace.backends.cuda_graph.fused import FusedComputer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CUDA = torch.device("cuda")
OFFICIAL = load_file(Path(__file__).parent.parent / "golden" / "bf16.safetensors")
MODELS = ("custom_voice", "base_projected")
Load = Callable[[str, str], CudaGraphBackend]


@pytest.fixture
def load(tiny: Callable[[str], Tiny]) -> Load:
    def load(model: str, computer: str) -> CudaGraphBackend:
        checkpoint = tiny(model).checkpoint
        return CudaGraphBackend(
            checkpoint.load_model(CUDA, torch.bfloat16),
            checkpoint.load_codec(CUDA),
            max_streams=2,
            max_frames=640,
            computer=computer,
            is_capturing=False,
        )

    return load


def distance(found: Tensor, expected: Tensor) -> float:
    expected = expected.to(CUDA).float()
    return float((found.float() - expected).norm() / expected.norm())


def talker_logits(backend: CudaGraphBackend, model: str) -> Tensor:
    talker = backend.model.talker
    prompt = OFFICIAL[f"{model}.prefill_rows"].to(CUDA)
    frames = OFFICIAL[f"{model}.frame_rows"].to(CUDA)
    slot = torch.zeros(1, dtype=torch.int64, device=CUDA)
    hidden = [
        backend._computer.read(row[None], Place(slot, slot + i, slot + i + 1, span=1024))
        for i, row in enumerate(torch.cat((prompt, frames)))
    ]
    columns = [*range(64), talker.config.codec_eos_token_id]
    logits: Tensor = talker.codec_head(torch.cat(hidden[len(prompt) - 1 :]))[:, columns]
    return logits


def predictor_logits(backend: CudaGraphBackend, model: str) -> Tensor:
    talker, computer = backend.model.talker, backend._computer
    predictor = talker.code_predictor
    codes = OFFICIAL[f"{model}.codes"].long().to(CUDA)
    hidden = OFFICIAL[f"{model}.hidden"].to(CUDA)
    tables = [talker.model.codec_embedding, *predictor.model.codec_embedding]
    cache = KeyValueCache(predictor.config.num_hidden_layers, codes.shape[1])
    logits = []
    for book in range(1, codes.shape[1]):
        x = tables[book - 1](codes[:, book - 1])[:, None]
        x = torch.cat((hidden[:, None], x), dim=1) if book == 1 else x
        if isinstance(computer, FusedComputer):
            logits.append(computer.predict(x, book))
        else:
            out = predictor(x, cache.length, cache)
            logits.append(predictor.lm_head[book - 1](out[:, -1]))
    return torch.stack(logits, dim=1)


@pytest.mark.parametrize("computer", ["fused", "plain"])
@pytest.mark.parametrize("model", MODELS)
@torch.inference_mode()
def test_logits_are_near_the_official_ones(load: Load, model: str, computer: str) -> None:
    backend = load(model, computer)
    assert distance(talker_logits(backend, model), OFFICIAL[f"{model}.logits"]) < 0.02
    expected = OFFICIAL[f"{model}.predictor_logits"]
    assert distance(predictor_logits(backend, model), expected) < 0.02
