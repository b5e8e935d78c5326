"""`Qwen3TTSModel`: methods, broadcasting, errors, and codes equal to the official package's."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.official_calls import GOLDEN, OfficialItem, official_items
from tests.support.project import ROOT, load_script
from tests.support.slots import plain_backend
from vivace.compat import Qwen3TTSModel, VoiceClonePromptItem
from vivace.engine.streams.stream import Stream
from vivace.errors import TextTooLongError
from vivace.speech import BOUNDS, SamplingParams

GREEDY: dict[str, Any] = {"do_sample": False, "subtalker_dosample": False, "max_new_tokens": 65}
BRIEF: dict[str, Any] = {**GREEDY, "max_new_tokens": 9}
# Frames compared per official utterance: 16 in CI. All 64 are `slow`.
FEW_TOKENS = 17
TOKENS = [FEW_TOKENS, pytest.param(65, marks=pytest.mark.slow)]


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


def frames_of(item: OfficialItem, num_tokens: int) -> int:
    """Number of frames of an official utterance for a call with this limit."""
    return min(len(item.codes), num_tokens - 1)


def assert_official_sound(wave: np.ndarray, item: OfficialItem, num_tokens: int) -> None:
    assert len(wave) == frames_of(item, num_tokens) * 1920
    stride = -(-item.raw["num_samples"] // len(item.tensors["waveform"]))
    found = wave[::stride]
    expected = item.tensors["waveform"][: len(found)]
    assert np.allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize("layout", ["streaming", "offline"])
def test_greedy_custom_voice_equals_the_official_output(
    models: dict[str, Qwen3TTSModel], layout: str, num_tokens: int
) -> None:
    (item,) = with_waveform("custom_voice", f"plain_{layout}")
    waves, rate = models["custom_voice"].generate_custom_voice(
        item.raw["text"],
        item.raw["speaker"],
        language=item.raw["language"],
        non_streaming_mode=layout == "offline",
        **{**GREEDY, "max_new_tokens": num_tokens},
    )
    assert rate == 24_000
    assert len(waves) == 1
    assert_official_sound(waves[0], item, num_tokens)


@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize("x_vector_only", [True, False])
def test_greedy_clone_equals_the_official_output(
    models: dict[str, Qwen3TTSModel],
    reference: tuple[np.ndarray, int],
    x_vector_only: bool,
    num_tokens: int,
) -> None:
    call = "x_vector_streaming" if x_vector_only else "icl_reference_longer_streaming"
    (item,) = with_waveform("base", call)
    waves, _ = models["base"].generate_voice_clone(
        item.raw["text"],
        language=item.raw["language"],
        ref_audio=reference,
        ref_text="A long reference.",
        x_vector_only_mode=x_vector_only,
        **{**GREEDY, "max_new_tokens": num_tokens},
    )
    assert_official_sound(waves[0], item, num_tokens)


def test_lists_are_batches_and_single_values_are_repeated(models: dict[str, Qwen3TTSModel]) -> None:
    model = models["custom_voice"]
    waves, _ = model.generate_custom_voice(
        ["One.", "Two."], "ryan", language="english", max_new_tokens=5
    )
    assert len(waves) == 2
    waves, _ = models["voice_design"].generate_voice_design(
        ["One.", "Two."], ["Old.", "Young."], max_new_tokens=5
    )
    assert [wave.dtype for wave in waves] == [np.float32, np.float32]


def test_batch_result_equals_single_results(
    models: dict[str, Qwen3TTSModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["custom_voice"]
    engine = model.tts.engine
    step = plain_backend(model.tts).step
    seen: list[int] = []

    def watch(*arguments: Any, **options: Any) -> Any:
        seen.append(engine.num_running)
        return step(*arguments, **options)

    texts = ["The first.", "A second, longer than the first.", "好", "The last one of four."]
    speakers = ["ryan", "vivian", "eric", ""]
    options: dict[str, Any] = {"max_new_tokens": 16, "seed": 5}
    alone = [
        model.generate_custom_voice(text, speaker, **options)[0][0]
        for text, speaker in zip(texts, speakers, strict=True)
    ]
    monkeypatch.setattr(engine.backend, "step", watch)
    together, _ = model.generate_custom_voice(texts, speakers, **options)
    assert max(seen) > 1
    for one, other in zip(together, alone, strict=True):  # batches take turns of other sizes
        np.testing.assert_allclose(one, other, rtol=0, atol=5e-5)


def test_error_of_one_text_is_raised_unchanged(models: dict[str, Qwen3TTSModel]) -> None:
    with pytest.raises(TextTooLongError):
        models["custom_voice"].generate_custom_voice(["Hm.", "a" * 1_000_001], "ryan")


def test_prompt_is_accepted_as_item_list_or_dict(
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
        model.generate_voice_clone("Again.", voice_clone_prompt=prompt, **BRIEF)[0][0]
        for prompt in (items, items[0], as_dict)
    ]
    assert np.array_equal(made[0], made[1])
    assert np.array_equal(made[0], made[2])


# --- Recorded calls of the official package ----------------------------------------------------

CALLS = [
    (model, call["name"])
    for model in ("custom_voice", "custom_voice_projected", "voice_design")
    for call in json.loads((GOLDEN / f"codes_{model}.json").read_text())["calls"]
    if call["non_streaming_mode"] and call["name"] != "many_frames_offline"  # the call takes long
]


BY_DEFAULT = (  # one call of each kind; CI compares 16 frames of all calls
    ("custom_voice", "empty_text_offline"),
    ("custom_voice", "eric_auto_offline"),
    ("custom_voice", "no_speaker_offline"),
    ("custom_voice", "one_token_offline"),
    ("custom_voice_projected", "instruct_offline"),
    ("voice_design", "batch_offline"),
    ("voice_design", "plain_offline"),
)
OTHERS = [call for call in CALLS if call not in BY_DEFAULT]


@pytest.mark.default_cases(3)
@pytest.mark.parametrize(
    ("name", "call", "num_tokens"),
    [
        *((*call, FEW_TOKENS) for call in (*BY_DEFAULT, *OTHERS)),
        *(pytest.param(*call, 10_000, marks=pytest.mark.slow) for call in CALLS),
    ],
)
def test_recorded_official_call_gives_the_same_codes(
    load: Callable[[str], Qwen3TTSModel], name: str, call: str, num_tokens: int
) -> None:
    """Includes calls without speaker and instruct, dialects, penalties, limits, padded batches."""
    model = load(name)
    items = [item for item in official_items(name, with_empty=True) if item.call == call]
    settings = items[0].settings
    arguments: dict[str, Any] = {
        "text": [item.raw["text"] for item in items],
        "language": [item.raw["language"] for item in items],
        "instruct": [item.raw.get("instruct") for item in items],
        "non_streaming_mode": items[0].layout == "offline",
        **settings,
        "max_new_tokens": min(num_tokens, settings["max_new_tokens"]),
    }
    if name == "voice_design":
        waves, _ = model.generate_voice_design(**arguments)
    else:
        speakers: list[Any] = [item.raw.get("speaker") for item in items]
        waves, _ = model.generate_custom_voice(speaker=speakers, **arguments)
    for wave, item in zip(waves, items, strict=True):
        official = decode(model, item, num_tokens)
        assert len(wave) == len(official)
        np.testing.assert_allclose(wave, official, rtol=0, atol=1e-4)


def decode(model: Qwen3TTSModel, item: OfficialItem, num_tokens: int) -> np.ndarray:
    codes = torch.from_numpy(item.codes[: frames_of(item, num_tokens)])
    waves, _ = model.model.speech_tokenizer.decode([{"audio_codes": codes}])
    return waves[0]


@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize("nothing", [None, ""])
def test_voice_design_without_instruct_speaks(
    load: Callable[[str], Qwen3TTSModel], nothing: Any, num_tokens: int
) -> None:
    (item,) = (i for i in official_items("voice_design") if i.call == "no_instruct_offline")
    arguments = {"language": item.raw["language"], **item.settings, "max_new_tokens": num_tokens}
    model = load("voice_design")
    waves, _ = model.generate_voice_design(item.raw["text"], nothing, **arguments)
    np.testing.assert_allclose(waves[0], decode(model, item, num_tokens), rtol=0, atol=1e-4)
    num_frames = frames_of(item, num_tokens)
    ours = model.tts.speak(
        item.raw["text"], language="french", instruct=nothing, temperature=0, trim=False,
        max_frames=num_frames,
    )  # fmt: skip
    np.testing.assert_array_equal(ours.codes, item.codes[:num_frames])


@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize("nobody", [None, ""])
def test_call_without_speaker_uses_no_speaker(
    load: Callable[[str], Qwen3TTSModel], nobody: Any, num_tokens: int
) -> None:
    model = load("custom_voice")
    (item,) = (i for i in official_items("custom_voice") if i.call == "no_speaker_offline")
    arguments = {"language": item.raw["language"], **item.settings, "max_new_tokens": num_tokens}
    waves, _ = model.generate_custom_voice(item.raw["text"], nobody, **arguments)
    np.testing.assert_allclose(waves[0], decode(model, item, num_tokens), rtol=0, atol=1e-4)


@pytest.mark.parametrize("limit", [2, 3, 9])
def test_max_new_tokens_gives_one_frame_less(
    load: Callable[[str], Qwen3TTSModel], limit: int
) -> None:
    is_greedy: dict[str, Any] = {
        "do_sample": False,
        "subtalker_dosample": False,
    }  # no early end of speech
    waves, _ = load("custom_voice").generate_custom_voice(
        "Hello there.", "ryan", "english", max_new_tokens=limit, **is_greedy
    )
    assert len(waves[0]) == (limit - 1) * 1920


# --- Defaults -----------------------------------------------------------------------------------


def settings_of(
    model: Qwen3TTSModel, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> SamplingParams:
    """Record the sampling parameters of every utterance."""
    seen: list[SamplingParams] = []
    open_stream: Callable[..., None] = Stream.__init__

    def watch(self: Stream, *parts: Any, **options: Any) -> None:
        *before, settings = parts
        seen.append(settings.sampling)
        short = dataclasses.replace(settings, sampling=settings.sampling.replace(max_frames=2))
        open_stream(self, *before, short, **options)

    monkeypatch.setattr(Stream, "__init__", watch)
    model.generate_custom_voice("Hm.", "ryan", **options)
    return seen[0]


FILE = {
    "do_sample": False,
    "temperature": 0.6,
    "top_k": 11,
    "subtalker_dosample": False,
    "subtalker_temperature": 0.4,
    "subtalker_top_p": 0.7,
    "repetition_penalty": None,
}


@pytest.mark.parametrize(
    ("given", "talker", "residual"),
    [
        ({}, 0.0, 0.0),
        ({"temperature": 0.8, "subtalker_temperature": 0.3}, 0.0, 0.0),
        ({"do_sample": True}, 0.6, 0.0),
        ({"subtalker_dosample": True}, 0.0, 0.4),
        ({"do_sample": True, "subtalker_dosample": True, "temperature": 0.8}, 0.8, 0.4),
    ],
)
def test_checkpoint_defaults_apply_unless_overridden(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    talker: float,
    residual: float,
) -> None:
    folder = shutil.copytree(tiny_folder / "custom_voice", tmp_path / "custom_voice")
    (folder / "generation_config.json").write_text(json.dumps(FILE))
    model = Qwen3TTSModel.from_pretrained(folder, device_map="cpu")
    assert model.generate_defaults == model.model.generate_config == FILE
    found = settings_of(model, monkeypatch, **given)
    assert (found.temperature, found.residual_temperature) == (talker, residual)
    assert (found.top_k, found.predictor_top_p) == (11, 0.7)
    assert (found.top_p, found.repetition_penalty) == (1.0, 1.05)  # the official default


def test_none_keeps_a_default_and_unknown_options_are_ignored(
    models: dict[str, Qwen3TTSModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = settings_of(
        models["custom_voice"], monkeypatch, temperature=None, subtalker_top_k=7, unknown=1
    )
    assert (found.temperature, found.predictor_top_k) == (0.9, 7)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"temperature": 1e-7}, {"temperature": BOUNDS["temperature"].low}),
        ({"temperature": 1e6}, {"temperature": BOUNDS["temperature"].high}),
        ({"top_p": 0.0}, {"top_p": BOUNDS["top_p"].low}),
        ({"top_k": 2**40}, {"top_k": BOUNDS["top_k"].high}),
        ({"repetition_penalty": 0.01}, {"repetition_penalty": BOUNDS["repetition_penalty"].low}),
        ({"repetition_penalty": 50.0}, {"repetition_penalty": BOUNDS["repetition_penalty"].high}),
        ({"subtalker_temperature": 1e-7}, {"predictor_temperature": BOUNDS["temperature"].low}),
        ({"subtalker_top_p": 0}, {"predictor_top_p": BOUNDS["top_p"].low}),
    ],
)
def test_numbers_that_transformers_accepts_are_clamped_to_bounds(
    models: dict[str, Qwen3TTSModel],
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, float],
    expected: dict[str, float],
) -> None:
    found = settings_of(models["custom_voice"], monkeypatch, **given)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    "given", [{"temperature": -1.0}, {"repetition_penalty": 0.0}, {"top_p": 1.5}, {"top_p": -0.1}]
)
def test_numbers_that_transformers_rejects_raise_value_error(
    models: dict[str, Qwen3TTSModel], given: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        models["custom_voice"].generate_custom_voice("Hm.", "ryan", **given)


@pytest.mark.ci
def test_runaway_speech_is_returned_with_a_warning(
    models: dict[str, Qwen3TTSModel], caplog: pytest.LogCaptureFixture
) -> None:
    """The tiny checkpoint greedily repeats itself forever; TTS.speak raises RunawayError."""
    with caplog.at_level("WARNING", "vivace"):
        waves, _ = models["custom_voice"].generate_custom_voice(
            "Good morning.", "Ryan", "english", do_sample=False, subtalker_dosample=False
        )
    assert len(waves[0]) > 100 * 1920
    assert "did not end by itself" in caplog.text


# --- Loading ------------------------------------------------------------------------------------


def test_from_pretrained_rejects_unknown_keywords_only(
    tiny_folder: Path,
) -> None:
    folder = tiny_folder / "custom_voice"
    for strange in ({"foo": 1}, {"device": "cpu"}, {"load_in_8bit": True}):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(strange))}'"):
            Qwen3TTSModel.from_pretrained(folder, **strange)
    model = Qwen3TTSModel.from_pretrained(
        folder, device_map={"": "cpu"}, torch_dtype=torch.float32, low_cpu_mem_usage=True
    )
    assert model.device == torch.device("cpu")


def test_from_pretrained_passes_hub_arguments_on(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        seen.update(options, name=name)
        return str(tiny_folder / "custom_voice")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    asked = {"revision": "85e237c", "cache_dir": tmp_path, "local_files_only": True, "token": "t"}
    Qwen3TTSModel.from_pretrained("org/model", device_map="cpu", **asked)
    assert {name: seen[name] for name in asked} == asked
    assert seen["name"] == "org/model"


def test_speaker_name_is_not_case_sensitive(tiny_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder / "custom_voice", tmp_path / "custom_voice")
    config = json.loads((folder / "config.json").read_text())
    config["talker_config"]["spk_id"] = {"Speaker_Test": 900}
    config["talker_config"]["spk_is_dialect"] = {"Speaker_Test": False}
    (folder / "config.json").write_text(json.dumps(config))
    model = Qwen3TTSModel.from_pretrained(folder, device_map="cpu")
    assert model.get_supported_speakers() == ["speaker_test"]
    made = [
        model.generate_custom_voice("Hi.", name, seed=1, max_new_tokens=5)[0][0]
        for name in ("speaker_test", "Speaker_Test", "SPEAKER_TEST")
    ]
    assert np.array_equal(made[0], made[1])
    assert np.array_equal(made[0], made[2])


# --- Attributes ---------------------------------------------------------------------------------


def test_processor_returns_the_official_ids(models: dict[str, Qwen3TTSModel]) -> None:
    model = models["custom_voice"]
    golden = json.loads((GOLDEN / "tokens.json").read_text())
    for entry in golden["texts"]:
        assert model.processor(text=entry["text"])["input_ids"] == [entry["ids"]]
    for entry in golden["templates"]:
        (ids,) = model._tokenize_texts([model._build_assistant_text(entry["text"])])
        assert ids.tolist() == [entry["ids"]]


def test_processor_pads_on_the_left(models: dict[str, Qwen3TTSModel]) -> None:
    found = models["custom_voice"].processor(text=["ab c", "d"], return_tensors="pt", padding=True)
    assert found["input_ids"].tolist() == [[64, 65, 220, 66], [303, 303, 303, 67]]
    assert found.attention_mask.tolist() == [[1, 1, 1, 1], [0, 0, 0, 1]]
    assert models["custom_voice"].processor.decode(found.input_ids[0]) == "ab c"


def test_model_attributes_describe_the_checkpoint(models: dict[str, Qwen3TTSModel]) -> None:
    model = models["base"].model
    assert (model.tts_model_type, model.tts_model_size) == ("base", "0b6")
    assert model.config.talker_config.num_code_groups == 16
    assert model.config.talker_config.code_predictor_config.vocab_size == 64
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float32)
    assert model.get_supported_languages()[0] == "auto"


def test_extract_speaker_embedding_equals_the_clone_vector(
    models: dict[str, Qwen3TTSModel], reference: tuple[np.ndarray, int]
) -> None:
    vector = models["base"].model.extract_speaker_embedding(*reference)
    items = models["base"].create_voice_clone_prompt(reference, x_vector_only_mode=True)
    assert torch.equal(vector, items[0].ref_spk_embedding)


# --- Prompts ------------------------------------------------------------------------------------


def test_prompt_dict_needs_ref_text_but_not_icl_mode(
    models: dict[str, Qwen3TTSModel], reference: tuple[np.ndarray, int]
) -> None:
    model, words = models["base"], "A long reference."
    items = model.create_voice_clone_prompt(reference, words)
    whole = model._prompt_items_to_voice_clone_prompt(items)
    speak = partial(model.generate_voice_clone, "Again.", **BRIEF)
    expected = speak(voice_clone_prompt=items)[0][0]
    for left_out in (
        (),
        ("icl_mode",),
        ("x_vector_only_mode",),
        ("icl_mode", "x_vector_only_mode"),
    ):
        prompt = {name: value for name, value in whole.items() if name not in left_out}
        found = speak(voice_clone_prompt=prompt, ref_text=words)[0][0]
        assert np.array_equal(found, expected), left_out
        with pytest.raises(ValueError, match="ref_text is required"):
            speak(voice_clone_prompt=prompt)
    vector = speak(voice_clone_prompt={"ref_spk_embedding": whole["ref_spk_embedding"]})[0][0]
    assert not np.array_equal(vector, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ref_spk_embedding": None}, "missing required keys"),
        ({"ref_code": None}, "ref_code is required in ICL mode"),
        ({"x_vector_only_mode": [True]}, "inconsistent mode flags at index 0"),
        ({"icl_mode": [True, True]}, "must be a list with length 1"),
    ],
)
def test_inconsistent_prompt_dict_is_rejected(
    models: dict[str, Qwen3TTSModel],
    reference: tuple[np.ndarray, int],
    change: dict[str, Any],
    message: str,
) -> None:
    model = models["base"]
    items = model.create_voice_clone_prompt(reference, "Words.")
    prompt = model._prompt_items_to_voice_clone_prompt(items) | change
    with pytest.raises(ValueError, match=message):
        model.generate_voice_clone("Hm.", voice_clone_prompt=prompt, ref_text="Words.", **GREEDY)


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
def test_error_messages_equal_the_official_ones(
    models: dict[str, Qwen3TTSModel], call: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(models)


def test_supported_names_equal_the_official_ones(models: dict[str, Qwen3TTSModel]) -> None:
    languages = models["custom_voice"].get_supported_languages()
    assert languages == sorted(languages)
    assert "auto" in languages
    assert not any("dialect" in name for name in languages)
    assert "vivian" in models["custom_voice"].get_supported_speakers()


@pytest.mark.parametrize("language", ["en", "en-US", "EN", "English"])
def test_language_codes_are_accepted(models: dict[str, Qwen3TTSModel], language: str) -> None:
    model = models["custom_voice"]
    expected, _ = model.generate_custom_voice("Hi.", "ryan", "english", **BRIEF)
    waves, _ = model.generate_custom_voice("Hi.", "ryan", language, **BRIEF)
    assert np.array_equal(waves[0], expected[0])
    for bad in ("", "xx"):
        with pytest.raises(ValueError, match="Unsupported languages"):
            model.generate_custom_voice("Hi.", "ryan", bad, **BRIEF)
