"""Prefill in a batch, with any pass size and from the prefix cache equals single prefill."""

from __future__ import annotations

import copy
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.official_calls import official_items
from tests.support.slots import params, speak, stored
from tests.support.tiny import Tiny
from vivace.backends.cuda_graph import backend as backend_module
from vivace.backends.cuda_graph import prefill as prefill_module
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.codec import graphs as codec_graphs
from vivace.backends.cuda_graph.layers import selection
from vivace.backends.cuda_graph.layers.frame import KvPositions
from vivace.backends.cuda_graph.layers.plain import PlainLayers
from vivace.backends.cuda_graph.slots.state_cache import StateCache
from vivace.errors import BackendError, BackendUnavailableError
from vivace.prompt import Prompt, build_prompt
from vivace.speech import SamplingParams

NUM_FRAMES = 4


class PackingLayers(PlainLayers):
    """Accepts rows of several prompts, like the fused kernels, and computes them one by one."""

    packs_prompts = True

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.passes: list[int] = []  # rows that are no padding

    def read_prompts(self, x: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        is_row = positions < self._table.num_positions
        self.passes.append(int(is_row.sum()))
        assert all(len(set(slots[i : i + 8].tolist())) == 1 for i in range(0, len(x), 8))
        hidden = torch.zeros_like(x)
        for row in range(len(x)):
            one = slice(row, row + 1)
            place = KvPositions(
                slots[one], positions[one], positions[one] + 1, int(positions[row]) + 1
            )
            if is_row[row]:
                hidden[one] = self.read(x[one], place)
        return hidden


@pytest.fixture(scope="module")
def part(tiny: Callable[[str], Tiny]) -> Tiny:
    return tiny("base")


@pytest.fixture
def packing(part: Tiny, monkeypatch: pytest.MonkeyPatch) -> CudaGraphBackend:
    monkeypatch.setattr(backend_module, "pick_layers", lambda _, *args: PackingLayers(*args))
    return graph_backend(part)


def graph_backend(part: Tiny, max_streams: int = 8) -> CudaGraphBackend:
    return CudaGraphBackend(part.model, part.codec, max_streams=max_streams, max_frames=320)


def brief(seed: int) -> SamplingParams:
    return params(seed, max_frames=NUM_FRAMES, min_frames=NUM_FRAMES)


def cloned_prompts(part: Tiny) -> list[Prompt]:
    """Prompts with a reference recording, and one with a speaker vector only."""
    prompts = [item.prompt(part) for item in official_items("base")]
    assert any(p.reference is None for p in prompts[:6])
    assert any(p.reference is not None for p in prompts[:6])
    return prompts[:6]


def read(backend: CudaGraphBackend, prompts: list[Prompt]) -> list[list[Tensor]]:
    """Admit prompts together; return each hidden state, keys and values."""
    slots = backend.admit_many([(prompt, params(1)) for prompt in prompts])
    found, table = [], backend._table
    for slot, prompt in zip(slots, prompts, strict=True):
        assert isinstance(slot, int)
        row = backend._slots[slot].row
        caches = (stored(table, cache, row, len(prompt)) for cache in (table.keys, table.values))
        found.append([table.hidden[row].clone(), *caches])
        backend.release(slot)
    return found


def assert_same(found: list[list[Tensor]], expected: list[list[Tensor]]) -> None:
    for some, others in zip(found, expected, strict=True):
        for one, other in zip(some, others, strict=True):
            assert torch.equal(one, other)


# --- Together ---------------------------------------------------------------------------------


@pytest.mark.ci
def test_prompts_admitted_together_equal_single_admission(part: Tiny) -> None:
    backend, eager = graph_backend(part), part.backend()
    requests = [(prompt, brief(seed)) for seed, prompt in enumerate(cloned_prompts(part))]
    slots = [slot for slot in backend.admit_many(requests) if isinstance(slot, int)]
    frames = backend.step(slots, NUM_FRAMES)
    for row, request in enumerate(requests):
        assert np.array_equal(frames.of(row), speak(eager, *request))


def test_unadmittable_prompt_returns_its_error(part: Tiny) -> None:
    backend, prompt = graph_backend(part, max_streams=2), cloned_prompts(part)[0]
    limit = backend_module.PROMPT_POSITIONS + backend.max_frames
    config = part.checkpoint.config
    long = build_prompt(config, [1] * limit, role_ids=[1, 2, 3], layout="whole")
    good = [(prompt, brief(1)), (prompt, brief(2))]
    requests = [
        (prompt, SamplingParams()),
        good[0],
        (long, params(4)),
        good[1],
        (prompt, params(3)),
    ]
    no_seed, first, no_room, second, no_slot = backend.admit_many(requests)
    for reason, word in ((no_seed, "seed"), (no_room, "rows"), (no_slot, "max_streams")):
        assert isinstance(reason, BackendError)
        assert word in str(reason)
    frames = backend.step([s for s in (first, second) if isinstance(s, int)], NUM_FRAMES)
    for row, request in enumerate(good):
        assert np.array_equal(frames.of(row), speak(part.backend(), *request))
    assert backend.admit_many([]) == []


def test_failed_admission_frees_its_slot(part: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, prompt = graph_backend(part, max_streams=2), cloned_prompts(part)[0]

    def refuse(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(backend._prefill, "run", refuse)
        with pytest.raises(RuntimeError, match="memory"):
            backend.admit_many([(prompt, params(1)), (prompt, params(2))])
    assert len(backend.admit_many([(prompt, params(1)), (prompt, params(2))])) == 2
    assert backend._reservations.free == []


# --- Packed -----------------------------------------------------------------------------------


@pytest.mark.ci
def test_packed_prompts_equal_single_ones_for_any_pass_size(
    part: Tiny, packing: CudaGraphBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = cloned_prompts(part)
    alone = [read(packing, [prompt])[0] for prompt in prompts]
    layers = packing._layers
    assert isinstance(layers, PackingLayers)
    layers.passes.clear()
    assert_same(read(packing, prompts), alone)
    assert layers.passes == [sum(map(len, prompts))]
    monkeypatch.setattr(prefill_module, "PROMPT_ROWS", (8, 16))
    # Some CPUs round the text projection differently for other numbers of rows.
    torch.testing.assert_close(read(packing, prompts), alone, rtol=1e-4, atol=1e-5)
    assert max(layers.passes[1:]) <= 16
    assert sum(layers.passes[1:]) == sum(map(len, prompts))


def test_packed_prompts_equal_plain_layers(
    part: Tiny, packing: CudaGraphBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "pick_layers", selection.pick_layers)
    prompts = cloned_prompts(part)
    packed, plain = read(packing, prompts), read(graph_backend(part), prompts)
    for some, others in zip(packed, plain, strict=True):
        for one, other in zip(some, others, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-5)


# --- Caches of voices -------------------------------------------------------------------------


def test_shared_prefix_is_prefilled_once_and_copied(
    part: Tiny, packing: CudaGraphBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = cloned_prompts(part)
    expected = read(packing, prompts)
    assert packing.memory()["voice cache"] == packing._codec.num_kept_bytes > 0
    monkeypatch.setattr(prefill_module, "FEWEST_SHARED", 8)
    layers = packing._layers
    assert isinstance(layers, PackingLayers)
    for _ in range(2):
        layers.passes.clear()
        assert_same(read(packing, prompts), expected)
    num_shared = sum(min(p.num_shared_rows, len(p) - 1) for p in prompts)
    assert layers.passes == [sum(map(len, prompts)) - num_shared]
    assert packing.memory()["voice cache"] > packing._codec.num_kept_bytes


def test_other_voice_shares_no_prefix(
    part: Tiny, packing: CudaGraphBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_module, "FEWEST_SHARED", 8)
    prompt = next(p for p in cloned_prompts(part) if p.speaker is not None)
    assert prompt.speaker is not None
    other = copy.copy(prompt)
    object.__setattr__(other, "speaker", prompt.speaker + 1)
    first, second = read(packing, [prompt]), read(packing, [other])
    assert not torch.equal(first[0][0], second[0][0])
    assert len(packing._prefill._kept) == 2
    assert_same(read(packing, [other, prompt]), [second[0], first[0]])


def test_reference_is_decoded_once_and_cached(part: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = graph_backend(part)
    prompt = next(p for p in cloned_prompts(part) if p.reference is not None)
    passes = list[int]()
    queue = backend._codec._queue_pass

    def counted(*arguments: Any) -> Any:
        passes.append(1)
        return queue(*arguments)

    monkeypatch.setattr(backend._codec, "_queue_pass", counted)

    def samples() -> tuple[int, bytes]:
        passes.clear()
        slot = backend.admit(prompt, params(3))
        num_heard = len(passes)
        made = backend.render([slot], backend.step([slot], 2))[0]
        backend.release(slot)
        return num_heard, made.tobytes()

    first, second = samples(), samples()
    assert first[0] > 0
    assert second[0] == 0
    assert first[1] == second[1]


def test_reference_cache_is_bounded(part: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_graphs, "MAX_KEPT", 2)
    backend = graph_backend(part)
    sizes = []
    for seed in range(4):
        codes = np.random.default_rng(seed).integers(64, size=(3, 16))
        with torch.inference_mode():
            backend._codec.load_reference(0, codes)
        sizes.append(backend.memory()["voice cache"])
    assert sizes[1:] == [2 * sizes[0]] * 3


def test_least_recently_used_state_is_evicted() -> None:
    kept, state = StateCache(max_bytes=8), (torch.zeros(1),)  # four bytes
    kept.put("a", state)
    kept.put("b", state)
    assert kept.get("a") is state
    kept.put("c", state)
    assert ["a" in kept, "b" in kept, "c" in kept] == [True, False, True]
    kept.put("d", (torch.zeros(3),))  # larger than all room
    assert "d" not in kept
    assert (len(kept), kept.num_bytes) == (2, 8)
    kept.put("a", (torch.zeros(2),))
    assert (len(kept), kept.num_bytes) == (1, 8)


# --- The trial at load ------------------------------------------------------------------------


@pytest.fixture
def fused_module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Stub of the kernels' module, which cannot run on a CPU."""
    monkeypatch.setattr(selection, "fused_refusal", lambda _: None)
    module = types.ModuleType("fused")
    monkeypatch.setitem(sys.modules, "vivace.backends.cuda_graph.layers.fused", module)
    return module


class Exact(PlainLayers):
    name = "fused"

    def predict(self, x: Tensor, book: int, adapters: Tensor | None = None) -> Tensor:
        predictor = self._predictor
        logits: Tensor = predictor.lm_head[book - 1](predictor(x, 0, self._cache(len(x)))[:, -1])
        return logits


class Distorted(Exact):
    def predict(self, x: Tensor, book: int, adapters: Tensor | None = None) -> Tensor:
        return 1.3 * super().predict(x, book, adapters)


class NonFinite(Exact):
    def read_prompts(self, x: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        return super().read_prompts(x, slots, positions) * torch.nan


def test_correct_kernels_are_used_and_leave_no_state(
    part: Tiny, fused_module: types.ModuleType
) -> None:
    fused_module.FusedLayers = Exact  # type: ignore[attr-defined]
    backend = graph_backend(part)
    assert backend.layers == "fused"
    assert not backend._table.keys[:, :-1].any()  # the last page is the padding's
    assert not backend._table.values[:, :-1].any()
    assert bool((backend._table.pages == backend._pool.size).all())


@pytest.mark.parametrize("broken", [Distorted, NonFinite])
def test_wrong_kernels_fall_back_to_plain_layers(
    part: Tiny,
    fused_module: types.ModuleType,
    caplog: pytest.LogCaptureFixture,
    broken: type[Exact],
) -> None:
    fused_module.FusedLayers = broken  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING):
        assert graph_backend(part).layers == "plain"
    assert "off by" in caplog.text
    with pytest.raises(BackendUnavailableError, match="off by"):
        CudaGraphBackend(part.model, part.codec, max_streams=1, layers="fused")


# --- Text vectors -----------------------------------------------------------------------------


def test_folded_text_vectors_equal_the_projected_ones_in_less_memory(part: Tiny) -> None:
    model = copy.deepcopy(part.model)
    ids = torch.tensor([0, 5, part.checkpoint.config.tts_pad_token_id, 5])
    expected = part.model.talker.text_vectors(ids)
    for _ in range(2):  # a second backend folds once more
        with torch.inference_mode():
            model.talker.fold_texts()
        found = model.talker.text_vectors(ids)
        assert torch.allclose(found, expected, rtol=0, atol=1e-6)
        assert torch.equal(found[1], found[3])
    num_numbers = [sum(p.numel() for p in each.parameters()) for each in (model, part.model)]
    assert num_numbers[0] < num_numbers[1]


def test_folded_model_gives_the_same_codes(part: Tiny) -> None:
    folded = copy.deepcopy(part.model)
    with torch.inference_mode():
        folded.talker.fold_texts()
    backend = CudaGraphBackend(folded, part.codec, max_streams=2, max_frames=320)
    prompt = cloned_prompts(part)[0]
    assert np.array_equal(speak(backend, prompt, brief(3)), speak(part.backend(), prompt, brief(3)))
