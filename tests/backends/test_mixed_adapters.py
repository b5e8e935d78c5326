"""Batches of slots with different adapters: the codes of each slot alone, and of merged weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.adapters import CPU, merged_model, mixing_model, random_adapter
from tests.support.slots import make_prompt, params, speak
from tests.support.tiny import TINY_NAMES, Tiny, load_tiny
from vivace.adapter import Adapter
from vivace.adapter_set import AdapterSet
from vivace.backends import Capacity, build_backend
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.eager import EagerBackend
from vivace.errors import AdapterError, BackendError, BackendUnavailableError
from vivace.model.layers import module_bytes
from vivace.model.lora import StackedLora, lora_bytes
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

MixingBackend = EagerBackend | CudaGraphBackend
Build = Callable[[Qwen3TTS, Tiny], MixingBackend]
NUM_FRAMES = 4
TEXTS = ("Hay.", "More hay in the stack.", "A needle!", "The barn.")
BOTH_SIZES = ("custom_voice", "base_projected")


def build_eager(model: Qwen3TTS, part: Tiny) -> MixingBackend:
    return EagerBackend(model, part.codec)


def build_eight_rows(model: Qwen3TTS, part: Tiny) -> MixingBackend:
    return EagerBackend(model, part.codec, pass_rows=8)


def build_graphs(model: Qwen3TTS, part: Tiny) -> MixingBackend:
    return CudaGraphBackend(model, part.codec, max_streams=8, max_frames=320)


BUILDS = (build_eager, build_eight_rows, build_graphs)


@pytest.fixture(scope="module")
def part(few_codebooks: Tiny) -> Tiny:
    return few_codebooks


@pytest.fixture(scope="module")
def adapters(part: Tiny) -> dict[str, Adapter]:
    """Different ranks and targets."""
    return {
        "whole": random_adapter(part, 1, rank=4),
        "small": random_adapter(part, 2, rank=1, targets=["attention", "text"]),
        "other": random_adapter(part, 3, rank=7, targets=["mlp", "predictor", "heads"]),
    }


@pytest.fixture(scope="module")
def mixed(part: Tiny, adapters: dict[str, Adapter]) -> Qwen3TTS:
    return mixing_model(part, adapters)


def prompts_of(part: Tiny, numbers: Sequence[int]) -> list[Prompt]:
    prompts = [make_prompt(part, TEXTS[i % len(TEXTS)]) for i in range(len(numbers))]
    pairs = zip(prompts, numbers, strict=True)
    return [dataclasses.replace(prompt, adapter=number) for prompt, number in pairs]


def speak_together(
    backend: MixingBackend, prompts: Sequence[Prompt], sizes: Sequence[int] = (1, 3)
) -> list[NDArray[np.int64]]:
    """Codes of prompts in one batch. The seed is the index of the prompt."""
    found = backend.admit_many([(prompt, params(i)) for i, prompt in enumerate(prompts)])
    slots = [slot for slot in found if isinstance(slot, int)]
    assert len(slots) == len(prompts), found
    steps = [backend.step(slots, size) for size in sizes]
    for slot in slots:
        backend.release(slot)
    return [np.concatenate([step.of(row) for step in steps]) for row in range(len(slots))]


def short_params(seed: int) -> SamplingParams:
    return params(seed, max_frames=NUM_FRAMES, min_frames=NUM_FRAMES)


@pytest.mark.parametrize("build", BUILDS)
def test_mixed_batch_equals_each_slot_alone(part: Tiny, mixed: Qwen3TTS, build: Build) -> None:
    backend = build(mixed, part)
    prompts = prompts_of(part, [0, 1, 2, 3, 1])
    together = speak_together(backend, prompts)
    for index, prompt in enumerate(prompts):
        alone = speak(backend, prompt, short_params(index))
        assert np.array_equal(together[index], alone)


@pytest.mark.parametrize("build", BUILDS)
def test_each_adapter_equals_its_merged_weights(
    part: Tiny, mixed: Qwen3TTS, adapters: dict[str, Adapter], build: Build
) -> None:
    found = speak_together(build(mixed, part), prompts_of(part, [1, 2, 3]))
    plain = prompts_of(part, [0, 0, 0])
    for index, adapter in enumerate(adapters.values()):
        merged = EagerBackend(merged_model(part, adapter), part.codec)
        expected = speak(merged, plain[index], short_params(index))
        assert np.array_equal(found[index], expected), index
        assert len(expected) == NUM_FRAMES
        unchanged = speak(part.backend(), plain[index], short_params(index))
        assert not np.array_equal(expected, unchanged), "the adapter changes no code"


@pytest.mark.parametrize("build", BUILDS)
def test_slots_without_adapter_have_the_bits_of_an_engine_without_adapters(
    part: Tiny, mixed: Qwen3TTS, build: Build
) -> None:
    """Hidden states are compared: equal codes could hide a rounding difference."""
    backend, plain = build(mixed, part), build(part.model, part)
    found = speak_together(backend, prompts_of(part, [0, 3, 0, 1]))
    expected = speak_together(plain, prompts_of(part, [0, 0, 0, 0]))
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[2], expected[2])
    assert not np.array_equal(found[1], expected[1])
    states = [last_states(one, part, other) for one, other in ((backend, 3), (plain, 0))]
    assert torch.equal(*states)


def last_states(backend: MixingBackend, part: Tiny, other: int) -> torch.Tensor:
    """The talker's state of a slot without adapter after 3 frames, beside a slot with `other`."""
    prompts = prompts_of(part, [other, 0])
    slots = [backend.admit(prompt, params(5)) for prompt in prompts]
    backend.step(slots, 3)
    if isinstance(backend, CudaGraphBackend):
        return backend._table.hidden[backend._slots[slots[1]].row]
    return backend._slots[slots[1]].hidden.flatten()


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in BOTH_SIZES else pytest.mark.slow) for n in TINY_NAMES],
)
def test_every_layer_of_every_checkpoint_is_mixed(
    few_folder: Callable[[str], Path], name: str
) -> None:
    """Each target alone: a product that ignores its adapter gives other states than merged."""
    part = load_tiny(few_folder(name))
    ids = torch.tensor(part.tokenizer.encode("The needle in the haystack."))
    codes = torch.zeros(len(ids), part.model.config.talker_config.num_code_groups).long()
    for target in ("attention", "mlp", "predictor", "text", "heads"):
        adapter = random_adapter(part, 4, targets=[target], speakers=())
        mixed, merged = mixing_model(part, {"a": adapter}), merged_model(part, adapter)
        expected = all_logits(merged, ids, codes, None)
        found = all_logits(mixed, ids, codes, torch.tensor([1]))
        before = all_logits(part.model, ids, codes, None)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        assert not torch.allclose(expected, before, rtol=1e-2, atol=1e-2), target
        assert torch.equal(all_logits(mixed, ids, codes, None), before)


@torch.inference_mode()
def all_logits(
    model: Qwen3TTS, ids: torch.Tensor, codes: torch.Tensor, adapters: torch.Tensor | None
) -> torch.Tensor:
    from vivace.model.cache import attend_causally
    from vivace.model.lora import adapted

    talker, predictor = model.talker, model.talker.code_predictor
    x = talker.rows(ids, codes, None, adapters)[None]
    hidden = talker(x, talker.rope.span(0, len(ids), x), attend_causally, adapters)
    first = adapted(talker.codec_head, hidden[0], adapters).flatten()
    out = predictor(hidden[:, :3], 0, attend_causally, adapters)
    rest = [adapted(head, out[0, -1:], adapters).flatten() for head in predictor.lm_head]
    return torch.cat([first, *rest])


@pytest.mark.parametrize("build", BUILDS)
def test_live_text_uses_the_adapter_of_its_slot(part: Tiny, mixed: Qwen3TTS, build: Build) -> None:
    ids = part.tokenizer.encode("The needle in the haystack.")
    whole = dataclasses.replace(make_prompt(part, "The needle in the haystack."), adapter=1)
    first = dataclasses.replace(whole, trailing_ids=(), is_complete=False, num_own_ids=1)
    backend = build(mixed, part)
    slot = backend.admit(first, params(3))
    backend.extend(slot, ids[1:], True)
    other = backend.admit(dataclasses.replace(whole, adapter=2), params(4))
    found = backend.step([slot, other], NUM_FRAMES).of(0)
    backend.release(slot)
    backend.release(other)
    assert np.array_equal(found, speak(backend, whole, short_params(3)))


def test_graphs_of_one_size_serve_every_mixture(part: Tiny, mixed: Qwen3TTS) -> None:
    backend = CudaGraphBackend(mixed, part.codec, max_streams=4, max_frames=320)
    speak_together(backend, prompts_of(part, [0, 0, 0]))
    captured = set(backend.graphs._ready)
    speak_together(backend, prompts_of(part, [3, 1, 2]))
    assert set(backend.graphs._ready) == captured


def test_released_row_keeps_no_adapter(part: Tiny, mixed: Qwen3TTS) -> None:
    backend = CudaGraphBackend(mixed, part.codec, max_streams=1, max_frames=320)
    changed, plain = prompts_of(part, [1, 0])
    sampling = short_params(1)
    speak(backend, changed, sampling)
    found = speak(backend, plain, sampling)
    assert np.array_equal(found, speak(part.backend(), plain, sampling))


@pytest.mark.parametrize("build", BUILDS)
def test_unknown_adapter_number_fails_alone(part: Tiny, mixed: Qwen3TTS, build: Build) -> None:
    backend = build(mixed, part)
    good, bad = prompts_of(part, [1, 4])
    slot, error = backend.admit_many([(good, params(1)), (bad, params(2))])
    assert isinstance(slot, int)
    assert isinstance(error, BackendError)
    assert "needs adapter 4 and 3 adapters are loaded" in str(error)


def test_engine_without_adapters_has_no_adapter_tensors(part: Tiny) -> None:
    backend = CudaGraphBackend(part.model, part.codec, max_streams=2, max_frames=320)
    assert backend._table.adapters is None
    assert backend._table.adapters_of(torch.tensor([0])) is None
    assert "adapters" not in backend.memory()


# --- Memory -------------------------------------------------------------------------------------


def test_memory_grows_by_the_adapters_not_by_models(part: Tiny) -> None:
    sizes, models = [], set()
    for count in (1, 2, 8):
        made = {str(i): random_adapter(part, i, rank=4) for i in range(count)}
        model = mixing_model(part, made)
        memory = EagerBackend(model, part.codec).memory()
        models.add(memory["model"])
        sizes.append(memory["adapters"])
        assert module_bytes(model) == memory["model"] + memory["adapters"]
    assert len(models) == 1
    adapter = random_adapter(part, 0, rank=4)
    values = sum(a.nbytes + b.nbytes for a, b in adapter.pairs.values())
    starts = sizes[0] - values  # int32 offsets, once for all adapters
    assert 0 <= starts < 0.2 * values
    assert sizes == [starts + count * values for count in (1, 2, 8)]


def test_adapters_of_a_folded_text_table_keep_the_projection(
    part: Tiny, adapters: dict[str, Adapter]
) -> None:
    """As on a GPU, where text vectors are a table."""
    model = mixing_model(part, adapters)
    ids, numbers = torch.tensor([5, 9, 5, 7]), torch.tensor([0, 1, 2, 3])
    with torch.inference_mode():
        expected = model.talker.text_vectors(ids[:, None], numbers)[:, 0]
        model.talker.fold_texts()
        found = model.talker.text_vectors(ids, numbers)
        table = model.talker.text_vectors(ids)
        model.talker.fold_texts()  # again, as after a rebuilt backend
        assert torch.equal(model.talker.text_vectors(ids, numbers), found)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found[0], table[0])
    assert not torch.allclose(found[1], table[1])
    plain = mixing_model(part, {"other": adapters["other"]})
    plain.talker.fold_texts()
    assert plain.talker.unfolded is None  # no adapter changes the projection


# --- The stack --------------------------------------------------------------------------------


def test_stack_pads_ranks_and_missing_parts_with_zeros() -> None:
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    like = torch.zeros(6, 5)
    (a, b), (c, d), (e, f) = (
        (random(rank, 5), random(size, rank)) for rank, size in ((1, 6), (3, 6), (2, 4))
    )
    stack = StackedLora.stack([[(a, b), None], [(c, d), (e, f)]], [6, 4], like)
    assert stack.rank == 3
    x = random(3, 2, 5)
    found = stack(x, torch.tensor([2, 0, 1]))
    torch.testing.assert_close(found[0], torch.cat((x[0] @ c.T @ d.T, x[0] @ e.T @ f.T), -1))
    assert torch.equal(found[1], torch.zeros(2, 10))
    torch.testing.assert_close(found[2, :, :6], x[2] @ a.T @ b.T)
    assert torch.equal(found[2, :, 6:], torch.zeros(2, 4))
    torch.testing.assert_close(stack.change_row(x[0, 0], 2), found[0, 0])
    assert stack.starts.tolist() == [0] * 6 + [3] * 4
    assert lora_bytes(stack) == sum(one.nbytes for one in (stack.a, stack.b, stack.starts))


def test_rows_without_adapter_are_unchanged_by_matrices_that_overflow() -> None:
    pair = (torch.full((1, 4), 3e38), torch.full((4, 1), 3e38))
    stack = StackedLora.stack([[pair]], [4], torch.zeros(4, 4))
    found = stack(torch.ones(2, 4), torch.tensor([0, 1]))
    assert torch.equal(found[0], torch.zeros(4))
    assert not torch.isfinite(found[1]).any()


# --- Backends that cannot mix -------------------------------------------------------------------


def test_auto_selects_a_backend_that_mixes(part: Tiny, mixed: Qwen3TTS) -> None:
    assert build_backend("auto", mixed, part.codec).name == "eager"
    assert build_backend("eager", mixed, part.codec, Capacity(max_streams=2)).name == "eager"


def test_cpu_backend_refuses_adapters_with_one_clear_error(part: Tiny, mixed: Qwen3TTS) -> None:
    part.cpu_backend()  # skips without a compiler
    with pytest.raises(BackendUnavailableError, match="cannot mix adapters; use backend") as caught:
        build_backend("cpu", mixed, part.codec)
    assert "cuda_graph or eager" in str(caught.value)
    assert "adapter=" in str(caught.value)


def test_megakernel_refuses_adapters(part: Tiny, mixed: Qwen3TTS) -> None:
    from vivace.backends import BACKENDS

    entry = next(entry for entry in BACKENDS if entry.name == "megakernel")
    assert "cannot mix adapters" in (entry.find_unfit(mixed, Capacity()) or "")


# --- Adapters that do not fit -------------------------------------------------------------------


def test_adapter_of_another_shape_is_refused(part: Tiny) -> None:
    adapter = random_adapter(part, 1)
    name = min(adapter.pairs)
    a, b = adapter.pairs[name]
    for pair in ((a[:, :-1], b), (a, b[:-1])):
        wrong = dataclasses.replace(adapter, pairs={name: pair})
        with pytest.raises(AdapterError, match="of shape"):
            part.checkpoint.load_model(CPU, torch.float32, "full", AdapterSet({"a": wrong}).apply)


@pytest.mark.parametrize(
    "name", ["talker.model.norm.weight", "talker.model.codec_embedding.weight", "no.such.weight"]
)
def test_adapter_of_a_layer_that_is_not_linear_is_refused(part: Tiny, name: str) -> None:
    adapter = random_adapter(part, 1)
    pair = next(iter(adapter.pairs.values()))
    wrong = dataclasses.replace(adapter, pairs={name: pair})
    with pytest.raises(AdapterError, match=name.replace(".", r"\.")):
        mixing_model(part, {"a": wrong})
