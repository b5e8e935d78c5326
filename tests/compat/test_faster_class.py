"""The classes of faster-qwen3-tts by their own names, and the calls of speech-to-speech."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import ROOT, load_script
from vivace.audio.files import read_audio
from vivace.compat import FasterQwen3TTS, Qwen3TTSCudaGraphs

SHORT = {"max_new_tokens": 26, "min_new_tokens": 26, "seed": 4}
METHODS = ("generate_voice_clone", "generate_custom_voice", "generate_voice_design")


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
    from vivace.audio.files import write_audio

    waves = load_script(ROOT / "scripts" / "official" / "waves.py")
    path = tmp_path_factory.mktemp("reference") / "ref_audio.wav"
    return str(write_audio(path, waves.synthetic_wave(2.0), 24_000))


def stream(models: dict[str, FasterQwen3TTS], **options: Any) -> list[Any]:
    return list(
        models["custom_voice"].generate_custom_voice_streaming(
            text="A number of words.", speaker="aiden", language="English", **options
        )
    )


@pytest.mark.parametrize("chunk_size", [1, 2, 5, 8, 12, 25, 40])
def test_streamed_chunks_are_the_whole_and_the_last_is_final(
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
    assert {"prefill_ms", "decode_ms"} <= set(timings[0])


def test_greedy_is_greedy_for_all_sixteen_codebooks(models: dict[str, FasterQwen3TTS]) -> None:
    options = {"max_new_tokens": 12, "do_sample": False}
    first, second = (
        models["custom_voice"].generate_custom_voice("Same.", "ryan", "english", **options)[0][0]
        for _ in range(2)
    )
    assert np.array_equal(first, second)


def test_the_temperature_reaches_the_residual_codebooks(
    models: dict[str, FasterQwen3TTS],
) -> None:
    speak = models["custom_voice"].generate_custom_voice
    cold, hot = (
        speak("Same.", "ryan", "english", temperature=t, top_k=k, seed=3, max_new_tokens=6)[0][0]
        for t, k in ((0.9, 1), (1.9, 50))
    )
    greedy = speak("Same.", "ryan", "english", do_sample=False, max_new_tokens=6)[0][0]
    assert np.array_equal(cold, greedy)  # top_k 1 leaves nothing to draw, in any codebook
    assert not np.array_equal(hot, greedy)


def test_speech_to_speech_finds_what_it_calls(
    models: dict[str, FasterQwen3TTS], recording: str
) -> None:
    """The handler's calls: warm-up, the type, presets, streaming dropped half-way, and again."""
    for name, model in models.items():
        model.warmup(prefill_len=20)
        assert model.model.model.tts_model_type == name
        assert isinstance(model.get_supported_speakers(), list)
        assert model.sample_rate == 24_000
    backend = models["base"].tts.engine.backend
    options = {"language": "auto", "non_streaming_mode": True, "chunk_size": 8}
    half = models["base"].generate_voice_clone_streaming(
        text="Interrupted.", ref_audio=recording, ref_text="Words.", **options
    )
    next(half)
    half.close()
    assert not backend._slots  # type: ignore[attr-defined]
    again = models["base"].generate_voice_clone_streaming(
        text="Again.", ref_audio=recording, ref_text="Words.", **options, **SHORT
    )
    assert list(again)[-1][2]["is_final"]
    design = models["voice_design"].generate_voice_design_streaming(
        text="Hello.", instruct="Warm.", language="english", chunk_size=8, **SHORT
    )
    assert len(list(design)) == 4


def test_a_reference_is_taken_in_once(
    models: dict[str, FasterQwen3TTS], recording: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["base"]
    model._references.clear()
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


def test_silence_is_appended_before_codes_and_speaker_alike(
    models: dict[str, FasterQwen3TTS], recording: str
) -> None:
    model = models["base"]
    plain = read_audio(recording)
    silence = np.zeros(plain.sample_rate // 2, np.float32)
    by_hand = (np.concatenate((plain.samples, silence)), plain.sample_rate)
    ours = model.tts.clone(by_hand, "Words.", append_silence=False)
    theirs = model._clone(recording, "Words.", False, True, None)
    assert np.array_equal(theirs.speaker, ours.speaker)
    assert np.array_equal(theirs.ref_codes, ours.ref_codes)
    without = model._clone(recording, "Words.", False, False, None)
    assert np.array_equal(without.speaker, model.tts.clone(recording).speaker)


def test_a_clone_needs_a_reference_and_its_words(
    models: dict[str, FasterQwen3TTS], recording: str
) -> None:
    with pytest.raises(ValueError, match="voice_clone_prompt"):
        models["base"].generate_voice_clone("Hi.", "english")
    with pytest.raises(ValueError, match="ref_text is required"):
        models["base"].generate_voice_clone("Hi.", "english", recording)
    first_release = Qwen3TTSCudaGraphs(models["base"].tts)
    waves, _ = first_release.generate_voice_clone("Hi.", "english", recording, max_new_tokens=4)
    assert len(waves[0]) == 3 * 1920


def test_an_unknown_argument_is_not_dropped(models: dict[str, FasterQwen3TTS]) -> None:
    with pytest.raises(TypeError, match="top_z"):
        models["custom_voice"].generate_custom_voice("Hi.", "ryan", "english", top_z=1)


@pytest.mark.parametrize("method", METHODS)
def test_defaults_are_those_of_the_peer(method: str) -> None:
    streaming = inspect.signature(getattr(FasterQwen3TTS, f"{method}_streaming")).parameters
    assert streaming["chunk_size"].default == 12
    assert streaming["non_streaming_mode"].default is None
    if method == "generate_voice_clone":
        whole = inspect.signature(FasterQwen3TTS.generate_voice_clone).parameters
        assert whole["xvec_only"].default is False
        assert whole["append_silence"].default is True
        assert whole["ref_text"].default == ""
    loading = inspect.signature(FasterQwen3TTS.from_pretrained).parameters
    assert (loading["device"].default, loading["max_seq_len"].default) == ("cuda", 2048)
