"""The persistent kernel on a GPU, at released dimensions with random weights."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from shapes import load_configs, random_module
from teacher_forced import distance, share_within

from vivace.backends.cuda_graph.frame import DrawKind, Draws, FrameCodes
from vivace.backends.cuda_graph.slot_table import Number, Scale, SlotTable
from vivace.backends.megakernel.backend import MegakernelBackend
from vivace.backends.megakernel.layers import MegakernelLayers
from vivace.model.cache import KeyValueCache
from vivace.model.code_predictor import CodePredictor
from vivace.model.codec import Codec
from vivace.model.config import parse_model_config
from vivace.model.talker import Qwen3TTS
from vivace.prompt import build_prompt
from vivace.sampling import Shape, shape_scores
from vivace.speech import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module", params=["0.6B-CustomVoice", "1.7B-CustomVoice"])
def layers(request: pytest.FixtureRequest) -> MegakernelLayers:
    with torch.inference_mode():
        raw, _ = load_configs(request.param)
        config = parse_model_config(raw)
        model = random_module(Qwen3TTS, config, CUDA, torch.bfloat16)
        table = SlotTable(config.talker_config, 8, 256, 64, CUDA, torch.bfloat16)
        return MegakernelLayers(model, table)


def hidden_states(layers: MegakernelLayers, batch: int) -> Tensor:
    return torch.randn(batch, layers._config.hidden_size, device=CUDA).bfloat16()


def make_draws(batch: int, frame: int = 0, *, top_k: int = 50, top_p: float = 1.0) -> Draws:
    numbers = torch.zeros(len(Number), batch, dtype=torch.int64, device=CUDA)
    numbers[Number.SEED] = torch.arange(batch, device=CUDA) * 7919 + 12345
    numbers[Number.NUM_FRAMES] = frame
    numbers[Number.LAST] = numbers[Number.PREDICTOR_LAST] = top_k - 1
    scales = torch.ones(len(Scale), batch, device=CUDA)
    scales[Scale.TEMPERATURE] = scales[Scale.PREDICTOR_TEMPERATURE] = 0.9
    scales[Scale.PREDICTOR_TOP_P] = top_p
    return Draws(
        kind=DrawKind(None, has_top_p=False),
        numbers=numbers,
        scales=scales,
        history=torch.zeros(batch, 3072, dtype=torch.bool, device=CUDA),
        is_early=torch.zeros(batch, dtype=torch.bool, device=CUDA),
    )


def take_row(draws: Draws, row: int) -> Draws:
    return Draws(
        kind=draws.kind,
        numbers=draws.numbers[:, row : row + 1].contiguous(),
        scales=draws.scales[:, row : row + 1].contiguous(),
        history=draws.history[row : row + 1],
        is_early=draws.is_early[row : row + 1],
    )


def forced_logits(
    predictor: CodePredictor, tables: Sequence[nn.Embedding], hidden: Tensor, codes: Tensor
) -> Tensor:
    """PyTorch's own, in the predictor's dtype."""
    cache = KeyValueCache(predictor.config.num_hidden_layers, codes.shape[1])
    logits = []
    for book in range(1, codes.shape[1]):
        x = tables[book - 1](codes[:, book - 1])[:, None]
        x = (torch.cat((hidden[:, None], x), dim=1) if book == 1 else x).to(hidden.dtype)
        out = predictor(x, cache.length, cache)
        logits.append(predictor.lm_head[book - 1](out[:, -1]))
    return torch.stack(logits, dim=1)


def test_teacher_forced_logits_are_no_further_from_float32_than_pytorchs(
    layers: MegakernelLayers,
) -> None:
    predictor, tables = layers._predictor, layers._tables
    wide = copy.deepcopy(predictor).float()
    for batch in (1, 4, 8):
        hidden, codes = hidden_states(layers, batch), torch.randint(2048, (batch, 16), device=CUDA)
        exact = forced_logits(wide, tables, hidden.float(), codes)
        plain = forced_logits(predictor, tables, hidden, codes)
        found = layers.force(hidden, codes)
        share = share_within(found, plain, ulps=2)
        errors = [distance(each, exact) for each in (found, plain)]
        sys.stdout.write(f"batch {batch}: within 2 ulp of PyTorch {share}, errors {errors}\n")
        assert errors[0] < 1.05 * errors[1]
    assert not layers.kernel.num_faults


@pytest.mark.parametrize("batch", [2, 3, 5, 8])
def test_a_slots_codes_do_not_depend_on_its_batch(layers: MegakernelLayers, batch: int) -> None:
    hidden = hidden_states(layers, batch)
    for frame in range(3):
        draws = make_draws(batch, frame)
        together = layers.speak(hidden, draws)
        assert bool(together.is_finite.all())
        for row in range(batch):
            alone = layers.speak(hidden[row : row + 1], take_row(draws, row))
            assert torch.equal(alone.codes[0], together.codes[row])
            assert torch.equal(alone.code_sum[0], together.code_sum[row])


def test_the_drawn_codes_are_those_of_sampling_py(layers: MegakernelLayers) -> None:
    """Greedy, top-k of several sizes, and top-p, from the kernel's own logits."""
    for batch, top_k, top_p in ((1, 50, 1.0), (3, 1, 1.0), (2, 2048, 1.0), (2, 50, 0.7)):
        hidden, draws = hidden_states(layers, batch), make_draws(batch, top_k=top_k, top_p=top_p)
        spoken = layers.speak(hidden, draws)
        logits = layers.force(hidden, spoken.codes).float()
        noise = layers._noise(draws)[:, layers._noise_starts[1] :].view(batch, 15, -1)
        shape = Shape.of([(0.9, top_k, top_p)] * batch, 2048, CUDA)
        for book in range(15):
            scores = shape_scores(logits[:, book], shape)
            assert torch.equal((scores + noise[:, book]).argmax(-1), spoken.codes[:, book + 1])


def test_the_sum_of_embeddings_is_that_of_the_codes(layers: MegakernelLayers) -> None:
    spoken: FrameCodes = layers.speak(hidden_states(layers, 2), make_draws(2))
    expected = sum(
        table(spoken.codes[:, book]).float() for book, table in enumerate(layers._tables)
    )
    assert torch.equal(spoken.code_sum, expected.bfloat16())  # type: ignore[union-attr]


def test_non_finite_logits_fail_only_their_slot(layers: MegakernelLayers) -> None:
    hidden = hidden_states(layers, 3)
    hidden[1] = float("nan")
    assert layers.speak(hidden, make_draws(3)).is_finite.tolist() == [True, False, True]


def test_ten_thousand_frames_neither_hang_nor_drift(layers: MegakernelLayers) -> None:
    hidden, draws = hidden_states(layers, 1), make_draws(1)
    expected = layers.speak(hidden, draws).codes
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda.synchronize()
        graph.capture_begin()
        codes = layers.speak(hidden, draws).codes
        graph.capture_end()
        for _ in range(20):
            for _ in range(500):
                graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(codes, expected)
    assert not layers.kernel.num_faults


def test_streams_of_the_backend_are_the_same_alone_and_together() -> None:
    raw, codec_config = load_configs("0.6B-CustomVoice")
    config = parse_model_config(raw)
    model = random_module(Qwen3TTS, config, CUDA, torch.bfloat16)
    codec = random_module(Codec, codec_config, CUDA, torch.float32)
    backend = MegakernelBackend(model, codec, max_streams=4, max_frames=64)
    assert backend.facts()["layers"].startswith("megakernel")
    params = [SamplingParams(seed=n, min_frames=20, max_frames=20) for n in range(4)]
    prompts = [
        build_prompt(
            config, list(range(50, 60 + n)), role_ids=[1, 2, 3], layout="whole", preset="ryan"
        )
        for n in range(4)
    ]
    alone = []
    for prompt, sampling in zip(prompts, params, strict=True):
        slot = backend.admit(prompt, sampling)
        alone.append(backend.step([slot], 20).of(0))
        backend.release(slot)
    slots = [backend.admit(*each) for each in zip(prompts, params, strict=True)]
    together = backend.step(slots, 20)
    for row, codes in enumerate(alone):
        assert np.array_equal(together.of(row), codes)
