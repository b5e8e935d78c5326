"""`FasterQwen3TTS`, and the calls that speech-to-speech makes."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.support.official_calls import GOLDEN
from tests.support.project import ROOT, load_script
from vivace.audio.files import read_audio
from vivace.compat import FasterQwen3TTS, Qwen3TTSCudaGraphs

SHORT: dict[str, Any] = {"max_new_tokens": 25, "min_new_tokens": 25, "seed": 4}


@pytest.fixture(scope="module")
def models(tiny_folder: Path) -> dict[str, FasterQwen3TTS]:
    return {
        name: FasterQwen3TTS.from_pretrained(
            str(tiny_folder / name), device="cpu", dtype=torch.float32, attn_implementation="eager"
        )
        for name in ("custom_voice", "voice_design", "base")
    }


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    from vivace.audio.writer import write_audio

    waves = load_script(ROOT / "scripts" / "official" / "waves.py")
    path = tmp_path_factory.mktemp("reference") / "ref_audio.wav"
    return str(write_audio(path, waves.synthetic_wave(2.0), 24_000))


def stream(models: dict[str, FasterQwen3TTS], **options: Any) -> list[Any]:
    return list(
        models["custom_voice"].generate_custom_voice_streaming(
            text="A number of words.", speaker="aiden", language="English", **options
        )
    )


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(
    "chunk_size",
    [1, 12, 40, *(pytest.param(size, marks=pytest.mark.ci) for size in (2, 5, 8, 25))],
)
def test_streamed_chunks_equal_the_whole_and_the_last_is_final(
    models: dict[str, FasterQwen3TTS], chunk_size: int
) -> None:
    (whole,), rate = models["custom_voice"].generate_custom_voice(
        text="A number of words.", speaker="aiden", language="English", **SHORT
    )
    chunks = stream(models, chunk_size=chunk_size, **SHORT)
    assert rate == chunks[0][1] == 24_000
    samples = np.concatenate([audio for audio, _, _ in chunks])
    assert np.allclose(samples, whole, rtol=0, atol=5e-5)
    timings = [timing for _, _, timing in chunks]
    assert [t["is_final"] for t in timings] == [False] * (len(chunks) - 1) + [True]
    assert [t["chunk_index"] for t in timings] == list(range(len(chunks)))
    assert sum(t["chunk_steps"] for t in timings) == timings[-1]["total_steps_so_far"] == 25
    assert all(t["chunk_steps"] == chunk_size for t in timings[:-1])
    assert all(len(audio) for audio, _, _ in chunks)
    assert timings[0]["prefill_ms"] > 0
    assert not any(t["prefill_ms"] for t in timings[1:])
    assert all(t["decode_ms"] > 0 for t in timings)


def test_greedy_applies_to_all_codebooks(models: dict[str, FasterQwen3TTS]) -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}
    first, second = (
        models["custom_voice"].generate_custom_voice("Same.", "ryan", "english", **options)[0][0]
        for _ in range(2)
    )
    assert np.array_equal(first, second)


def test_temperature_applies_to_residual_codebooks(
    models: dict[str, FasterQwen3TTS],
) -> None:
    speak = models["custom_voice"].generate_custom_voice
    cold, hot = (
        speak("Same.", "ryan", "english", temperature=t, top_k=k, seed=3, max_new_tokens=6)[0][0]
        for t, k in ((0.9, 1), (1.9, 50))
    )
    greedy = speak("Same.", "ryan", "english", do_sample=False, max_new_tokens=6)[0][0]
    assert np.array_equal(cold, greedy)  # top_k=1 is deterministic in every codebook
    assert not np.array_equal(hot, greedy)


def test_attributes_used_by_speech_to_speech_exist(
    models: dict[str, FasterQwen3TTS], recording: str
) -> None:
    """Calls of the handler: warm-up, model type, presets, an abandoned stream, a second stream."""
    for name, model in models.items():
        model.warmup(prefill_len=20)
        assert model.model.model.tts_model_type == name
        assert isinstance(model.get_supported_speakers(), list)
        assert model.sample_rate == 24_000
    backend = models["base"].tts.engine.backend
    options: dict[str, Any] = {"language": "auto", "non_streaming_mode": True, "chunk_size": 8}
    half = models["base"].generate_voice_clone_streaming(
        text="Interrupted.", ref_audio=recording, ref_text="Words.", **options
    )
    next(half)
    assert isinstance(half, Generator)
    half.close()
    assert models["base"].tts.engine.call(lambda: not backend._slots)  # type: ignore[attr-defined]
    again = models["base"].generate_voice_clone_streaming(
        text="Again.", ref_audio=recording, ref_text="Words.", **options, **SHORT
    )
    assert list(again)[-1][2]["is_final"]
    design = models["voice_design"].generate_voice_design_streaming(
        text="Hello.", instruct="Warm.", language="english", chunk_size=8, **SHORT
    )
    assert len(list(design)) == 4


def test_equal_references_are_enrolled_once(
    models: dict[str, FasterQwen3TTS], recording: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["base"]
    model._references._voices.clear()
    calls: list[Any] = []
    clone = model.tts.clone

    def watch(*args: Any, **options: Any) -> Any:
        calls.append(options)
        return clone(*args, **options)

    monkeypatch.setattr(model.tts, "clone", watch)
    for _ in range(3):
        model.generate_voice_clone("Hi.", "english", recording, "Words.", max_new_tokens=4)
    assert len(calls) == 1
    model.generate_voice_clone("Hi.", "english", recording, xvec_only=True, max_new_tokens=4)
    assert len(calls) == 2


def test_silence_is_appended_before_codes_and_speaker_vector(
    models: dict[str, FasterQwen3TTS], recording: str
) -> None:
    model = models["base"]
    plain = read_audio(recording)
    silence = np.zeros(plain.sample_rate // 2, np.float32)
    by_hand = (np.concatenate((plain.samples, silence)), plain.sample_rate)
    ours = model.tts.clone(by_hand, "Words.", append_silence=False)
    theirs = model._references.voice(recording, "Words.", False, True, None)
    assert np.array_equal(theirs.speaker, ours.speaker)
    assert theirs.ref_codes is not None
    assert ours.ref_codes is not None
    assert np.array_equal(theirs.ref_codes, ours.ref_codes)
    without = model._references.voice(recording, "Words.", False, False, None)
    assert np.array_equal(without.speaker, model.tts.clone(recording).speaker)


def test_clone_without_reference_or_transcript_is_rejected(
    models: dict[str, FasterQwen3TTS], recording: str
) -> None:
    with pytest.raises(ValueError, match="voice_clone_prompt"):
        models["base"].generate_voice_clone("Hi.", "english")
    with pytest.raises(ValueError, match="ref_text is required"):
        models["base"].generate_voice_clone("Hi.", "english", recording)
    first_release = Qwen3TTSCudaGraphs(models["base"].tts)
    waves, _ = first_release.generate_voice_clone("Hi.", "english", recording, max_new_tokens=4)
    assert 0 < len(waves[0]) <= 4 * 1920  # sampled without a seed: speech may end earlier
    chunks = first_release.generate_voice_clone_streaming(
        "Hi.", None, recording, "", 5, 0.9, 50, False, 1.05, 2
    )
    assert [timing["chunk_steps"] for _, _, timing in chunks] == [2, 2, 1]


GOLDEN_CALLS = json.loads((GOLDEN / "faster.json").read_text())
GOLDEN_WAVES = load_file(GOLDEN / "faster.safetensors")


@pytest.mark.parametrize(
    "call",
    [  # half of the calls outside CI
        pytest.param(call, marks=pytest.mark.ci if number % 2 else ())
        for number, call in enumerate(GOLDEN_CALLS["calls"])
    ],
    ids=lambda call: call["name"],
)
def test_clone_equals_the_output_of_faster_qwen3_tts(
    models: dict[str, FasterQwen3TTS], recording: str, call: dict[str, Any]
) -> None:
    """Calls recorded with faster-qwen3-tts 0.5.4: instruct on a base, silence, languages."""
    options: dict[str, Any] = {"language": "english", **call["options"], **GOLDEN_CALLS["settings"]}
    model, text = models["base"], GOLDEN_CALLS["text"]
    (whole,), _ = model.generate_voice_clone(text, ref_audio=recording, **options)
    chunks = model.generate_voice_clone_streaming(
        text, ref_audio=recording, parity_mode=True, **options
    )
    streamed = np.concatenate([audio for audio, _, _ in chunks])
    for wave in (whole, streamed):
        assert len(wave) == call["num_samples"]
        np.testing.assert_allclose(wave[::61], GOLDEN_WAVES[call["name"]], rtol=0, atol=1e-4)


def test_prompt_dict_needs_ref_text_but_not_icl_mode(
    models: dict[str, FasterQwen3TTS], recording: str
) -> None:
    model = models["base"]
    items = model.model.create_voice_clone_prompt(recording, "Words.")
    prompt = model.model._prompt_items_to_voice_clone_prompt(items)
    del prompt["icl_mode"]
    options: dict[str, Any] = {"voice_clone_prompt": prompt, **GOLDEN_CALLS["settings"]}
    text, name = GOLDEN_CALLS["text"], "context_without_silence"
    (wave,), _ = model.generate_voice_clone(text, "english", ref_text="Words.", **options)
    np.testing.assert_allclose(wave[::61], GOLDEN_WAVES[name], rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="ref_text is required when voice_clone_prompt uses ICL"):
        model.generate_voice_clone(text, "english", **options)
    two = {**options, "voice_clone_prompt": items * 2}
    with pytest.raises(ValueError, match="must have length 1, got 2"):
        model.generate_voice_clone(text, "english", **two)


def test_generate_uses_the_first_preset_voice(models: dict[str, FasterQwen3TTS]) -> None:
    first, *_ = models["custom_voice"].model.model.get_supported_speakers()
    options: dict[str, Any] = {"max_new_tokens": 6, "seed": 3}
    ours = models["custom_voice"].generate("Hello.", **options)[0][0]
    preset = models["custom_voice"].generate_custom_voice("Hello.", first, "English", **options)
    assert np.array_equal(ours, preset[0][0])
    assert models["voice_design"].generate("Hello.", **options)[0][0].any()
    with pytest.raises(NotImplementedError, match="generate_voice_clone"):
        models["base"].generate("Hello.")


def test_call_without_speaker_uses_no_speaker(models: dict[str, FasterQwen3TTS]) -> None:
    speak = models["custom_voice"].generate_custom_voice
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}
    none, empty, first = (
        speak("Who is it?", speaker, "english", **options)[0][0] for speaker in (None, "", "serena")
    )
    assert np.array_equal(none, empty)
    assert not np.array_equal(none, first)


@pytest.mark.ci
@pytest.mark.parametrize("method", ["whole", pytest.param("streaming", marks=pytest.mark.ci)])
def test_default_call_returns_audio_with_a_warning(
    models: dict[str, FasterQwen3TTS], caplog: pytest.LogCaptureFixture, method: str
) -> None:
    model = models["custom_voice"]
    arguments: dict[str, Any] = {"text": "Good morning.", "speaker": "Ryan", "language": "english"}
    with caplog.at_level("WARNING", "vivace"):
        if method == "whole":
            (wave,), _ = model.generate_custom_voice(**arguments, do_sample=False)
        else:
            stream = model.generate_custom_voice_streaming(**arguments, do_sample=False)
            wave = np.concatenate([audio for audio, _, _ in stream])
    assert caplog.text.count("did not end by itself") == 1
    assert len(wave) > 100 * 1920


def test_attributes_report_device_and_backend(
    models: dict[str, FasterQwen3TTS], tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = models["base"]
    assert (model.device, model.dtype, model.max_seq_len) == ("cpu", torch.float32, 2048)
    assert model.speech_tokenizer is model.model.model.speech_tokenizer
    folder = str(tiny_folder / "custom_voice")
    with caplog.at_level("WARNING", "vivace"):
        FasterQwen3TTS.from_pretrained(folder, "cpu", "float32", backend="ggml", quant="Q8_0")
    assert "ggml" in caplog.text
    with pytest.raises(ValueError, match="Unsupported backend 'onnx'"):
        FasterQwen3TTS.from_pretrained(folder, "cpu", backend="onnx")
    with pytest.raises(NotImplementedError, match="GGUF"):
        FasterQwen3TTS.from_pretrained(folder, "cpu", gguf_talker_path="talker.gguf")
    with pytest.raises(TypeError, match="no_such"):
        FasterQwen3TTS.from_pretrained(folder, "cpu", no_such=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m["base"].generate_custom_voice("a", "b", "c"), ValueError, "custom voice gen"),
        (lambda m: m["base"].generate_voice_design("a", "b", "c"), ValueError, "voice design gen"),
        (
            lambda m: m["custom_voice"].generate_custom_voice("a", "ryan", None),
            ValueError,
            r"Unsupported languages: \[None\]",
        ),
        (
            lambda m: m["base"].generate_voice_clone("a", "english", ref_rvq="x.rvq"),
            NotImplementedError,
            "ref_spk/ref_rvq cached",
        ),
    ],
)
def test_error_messages_equal_those_of_faster_qwen3_tts(
    models: dict[str, FasterQwen3TTS], call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(models)


def test_unknown_argument_raises_type_error(models: dict[str, FasterQwen3TTS]) -> None:
    unknown: dict[str, Any] = {"top_z": 1}
    with pytest.raises(TypeError, match="top_z"):
        models["custom_voice"].generate_custom_voice("Hi.", "ryan", "english", **unknown)


def test_loading_without_a_cuda_gpu_falls_back_with_a_warning(
    tiny_folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    folder = str(tiny_folder / "custom_voice")
    with caplog.at_level("WARNING", "vivace"):
        for arguments in ((), ("cuda",), ("cuda:1", "bfloat16")):
            caplog.clear()
            model = FasterQwen3TTS.from_pretrained(folder, *arguments)
            assert (model.device, model.dtype) == ("cpu", torch.float32)
            assert "no CUDA GPU found; using cpu" in caplog.text
        caplog.clear()
        FasterQwen3TTS.from_pretrained(folder, "cpu")
    assert "CUDA" not in caplog.text


def test_language_codes_are_accepted(models: dict[str, FasterQwen3TTS]) -> None:
    speak = models["custom_voice"].generate_custom_voice
    options: dict[str, Any] = {"max_new_tokens": 4, "seed": 1}
    (expected,), _ = speak("Hi.", "ryan", "french", **options)
    (wave,), _ = speak("Hi.", "ryan", "fr-CA", **options)
    assert np.array_equal(wave, expected)
