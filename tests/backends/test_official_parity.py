"""Greedy codes are the official ones, for every mode and layout, alone and in a ragged batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conftest import ROOT, TINY_NAMES, Tiny, load_script
from official_calls import GOLDEN, OfficialItem, official_items
from utterances import generate
from vivace.backends.base import Backend
from vivace.backends.eager import EagerBackend
from vivace.model.cache import KeyValueCache, attend_causally

ITEMS = [item for name in TINY_NAMES for item in official_items(name)]


# Calls that are spoken alone too, besides those with a waveform; the others run in CI.
ALONE = ("dylan_auto_offline", "two_tokens_streaming", "penalty_strong_streaming")


def name_of(item: OfficialItem) -> str:
    return f"{item.model}-{item.call}-{item.index}"


def alone(item: OfficialItem) -> Any:
    is_quick = item.call in ALONE or "waveform" in item.tensors
    return pytest.param(item, id=name_of(item), marks=() if is_quick else pytest.mark.ci)


def test_the_goldens_were_made_from_these_very_checkpoints(tiny_folder: Path) -> None:
    script = load_script(ROOT / "scripts" / "make_tiny_checkpoints.py")
    expected = json.loads((GOLDEN / "checkpoints.json").read_text())
    assert {name: script.fingerprint(tiny_folder / name) for name in TINY_NAMES} == expected


@pytest.mark.parametrize("item", [alone(item) for item in ITEMS])
def test_greedy_codes_and_their_waveform_are_the_official_ones(
    tiny: Callable[[str], Tiny], item: OfficialItem
) -> None:
    """In context, the reference is decoded first and cut off by whole frames."""
    part = tiny(item.model)
    utterance = generate(part.backend(), item.prompt(part), item.sampling)
    assert np.array_equal(utterance.codes, item.codes)
    assert utterance.finish_reason == {"eos": "stop", "length": "length"}[item.raw["finish"]]
    assert len(utterance.samples) == item.raw["num_samples"]
    if (expected := item.tensors.get("waveform")) is not None:
        stride = -(-len(utterance.samples) // len(expected))
        assert np.allclose(utterance.samples[::stride], expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.ci)])
@pytest.mark.parametrize("model", TINY_NAMES)
def test_greedy_codes_hold_in_a_ragged_batch(
    tiny: Callable[[str], Tiny], model: str, stride: int
) -> None:
    """Utterances of different length and age, joining and leaving as they come and end."""
    part = tiny(model)
    # the longest first: it would speak on alone, and a row takes as long as a full pass
    items = sorted(official_items(model), key=lambda item: -len(item.codes))
    items = items[stride - 1 :: stride]  # every third, without the very longest; or all
    codes = speak_staggered(part.backend(pass_rows=8), part, items)
    for item, found in zip(items, codes, strict=True):
        assert np.array_equal(found, item.codes), name_of(item)


def speak_staggered(
    backend: Backend, part: Tiny, items: list[OfficialItem]
) -> list[np.ndarray[tuple[int, int], np.dtype[np.int64]]]:
    """One more item joins before every step of three frames."""
    waiting = list(enumerate(items))
    running: dict[int, int] = {}
    codes: dict[int, list[np.ndarray]] = {i: [] for i, _ in waiting}
    while waiting or running:
        if waiting:
            index, item = waiting.pop(0)
            running[index] = backend.admit(item.prompt(part), item.sampling)
        frames = backend.step(list(running.values()), 3)
        for row, index in enumerate(list(running)):
            codes[index].append(frames.of(row))
            if frames.status[row] in ("stop", "length"):
                backend.release(running.pop(index))
    return [np.concatenate(codes[i]) for i in range(len(items))]


def with_rows(item: OfficialItem) -> bool:
    return "prefill_rows" in item.tensors


@pytest.mark.parametrize("item", [item for item in ITEMS if with_rows(item)], ids=name_of)
def test_prompt_rows_and_first_logits_are_the_official_ones(
    tiny: Callable[[str], Tiny], item: OfficialItem
) -> None:
    part, prompt = tiny(item.model), item.prompt(tiny(item.model))
    backend = part.backend()
    rows = backend.prompt_rows(prompt)
    assert torch.allclose(rows, torch.from_numpy(item.tensors["prefill_rows"]), rtol=0, atol=1e-5)
    talker = part.model.talker
    rope = talker.rope.span(0, len(prompt), rows)
    hidden = talker(rows[None], rope, attend_causally)[0, -1]
    logits = talker.codec_head(hidden)
    columns = [*range(64), part.checkpoint.config.talker_config.codec_eos_token_id]
    expected = torch.from_numpy(item.tensors["prefill_logits"])
    assert torch.allclose(logits[columns], expected, rtol=0, atol=1e-4)


BF16 = load_file(GOLDEN / "bf16.safetensors")
BF16_MODELS = ("custom_voice", "base_projected")


@pytest.fixture(scope="module")
def tiny_bf16(tiny: Callable[[str], Tiny]) -> Callable[[str], EagerBackend]:
    def load(name: str) -> EagerBackend:
        part = tiny(name)
        model = part.checkpoint.load_model(torch.device("cpu"), torch.bfloat16)
        return EagerBackend(model, part.codec)

    return load


def assert_within_two_ulp(found: torch.Tensor, expected: torch.Tensor) -> None:
    """For 99 % where the CPU has the bfloat16 products of the golden values; else near them."""
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert share_within_two_ulp(found, expected) >= 0.99
    difference = (found.float() - expected.float()).norm() / expected.float().norm()
    assert difference < 0.02


def share_within_two_ulp(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Neighbouring bfloat16 values are neighbouring integers once the sign is unfolded."""

    def ordinal(x: torch.Tensor) -> torch.Tensor:
        bits = x.contiguous().view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return float(((ordinal(found) - ordinal(expected)).abs() <= 2).float().mean())


@pytest.mark.parametrize("model", BF16_MODELS)
def test_talker_logits_in_bfloat16_are_within_two_ulp(
    tiny_bf16: Callable[[str], EagerBackend], model: str
) -> None:
    talker = tiny_bf16(model).model.talker
    rows = torch.cat((BF16[f"{model}.prefill_rows"], BF16[f"{model}.frame_rows"]))
    hidden = talker(rows[None], talker.rope.span(0, len(rows), rows), attend_causally)[0]
    logits = talker.codec_head(hidden)
    columns = [*range(64), talker.config.codec_eos_token_id]
    assert_within_two_ulp(logits[:, columns], BF16[f"{model}.one_pass.logits"])


@pytest.mark.parametrize("model", BF16_MODELS)
def test_stepwise_talker_logits_in_bfloat16_are_within_two_ulp(
    tiny_bf16: Callable[[str], EagerBackend], model: str
) -> None:
    talker = tiny_bf16(model).model.talker
    prefill, frames = BF16[f"{model}.prefill_rows"], BF16[f"{model}.frame_rows"]
    cache = KeyValueCache(talker.config.num_hidden_layers)
    hidden = [talker(prefill[None], talker.rope.span(0, len(prefill), prefill), cache)[0, -1:]]
    for row in frames:
        rope = talker.rope.span(cache.length, 1, row)
        hidden.append(talker(row[None, None], rope, cache)[0])
    columns = [*range(64), talker.config.codec_eos_token_id]
    logits = talker.codec_head(torch.cat(hidden))[:, columns]
    assert_within_two_ulp(logits, BF16[f"{model}.logits"])


@pytest.mark.parametrize("model", BF16_MODELS)
def test_predictor_logits_in_bfloat16_are_within_two_ulp(
    tiny_bf16: Callable[[str], EagerBackend], model: str
) -> None:
    talker = tiny_bf16(model).model.talker
    predictor = talker.code_predictor
    codes = BF16[f"{model}.codes"].long()
    hidden = BF16[f"{model}.hidden"]
    tables = predictor.model.codec_embedding
    inputs = [hidden, talker.model.codec_embedding(codes[:, 0])]
    inputs += [tables[g](codes[:, g + 1]) for g in range(len(tables) - 1)]
    out = predictor(torch.stack(inputs, dim=1), 0, attend_causally)
    logits = torch.stack([head(out[:, g + 1]) for g, head in enumerate(predictor.lm_head)], dim=1)
    expected = BF16[f"{model}.one_pass.predictor_logits"]
    assert_within_two_ulp(logits, expected)


@pytest.mark.parametrize("model", BF16_MODELS)
def test_prompt_rows_in_bfloat16_are_the_official_ones_to_the_bit(
    tiny: Callable[[str], Tiny], tiny_bf16: Callable[[str], EagerBackend], model: str
) -> None:
    """A frame's embeddings are summed with one rounding, then the text is added with another."""
    call = {"custom_voice": "plain_streaming", "base_projected": "icl_text_longer_streaming"}
    item = next(i for i in ITEMS if i.model == model and i.call == call[model])
    rows = tiny_bf16(model).prompt_rows(item.prompt(tiny(model)))
    assert torch.equal(rows, BF16[f"{model}.prefill_rows"])


MODES = {
    "preset": lambda i: i.model.startswith("custom") and "speaker" in i.raw,
    "no speaker": lambda i: i.model.startswith("custom") and "speaker" not in i.raw,
    "dialect": lambda i: i.raw.get("speaker") in ("eric", "dylan"),
    "instruct": lambda i: i.model == "custom_voice_projected" and "instruct" in i.raw,
    "design": lambda i: i.model == "voice_design",
    "x-vector": lambda i: i.raw["x_vector_only"],
    "in context, text longer": lambda i: i.call.startswith("icl_text_longer"),
    "in context, reference longer": lambda i: i.call.startswith("icl_reference_longer"),
    "auto": lambda i: i.raw["language"].lower() == "auto",
}


@pytest.mark.parametrize("layout", ["streaming", "offline"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_and_layout_is_held_for_64_frames(mode: str, layout: str) -> None:
    items = [i for i in ITEMS if MODES[mode](i) and i.layout == layout and "batch" not in i.call]
    assert max(len(item.codes) for item in items) >= 64


def test_every_language_is_held_for_64_frames() -> None:
    config = json.loads((GOLDEN / "codes_custom_voice.json").read_text())
    spoken = {
        c["items"][0]["language"] for c in config["calls"] if c["items"][0]["num_frames"] == 64
    }
    assert spoken >= {
        *("chinese", "english", "german", "italian", "portuguese"),
        *("spanish", "japanese", "korean", "french", "russian"),
    }


def test_some_goldens_end_by_themselves() -> None:
    assert sum(item.raw["finish"] == "eos" for item in ITEMS) >= 10
