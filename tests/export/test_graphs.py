"""The graphs of `vivace export` make the codes and samples of the package, in float32."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.export.conftest import Exported, Opened
from tests.support.tiny import Tiny
from vivace import TTS
from vivace.backends.eager import EagerBackend
from vivace.errors import CheckpointError, NumericError, RequestError, UnknownVoiceError
from vivace.prompt import build_prompt
from vivace.speech import SamplingParams

pytest.importorskip("onnxruntime")

from vivace.export.runner import OnnxVoice

MAX_ERROR_DB = -80.0
FADE = 480  # samples; a trimmed start fades in
TEXT_IDS = [3, 17, 5, 8, 40, 2]
SAMPLINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"temperature": 0.0, "predictor_temperature": 0.0},
    "top_p": {"top_p": 0.6, "predictor_top_p": 0.5, "repetition_penalty": 1.3},
    "all codes": {"top_k": 0, "predictor_top_k": 0, "temperature": 1.3, "seed": 2**40 + 9},
    "late end": {"min_frames": 12, "repetition_penalty": 0.7},
}


def error_db(samples: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    assert len(samples) == len(reference)
    power = float(np.square(reference).mean())
    return float(10 * np.log10(np.square(samples - reference).mean() / power + 1e-30))


def speaker_of(tiny: Tiny) -> NDArray[np.float32] | None:
    if tiny.checkpoint.config.tts_model_type != "base":
        return None
    width = tiny.checkpoint.config.talker_config.hidden_size
    return np.random.default_rng(0).normal(size=width).astype(np.float32)


def package_codes(tiny: Tiny, preset: str | None, sampling: SamplingParams) -> NDArray[np.int64]:
    """The codes of the eager backend."""
    config = tiny.checkpoint.config
    prompt = build_prompt(
        config,
        TEXT_IDS,
        role_ids=tiny.tokenizer.role_ids("assistant"),
        layout="streamed" if config.tts_model_type == "base" else "whole",
        preset=preset,
        speaker=speaker_of(tiny),
    )
    backend = tiny.backend()
    slot = backend.admit(prompt, sampling)
    return backend.step([slot], sampling.max_frames).of(0)


MODELS = ("custom_voice", "custom_voice_projected", "base", "voice_design")
# Every sampling with one model, one with a projection and one with a speaker; others are slow.
OTHERS = [("custom_voice_projected", "default"), ("base", "default")]
PAIRS = [
    pytest.param(
        model,
        options,
        id=f"{model}-{name}",
        marks=() if model == MODELS[0] or (model, name) in OTHERS else pytest.mark.slow,
    )
    for model in MODELS
    for name, options in SAMPLINGS.items()
]


@pytest.mark.parametrize(("name", "options"), PAIRS)
def test_codes_equal_those_of_the_eager_backend(
    name: str, options: dict[str, Any], opened: Opened, tiny: Callable[[str], Tiny]
) -> None:
    voice = opened(name)
    one = tiny(name)
    preset = next(iter(one.checkpoint.config.talker_config.spk_id), None)
    preset = preset if name.startswith("custom") else None
    sampling = dataclasses.replace(
        one.checkpoint.sampling, **{"seed": 5, "max_frames": 16, **options}
    )
    made = voice.frames(TEXT_IDS, sampling, voice=preset or "", speaker=speaker_of(one))
    codes = np.array(list(made))
    assert np.array_equal(codes, package_codes(one, preset, sampling))
    assert 0 < len(codes) <= 16


@pytest.mark.parametrize(("text", "preset", "seed"), [
    ("Hello, this is a test.", "heart", 3),
    ("Then it began to rain.", "michael", 2**40 + 11),
])  # fmt: skip
def test_embedded_voice_has_the_codes_and_samples_of_tts(
    text: str, preset: str, seed: int, opened: Opened
) -> None:
    voice = opened("mini")
    with TTS.load(backend="eager") as tts:
        spoken = list(tts.stream(text, voice=preset, seed=seed, trim=False))
        reference = np.concatenate([chunk.samples for chunk in spoken])
        codes = np.concatenate([chunk.codes for chunk in spoken])
        text_ids = tts.tokenizer.encode(text)
    made = list(
        voice.frames(text_ids, dataclasses.replace(voice.sampling, seed=seed), voice=preset)
    )
    assert np.array_equal(np.array(made), codes)
    samples = voice.decode(np.array(made), voice.new_stream())
    start = len(samples) - len(reference) + FADE  # silence before the first word is trimmed
    assert error_db(samples[start:], reference[FADE:]) < MAX_ERROR_DB


@pytest.mark.parametrize("sizes", [[1] * 30, [4, 1, 24, 1], [30]])
def test_streamed_samples_equal_those_of_the_codec(
    sizes: list[int], opened: Opened, tiny: Callable[[str], Tiny]
) -> None:
    one = tiny("custom_voice")
    config = one.checkpoint.codec_config.decoder_config
    shape = sum(sizes), config.num_quantizers
    codes = np.random.default_rng(1).integers(0, config.codebook_size, shape)
    backend = EagerBackend(one.model, one.codec)
    reference = backend.decode(codes, backend.new_codec_state())
    voice = opened("custom_voice")
    stream = voice.new_stream()
    parts = [voice.decode(part, stream) for part in np.split(codes, np.cumsum(sizes)[:-1])]
    assert error_db(np.concatenate(parts), reference) < MAX_ERROR_DB
    assert stream.num_frames == len(codes)
    assert len(voice.decode(codes[:0], stream)) == 0


def test_changed_state_changes_the_samples(opened: Opened) -> None:
    """The control of the tests above: without its state, a stream is wrong."""
    voice = opened("custom_voice")
    codes = np.random.default_rng(1).integers(0, 8, (12, voice.manifest["num_codebooks"]))
    whole = voice.decode(codes, voice.new_stream())
    parts = [voice.decode(part, voice.new_stream()) for part in np.split(codes, 2)]
    assert error_db(np.concatenate(parts), whole) > MAX_ERROR_DB + 30


def test_speech_ends_at_max_frames(opened: Opened) -> None:
    voice = opened("mini")
    sampling = dataclasses.replace(voice.sampling, seed=1, max_frames=3)
    assert len(list(voice.frames(TEXT_IDS, sampling, voice="heart"))) == 3


def test_forced_codes_are_read_instead_of_drawn_ones(opened: Opened) -> None:
    voice = opened("mini")
    sampling = dataclasses.replace(voice.sampling, seed=1, max_frames=6)
    codes = np.array(list(voice.frames(TEXT_IDS, sampling, voice="heart")))
    again = np.array(list(voice.frames(TEXT_IDS, sampling, voice="heart", forced=codes)))
    assert np.array_equal(again, codes)
    other = np.roll(codes, 1, axis=0)
    changed = np.array(list(voice.frames(TEXT_IDS, sampling, voice="heart", forced=other)))
    assert np.array_equal(changed[0], codes[0])
    assert not np.array_equal(changed, codes)


def test_nonfinite_scores_raise_numeric_error(opened: Opened) -> None:
    voice = opened("base")
    sampling = dataclasses.replace(voice.sampling, seed=1)
    width = next(
        each["shape"][0]
        for each in voice.manifest["graphs"]["frame.onnx"]["inputs"]
        if each["name"] == "speaker"
    )
    speaker = np.full(width, np.nan, np.float32)
    with pytest.raises(NumericError, match="frame 0"):
        list(voice.frames(TEXT_IDS, sampling, speaker=speaker))


def test_unknown_voice_and_missing_seed_are_rejected(opened: Opened) -> None:
    voice = opened("mini")
    with pytest.raises(UnknownVoiceError, match="heart, michael"):
        list(voice.frames(TEXT_IDS, SamplingParams(seed=1), voice="nobody"))
    with pytest.raises(RequestError, match="choose a seed"):
        list(voice.frames(TEXT_IDS, SamplingParams(), voice="heart"))


def test_damaged_folder_is_rejected(exported: Exported, tmp_path: Path) -> None:
    folder = shutil.copytree(exported("custom_voice"), tmp_path / "damaged")
    graph = folder / "codec.onnx"
    content = graph.read_bytes()
    graph.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"codec\.onnx is missing or damaged"):
        OnnxVoice(folder)
