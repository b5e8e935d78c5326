"""The official class by its own name: methods, broadcasting, errors, and the official sound."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import ROOT, load_script
from official_calls import official_items
from vivace.compat import Qwen3TTSModel, VoiceClonePromptItem

GREEDY = {"do_sample": False, "subtalker_dosample": False, "max_new_tokens": 65}


@pytest.fixture(scope="module")
def models(tiny_folder: Path) -> dict[str, Qwen3TTSModel]:
    names = ("custom_voice", "voice_design", "base")
    return {
        name: Qwen3TTSModel.from_pretrained(
            tiny_folder / name, device_map="cpu", dtype=torch.float32, attn_implementation="sdpa"
        )
        for name in names
    }


@pytest.fixture(scope="module")
def reference() -> tuple[np.ndarray, int]:
    waves = load_script(ROOT / "scripts" / "official" / "waves.py")
    return waves.synthetic_wave(3.3), 24_000


def with_waveform(model: str, call: str) -> Iterator[Any]:
    return (i for i in official_items(model) if i.call == call and "waveform" in i.tensors)


@pytest.mark.parametrize("layout", ["streaming", "offline"])
def test_a_greedy_custom_voice_sounds_as_the_official_one(
    models: dict[str, Qwen3TTSModel], layout: str
) -> None:
    (item,) = with_waveform("custom_voice", f"plain_{layout}")
    waves, rate = models["custom_voice"].generate_custom_voice(
        item.raw["text"],
        item.raw["speaker"],
        language=item.raw["language"],
        non_streaming_mode=layout == "offline",
        **GREEDY,
    )
    assert rate == 24_000
    assert len(waves) == 1
    assert len(waves[0]) == item.raw["num_samples"]
    expected = item.tensors["waveform"]
    stride = -(-len(waves[0]) // len(expected))
    assert np.allclose(waves[0][::stride], expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize("x_vector_only", [True, False])
def test_a_greedy_clone_sounds_as_the_official_one(
    models: dict[str, Qwen3TTSModel], reference: tuple[np.ndarray, int], x_vector_only: bool
) -> None:
    call = "x_vector_streaming" if x_vector_only else "icl_reference_longer_streaming"
    (item,) = with_waveform("base", call)
    waves, _ = models["base"].generate_voice_clone(
        item.raw["text"],
        language=item.raw["language"],
        ref_audio=reference,
        ref_text="A long reference.",
        x_vector_only_mode=x_vector_only,
        **GREEDY,
    )
    expected = item.tensors["waveform"]
    stride = -(-len(waves[0]) // len(expected))
    assert np.allclose(waves[0][::stride], expected, rtol=0, atol=1e-4)


def test_lists_are_batches_and_single_values_spread(models: dict[str, Qwen3TTSModel]) -> None:
    model = models["custom_voice"]
    waves, _ = model.generate_custom_voice(
        ["One.", "Two."], "ryan", language="english", max_new_tokens=5
    )
    assert len(waves) == 2
    waves, _ = models["voice_design"].generate_voice_design(
        ["One.", "Two."], ["Old.", "Young."], max_new_tokens=5
    )
    assert [wave.dtype for wave in waves] == [np.float32, np.float32]


def test_a_prompt_is_made_once_and_used_as_item_list_or_dict(
    models: dict[str, Qwen3TTSModel], reference: tuple[np.ndarray, int]
) -> None:
    model = models["base"]
    items = model.create_voice_clone_prompt(reference, "A long reference.")
    assert isinstance(items[0], VoiceClonePromptItem)
    assert items[0].icl_mode
    assert items[0].ref_code is not None
    assert items[0].ref_code.shape[1] == 16
    as_dict = {
        name: [getattr(items[0], name)]
        for name in ("ref_code", "ref_spk_embedding", "x_vector_only_mode", "icl_mode", "ref_text")
    }
    made = [
        model.generate_voice_clone("Again.", voice_clone_prompt=prompt, **GREEDY)[0][0]
        for prompt in (items, items[0], as_dict)
    ]
    assert np.array_equal(made[0], made[1])
    assert np.array_equal(made[0], made[2])


def test_sampling_defaults_come_from_the_checkpoint_and_none_keeps_them(
    models: dict[str, Qwen3TTSModel],
) -> None:
    tts = models["custom_voice"].tts
    seen: list[dict[str, Any]] = []
    speak = tts.speak

    def watch(text: str, **options: Any) -> Any:
        seen.append(options)
        return speak(text, **options)

    tts.speak = watch  # type: ignore[method-assign]
    try:
        models["custom_voice"].generate_custom_voice(
            "Hm.", "ryan", temperature=None, subtalker_top_k=7, max_new_tokens=4, unknown=1
        )
    finally:
        tts.speak = speak  # type: ignore[method-assign]
    assert "temperature" not in seen[0]
    assert seen[0]["predictor_top_k"] == 7
    assert seen[0]["max_frames"] == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m["base"].generate_custom_voice("Hi.", "ryan"), "does not support generate_cus"),
        (lambda m: m["custom_voice"].generate_voice_clone("Hi."), "does not support generate_voi"),
        (lambda m: m["base"].generate_voice_clone("Hi."), "Either `voice_clone_prompt` or `ref_a"),
        (
            lambda m: m["base"].create_voice_clone_prompt((np.ones(24000), 24000)),
            r"ref_text is required when x_vector_only_mode=False \(ICL mode\). Bad index=0",
        ),
        (
            lambda m: m["custom_voice"].generate_custom_voice("Hi.", "nobody"),
            r"Unsupported speakers: \['nobody'\]",
        ),
        (
            lambda m: m["custom_voice"].generate_custom_voice("Hi.", "ryan", language="klingon"),
            r"Unsupported languages: \['klingon'\]",
        ),
        (
            lambda m: m["custom_voice"].generate_custom_voice(["a", "b", "c"], ["ryan", "eric"]),
            "Batch size mismatch: text=3",
        ),
        (
            lambda m: m["base"].generate_voice_clone("Hi.", ref_audio=np.ones(9), ref_text="x"),
            r"For numpy waveform input, pass a tuple \(audio, sr\)",
        ),
    ],
)
def test_errors_are_the_official_ones(
    models: dict[str, Qwen3TTSModel], call: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(models)


def test_lists_of_names_are_the_official_ones(models: dict[str, Qwen3TTSModel]) -> None:
    languages = models["custom_voice"].get_supported_languages()
    assert languages == sorted(languages)
    assert "auto" in languages
    assert not any("dialect" in name for name in languages)
    assert "vivian" in models["custom_voice"].get_supported_speakers()


@pytest.mark.parametrize(
    ("method", "names"),
    [
        (
            "generate_voice_clone",
            "text language ref_audio ref_text x_vector_only_mode voice_clone_prompt "
            "non_streaming_mode kwargs",
        ),
        ("generate_voice_design", "text instruct language non_streaming_mode kwargs"),
        ("generate_custom_voice", "text speaker language instruct non_streaming_mode kwargs"),
        ("create_voice_clone_prompt", "ref_audio ref_text x_vector_only_mode"),
    ],
)
def test_arguments_have_the_official_names_and_order(method: str, names: str) -> None:
    parameters = inspect.signature(getattr(Qwen3TTSModel, method)).parameters
    assert [name for name in parameters if name != "self"] == names.split()
