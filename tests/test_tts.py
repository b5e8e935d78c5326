"""`TTS`: speech, voices, errors and life cycle."""

from __future__ import annotations

import dataclasses
import json
import shutil
import wave
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray

from tests.support.slots import auto_backend_name
from vivace import TTS, SamplingParams, Voice
from vivace.errors import (
    AudioError,
    CheckpointError,
    ClosedError,
    NumericError,
    RequestError,
    TextTooLongError,
    UnknownLanguageError,
    UnknownVoiceError,
    UnsupportedRequestError,
    VoiceMismatchError,
)

TEXT = "Hello there, said the user."
TRANSCRIPT = "These are the words of the recording."
FRAME_SAMPLES = 1920
LANGUAGES = [
    "chinese", "english", "french", "german", "italian",
    "japanese", "korean", "portuguese", "russian", "spanish",
]  # fmt: skip
SPEAKERS = ["aiden", "dylan", "eric", "ono_anna", "ryan", "serena", "sohee", "uncle_fu", "vivian"]
TYPES = {
    "custom_voice": "custom_voice",
    "custom_voice_projected": "custom_voice",
    "voice_design": "voice_design",
    "base": "base",
    "base_projected": "base",
}

LoadTTS = Callable[[str], TTS]


@pytest.fixture(scope="module")
def load_tts(tiny_folder: Path) -> LoadTTS:
    """A TTS of a tiny checkpoint, each loaded once."""
    return cache(lambda name: TTS.load(tiny_folder / name, device="cpu"))


@pytest.fixture(scope="module")
def custom(load_tts: LoadTTS) -> TTS:
    return load_tts("custom_voice")


@pytest.fixture(scope="module")
def base(load_tts: LoadTTS) -> TTS:
    return load_tts("base")


@pytest.fixture(scope="module")
def ways(load_tts: LoadTTS) -> Callable[[str], tuple[TTS, dict[str, Any]]]:
    """A TTS and the arguments that choose the voice, one for each way of speaking."""

    @cache
    def find(way: str) -> tuple[TTS, dict[str, Any]]:
        if way in ("x_vector", "in_context"):
            tts = load_tts("base")
            transcript = TRANSCRIPT if way == "in_context" else None
            return tts, {"voice": tts.clone(make_recording(), transcript)}
        if way == "voice_design":
            return load_tts(way), {"instruct": "A deep and calm voice."}
        return load_tts("custom_voice"), {"voice": "vivian"}

    return find


def make_recording(seconds: float = 1.5, rate: int = 24_000) -> tuple[NDArray[np.float32], int]:
    """A signal like a vowel: harmonics that rise and fall, with a little noise."""
    t = np.arange(round(seconds * rate)) / rate
    tones = sum(np.sin(2 * np.pi * 140 * n * t) / n for n in range(1, 9))
    noise = np.random.default_rng(0).standard_normal(len(t))
    return (0.1 * tones * np.sin(3 * t) ** 2 + 0.002 * noise).astype(np.float32), rate


def copy_with(folder: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a checkpoint with a changed config.json."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    change(config)
    (target / "config.json").write_text(json.dumps(config))
    return target


# --- Attributes -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "model_type"), TYPES.items())
def test_repr_and_attributes_describe_the_checkpoint(
    load_tts: LoadTTS, name: str, model_type: str
) -> None:
    tts = load_tts(name)
    assert tts.model_type == model_type
    assert tts.sample_rate == 24_000
    assert tts.device == torch.device("cpu")
    assert tts.dtype == torch.float32
    backend = auto_backend_name()
    assert repr(tts.tokenizer) == f"<TextTokenizer with {tts.tokenizer.vocab_size:,} ids>"
    assert repr(tts.engine) == f"<Engine, backend {backend}: 0 running, 0 waiting, 256 slots>"
    assert repr(tts) == f"<TTS {model_type} {name} on cpu in float32, backend {backend}>"


def test_speakers_of_each_checkpoint_type(load_tts: LoadTTS) -> None:
    assert load_tts("custom_voice").speakers == SPEAKERS
    assert load_tts("voice_design").speakers == []
    assert load_tts("base").speakers == []


def test_languages_begin_with_auto_and_include_dialects(load_tts: LoadTTS) -> None:
    assert load_tts("base").languages == ["auto", *LANGUAGES]
    dialects = ["beijing_dialect", "sichuan_dialect"]
    assert load_tts("custom_voice").languages == ["auto", *sorted([*LANGUAGES, *dialects])]


def test_sampling_defaults_are_the_checkpoints_own(custom: TTS) -> None:
    assert custom.sampling == SamplingParams(predictor_temperature=0.9, max_frames=8191)


# --- Speaking ---------------------------------------------------------------------------------

WAYS = ("custom_voice", "voice_design", "x_vector", "in_context")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text_layout", [None, "whole", "streamed"])
def test_samples_are_a_multiple_of_a_frame(
    ways: Callable[[str], tuple[TTS, dict[str, Any]]], way: str, text_layout: Any
) -> None:
    tts, chosen = ways(way)
    audio = tts.speak(
        TEXT, seed=3, min_frames=5, max_frames=5, text_layout=text_layout, **chosen
    )  # fmt: skip
    assert audio.codes.shape == (5, 16)
    assert audio.codes.dtype == np.int64
    assert audio.codes.min() >= 0
    assert audio.codes.max() < 64
    assert audio.samples.shape == (5 * FRAME_SAMPLES,)
    assert audio.samples.dtype == np.float32
    assert np.abs(audio.samples).max() <= 1
    assert np.std(audio.samples) > 1e-4
    assert audio.sample_rate == 24_000
    assert audio.duration_s == pytest.approx(0.4)
    assert audio.finish_reason == "length"


@pytest.mark.parametrize("way", WAYS)
def test_usage_counts_tokens_frames_and_seconds(
    ways: Callable[[str], tuple[TTS, dict[str, Any]]], way: str
) -> None:
    tts, chosen = ways(way)
    usage = tts.speak("the 12", seed=11, min_frames=3, max_frames=3, **chosen).usage
    assert usage.text_tokens == 4
    assert usage.frames == 3
    assert usage.audio_s == pytest.approx(0.24)
    assert usage.seed == 11
    assert usage.wall_s > 0
    assert usage.times_real_time == pytest.approx(usage.audio_s / usage.wall_s)


@pytest.mark.parametrize("way", WAYS)
def test_equal_seed_gives_equal_codes_and_samples(
    ways: Callable[[str], tuple[TTS, dict[str, Any]]], way: str
) -> None:
    tts, chosen = ways(way)
    first = tts.speak(TEXT, seed=2**63 - 1, max_frames=4, **chosen)
    again = tts.speak(TEXT, seed=2**63 - 1, max_frames=4, **chosen)
    other = tts.speak(TEXT, seed=0, max_frames=4, **chosen)
    np.testing.assert_array_equal(first.codes, again.codes)
    np.testing.assert_array_equal(first.samples, again.samples)
    assert not np.array_equal(first.codes, other.codes)


def test_call_without_seed_draws_and_reports_one(custom: TTS) -> None:
    first, second = (custom.speak(TEXT, max_frames=4) for _ in range(2))
    assert first.usage.seed != second.usage.seed
    assert not np.array_equal(first.codes, second.codes)
    again = custom.speak(TEXT, max_frames=4, seed=first.usage.seed)
    np.testing.assert_array_equal(first.codes, again.codes)


def test_temperature_zero_ignores_the_seed(custom: TTS) -> None:
    greedy = [custom.speak(TEXT, temperature=0, max_frames=6, seed=s).codes for s in (1, 2)]
    np.testing.assert_array_equal(greedy[0], greedy[1])
    half = [
        custom.speak(
            TEXT, temperature=0, predictor_temperature=0.9, max_frames=6, seed=seed
        ).codes
        for seed in (1, 2)
    ]  # fmt: skip
    assert not np.array_equal(half[0], half[1]), "residual codes should still be drawn"


def test_speech_that_ends_by_itself_has_finish_reason_stop(custom: TTS) -> None:
    audio = custom.speak(TEXT, temperature=5.0, top_k=0, seed=3, max_frames=400)
    assert audio.finish_reason == "stop"
    assert 2 <= len(audio.codes) < 400
    assert len(audio.samples) == len(audio.codes) * FRAME_SAMPLES


def test_min_frames_delays_the_end(custom: TTS) -> None:
    audio = custom.speak(TEXT, temperature=5.0, top_k=0, seed=3, min_frames=10, max_frames=400)
    assert len(audio.codes) >= 10


def test_voice_language_and_instruct_change_the_codes(load_tts: LoadTTS) -> None:
    tts = load_tts("custom_voice_projected")
    choices: list[dict[str, Any]] = [
        {"voice": "vivian"},
        {"voice": "ryan"},
        {"voice": "vivian", "language": "german"},
        {"voice": "vivian", "instruct": "Whisper."},
    ]
    spoken = [tts.speak(TEXT, temperature=0, max_frames=12, **choice).codes for choice in choices]
    assert len({codes.tobytes() for codes in spoken}) == len(choices)


def test_names_of_voices_and_languages_are_not_case_sensitive(custom: TTS) -> None:
    small = custom.speak(TEXT, voice="vivian", language="english", seed=1, max_frames=3)
    large = custom.speak(TEXT, voice="Vivian", language="English", seed=1, max_frames=3)
    np.testing.assert_array_equal(small.codes, large.codes)


def test_default_voice_is_the_first_preset(custom: TTS) -> None:
    chosen = custom.speak(TEXT, voice="serena", seed=1, max_frames=3)
    np.testing.assert_array_equal(custom.speak(TEXT, seed=1, max_frames=3).codes, chosen.codes)


def test_text_of_exactly_the_limit_is_spoken(custom: TTS) -> None:
    assert custom.speak("a" * 4096, split=False, max_frames=1).usage.text_tokens == 4096


def test_in_context_audio_starts_after_the_reference(base: TTS, tiny: Any) -> None:
    voice = base.clone(make_recording(), TRANSCRIPT)
    audio = base.speak(TEXT, voice=voice, seed=1, max_frames=4)
    assert voice.ref_codes is not None
    codes = torch.from_numpy(np.concatenate((voice.ref_codes, audio.codes)))
    with torch.inference_mode():
        whole = tiny("base").codec.decode(codes).numpy()
    expected = whole[len(voice.ref_codes) * FRAME_SAMPLES :]
    np.testing.assert_allclose(audio.samples, expected, atol=1e-5)
    with torch.inference_mode():
        alone = tiny("base").codec.decode(torch.from_numpy(audio.codes)).numpy()
    assert np.abs(audio.samples - alone).max() > 1e-3, "the reference should be heard"


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16
def test_bfloat16_applies_to_the_talker_only(tiny_folder: Path) -> None:
    with TTS.load(tiny_folder / "custom_voice", device="cpu", dtype=torch.bfloat16) as tts:
        assert tts.dtype == torch.bfloat16
        assert tts.loaded.runtime.codec.decoder.pre_conv.conv.weight.dtype == torch.float32
        assert tts.speak(TEXT, max_frames=2).samples.dtype == np.float32


def test_saved_audio_is_a_standard_wav(custom: TTS, tmp_path: Path) -> None:
    audio = custom.speak(TEXT, seed=1, max_frames=3)
    path = audio.save(tmp_path / "hello.wav")
    with wave.open(str(path)) as file:
        assert file.getparams()[:4] == (1, 2, 24_000, 3 * FRAME_SAMPLES)
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == 24_000
    np.testing.assert_allclose(samples, audio.samples, atol=1 / 32_768)


def test_save_with_unknown_extension_raises_with_the_known_ones(
    custom: TTS, tmp_path: Path
) -> None:
    audio = custom.speak(TEXT, max_frames=1)
    with pytest.raises(AudioError, match=r"hello\.xyz.*\.wav, \.flac"):
        audio.save(tmp_path / "hello.xyz")
    assert list(tmp_path.iterdir()) == []


# --- Open and closed --------------------------------------------------------------------------


def test_context_exit_closes_the_tts(tiny_folder: Path) -> None:
    with TTS.load(tiny_folder / "base", device="cpu") as tts:
        voice = tts.clone(make_recording())
        assert tts.speak(TEXT, voice=voice, max_frames=1).usage.frames == 1
    uses: list[Callable[[], Any]] = [
        lambda: tts.speak(TEXT, voice=voice),
        lambda: tts.clone(make_recording()),
        lambda: tts.device,
        lambda: tts.dtype,
    ]
    for use in uses:
        with pytest.raises(ClosedError, match="was closed; load it again"):
            use()
    assert tts.model_type == "base"
    assert repr(tts) == "<TTS base base, closed>"
    tts.close()  # a second close has no effect


def test_error_inside_the_context_closes_the_tts_and_propagates(tiny_folder: Path) -> None:
    with (
        pytest.raises(RequestError, match="text is empty"),
        TTS.load(tiny_folder / "custom_voice", device="cpu") as tts,
    ):
        tts.speak("")
    with pytest.raises(ClosedError):
        tts.speak(TEXT)


# --- Text that cannot be spoken ---------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " ", "\n\t \r\n", "\u3000\u00a0", "\u200b\u2060\ufeff", "\0"])
def test_empty_or_blank_text_is_rejected(custom: TTS, text: str) -> None:
    with pytest.raises(RequestError, match="text is empty or blank"):
        custom.speak(text)


@pytest.mark.parametrize("text", [None, 5, b"Hello."])
def test_text_of_another_type_raises_with_the_type(custom: TTS, text: Any) -> None:
    with pytest.raises(RequestError, match=f"text must be a string.*, not {type(text).__name__}"):
        custom.speak(text)


def test_overlong_text_raises_with_length_and_limit(custom: TTS) -> None:
    with pytest.raises(TextTooLongError, match=r"1,000,001 characters and the limit is 1,000,000"):
        custom.speak("a" * 1_000_001)


def test_text_that_does_not_fit_in_the_model_is_rejected_before_it_runs(
    tiny_folder: Path, tmp_path: Path
) -> None:
    def shrink(config: dict[str, Any]) -> None:
        config["talker_config"]["max_position_embeddings"] = 40

    folder = copy_with(tiny_folder / "custom_voice", tmp_path / "short", shrink)
    with TTS.load(folder, device="cpu") as tts:
        assert tts.speak("a" * 20, min_frames=50).finish_reason == "length"
        with pytest.raises(TextTooLongError, match="limit is 39; split it"):
            tts.speak("a" * 40)


@pytest.mark.parametrize("text", ["Hi \ud800!", "\udfff", "\udcff in the middle"])
def test_lone_surrogate_raises_with_its_position(custom: TTS, text: str) -> None:
    with pytest.raises(RequestError, match=r"character \d of the text is half of a surrogate pair"):
        custom.speak(text)


def test_surrogate_pair_is_an_ordinary_letter(custom: TTS) -> None:
    assert custom.speak("😀", keep_emoji=True, max_frames=1).usage.text_tokens == 4


def test_special_token_in_the_text_is_plain_text(custom: TTS) -> None:
    assert custom.speak("<|im_end|>", max_frames=1).usage.text_tokens > 3


# --- Unknown voices and languages -------------------------------------------------------------


@pytest.mark.parametrize("voice", ["nobody", "", "vivian ", "../vivian", "\ud800"])
def test_unknown_voice_raises_with_the_known_ones(custom: TTS, voice: str) -> None:
    with pytest.raises(UnknownVoiceError) as refusal:
        custom.speak(TEXT, voice=voice)
    assert repr(voice) in str(refusal.value)
    assert ", ".join(SPEAKERS) in str(refusal.value)


def test_unknown_language_raises_with_the_known_ones(base: TTS) -> None:
    voice = base.clone(make_recording())
    with pytest.raises(UnknownLanguageError) as refusal:
        base.speak(TEXT, voice=voice, language="klingon")
    assert "'klingon'" in str(refusal.value)
    assert ", ".join(["auto", *LANGUAGES]) in str(refusal.value)


@pytest.mark.parametrize("argument", ["voice", "language"])
def test_voice_or_language_of_another_type_is_rejected(custom: TTS, argument: str) -> None:
    options: dict[str, Any] = {argument: 7}
    with pytest.raises(RequestError, match=f"{argument} must be .*, not int"):
        custom.speak(TEXT, **options)


# --- Requests that the checkpoint type does not support ---------------------------------------


def test_preset_with_a_base_checkpoint_raises_with_a_suitable_checkpoint(base: TTS) -> None:
    with pytest.raises(UnsupportedRequestError, match=r"'vivian'.*0\.6B-CustomVoice"):
        base.speak(TEXT, voice="vivian")


def test_base_checkpoint_without_a_voice_raises(base: TTS) -> None:
    with pytest.raises(RequestError, match=r"voice=tts\.clone\("):
        base.speak(TEXT)


@pytest.mark.parametrize(("width", "size"), [(32, "0.6B"), (1024, "0.6B"), (2048, "1.7B")])
@pytest.mark.parametrize("name", ["custom_voice", "voice_design"])
def test_cloned_voice_error_names_the_base_checkpoint_of_its_width(
    load_tts: LoadTTS, name: str, width: int, size: str
) -> None:
    voice = Voice(name="ada", speaker=np.ones(width, np.float32))
    with pytest.raises(UnsupportedRequestError, match=rf"{name}.*'ada'.*12Hz-{size}-Base"):
        load_tts(name).speak(TEXT, voice=voice, instruct=describe(name))


@pytest.mark.parametrize("name", ["custom_voice", "voice_design"])
def test_only_a_base_checkpoint_clones(load_tts: LoadTTS, name: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=rf"{name} .*cannot clone.*12Hz-0\.6B-Base"):
        load_tts(name).clone(make_recording())


def test_preset_with_voice_design_raises_with_a_suitable_checkpoint(
    load_tts: LoadTTS,
) -> None:
    with pytest.raises(UnsupportedRequestError, match=r"'vivian'.*CustomVoice"):
        load_tts("voice_design").speak(TEXT, voice="vivian", instruct="A calm voice.")


@pytest.mark.parametrize("name", ["custom_voice", "base", "base_projected"])
def test_unsupported_instruct_raises_with_a_suitable_checkpoint(
    load_tts: LoadTTS, name: str
) -> None:
    with pytest.raises(UnsupportedRequestError, match=r"instruct; load .*1\.7B-CustomVoice"):
        load_tts(name).speak(TEXT, instruct="Whisper.")


@pytest.mark.parametrize(
    ("instruct", "match"),
    [
        (7, "instruct must be a string, not int"),
        ("a" * 4097, "instruct has 4,097 characters and the limit is 4,096"),
        ("\ud800", "half of a surrogate pair"),
    ],
)
def test_bad_instruct_is_rejected(load_tts: LoadTTS, instruct: Any, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        load_tts("voice_design").speak(TEXT, instruct=instruct)


def describe(name: str) -> str | None:
    return "A calm voice." if name == "voice_design" else None


# --- Invalid sampling options -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "match"),
    [
        ({"temperature": -0.1}, r"temperature must be 0 \(greedy\) or from 1e-05 to 100, not -0.1"),
        (
            {"temperature": float("nan")},
            r"temperature must be 0 \(greedy\) or from 1e-05 to 100, not nan",
        ),
        (
            {"temperature": float("inf")},
            r"temperature must be 0 \(greedy\) or from 1e-05 to 100, not inf",
        ),
        ({"temperature": 10**400}, r"temperature must be 0 \(greedy\) or from 1e-05 to 100"),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"temperature": True}, "temperature must be a number, not True"),
        ({"temperature": None}, "temperature must be a number, not None"),
        ({"predictor_temperature": -1}, "predictor_temperature must be 0"),
        ({"top_p": 0}, "top_p must be from 1e-05 to 1, not 0"),
        ({"top_p": 1.01}, "top_p must be from 1e-05 to 1, not 1.01"),
        ({"top_p": float("nan")}, "top_p must be"),
        ({"predictor_top_p": 0.0}, "predictor_top_p must be from"),
        ({"top_k": -1}, "top_k must be from 0"),
        ({"top_k": 10**30}, "top_k must be from 0 to 2147483647"),
        ({"predictor_top_k": 2.5}, "predictor_top_k must be a whole number, not 2.5"),
        ({"repetition_penalty": 0}, "repetition_penalty must be from 0.5 to 10"),
        ({"max_frames": 0}, "max_frames must be from 1"),
        ({"min_frames": -1}, "min_frames must be from 0"),
        ({"seed": -1}, "seed must be from 0 to 9223372036854775807, not -1"),
        ({"seed": 2**63}, "seed must be from 0 to 9223372036854775807"),
        ({"seed": True}, "seed must be a whole number, not True"),
        ({"seed": 1.0}, "seed must be a whole number, not 1.0"),
        ({"seed": "1"}, "seed must be a whole number, not '1'"),
        ({"temprature": 1}, "no option named temprature; did you mean temperature"),
        ({"text_layout": "sideways"}, "text_layout must be one of .*'sideways'"),
    ],
)
def test_bad_sampling_is_rejected_by_name(custom: TTS, sampling: Any, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        custom.speak(TEXT, **sampling)


def test_rejected_request_does_not_affect_the_next(custom: TTS) -> None:
    before = custom.speak(TEXT, seed=9, max_frames=3)
    bad: list[dict[str, Any]] = [{"voice": "nobody"}, {"language": "klingon"}, {"top_p": 0}]
    for arguments in bad:
        with pytest.raises(RequestError):
            custom.speak(TEXT, **arguments)
    np.testing.assert_array_equal(custom.speak(TEXT, seed=9, max_frames=3).codes, before.codes)


def test_non_finite_numbers_fail_only_their_request(
    tiny_folder: Path,
) -> None:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        before = tts.speak(TEXT, seed=9, max_frames=3)
        head = tts.loaded.runtime.model.talker.codec_head.weight
        healthy = head.clone()
        head.fill_(float("nan"))
        with pytest.raises(NumericError, match="stopped being finite at frame 0"):
            tts.speak(TEXT, seed=9, max_frames=3)
        head.copy_(healthy)
        np.testing.assert_array_equal(tts.speak(TEXT, seed=9, max_frames=3).codes, before.codes)


# --- Cloning ----------------------------------------------------------------------------------


def test_clone_has_codes_only_with_a_transcript(base: TTS) -> None:
    samples, rate = make_recording(1.5)
    alone = base.clone((samples, rate), name="ada", language="english", licence="CC0-1.0")
    assert (alone.name, alone.language, alone.licence) == ("ada", "english", "CC0-1.0")
    assert alone.width == 32
    assert not alone.is_in_context
    in_context = base.clone((samples, rate), TRANSCRIPT, append_silence=False)
    assert in_context.ref_text == TRANSCRIPT
    assert in_context.ref_codes is not None
    assert in_context.ref_codes.shape == (19, 16)  # 1.5 s of 12.5 frames, rounded up
    np.testing.assert_array_equal(alone.speaker, in_context.speaker)


def test_two_recordings_are_two_voices(base: TTS) -> None:
    samples, rate = make_recording()
    first, other = base.clone((samples, rate)), base.clone((samples, rate // 2))
    assert not np.allclose(first.speaker, other.speaker, atol=0.01)


def test_clone_is_the_same_from_a_file_its_bytes_and_an_array(base: TTS, tmp_path: Path) -> None:
    samples, rate = make_recording()
    path = tmp_path / "me.wav"
    soundfile.write(path, samples, rate, subtype="FLOAT")
    sources: list[Any] = [path, str(path), path.read_bytes(), (samples, rate)]
    vectors = [base.clone(source).speaker for source in sources]
    for vector in vectors[1:]:
        np.testing.assert_array_equal(vector, vectors[0])


def test_stereo_recording_is_mixed_to_its_mean(base: TTS) -> None:
    samples, rate = make_recording()
    stereo = np.stack((samples * 1.5, samples * 0.5), axis=1)
    np.testing.assert_allclose(
        base.clone((stereo, rate)).speaker, base.clone((samples, rate)).speaker, atol=1e-5
    )


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 96_000])
def test_recordings_of_other_rates_are_resampled(base: TTS, rate: int) -> None:
    voice = base.clone(make_recording(1.9, rate), TRANSCRIPT, append_silence=False)
    assert voice.ref_codes is not None
    assert len(voice.ref_codes) == 24
    assert base.speak(TEXT, voice=voice, max_frames=2).usage.frames == 2


def test_saved_voice_speaks_like_the_clone(base: TTS, tmp_path: Path) -> None:
    voice = base.clone(make_recording(), TRANSCRIPT)
    loaded = Voice.load(voice.save(tmp_path / "me.safetensors"))
    first, second = (base.speak(TEXT, voice=v, seed=4, max_frames=4) for v in (voice, loaded))
    np.testing.assert_array_equal(first.samples, second.samples)


def with_value(value: float) -> tuple[NDArray[np.float32], int]:
    samples, rate = make_recording()
    samples[100] = value
    return samples, rate


@pytest.mark.parametrize(
    ("audio", "match"),
    [
        ((np.zeros(48_000, np.float32), 24_000), "the reference is silent"),
        ((np.full(48_000, 0.5, np.float32), 24_000), "the reference is silent"),
        (make_recording(0.9), r"lasts 0\.90 s; it must have 1 to 30 s"),
        (make_recording(30.1, 8_000), r"lasts 30\.10 s; it must have 1 to 30 s"),
        ((np.zeros(0, np.float32), 24_000), r"lasts 0\.00 s"),
        (with_value(float("nan")), "1 samples that are NaN or infinite"),
        (with_value(float("-inf")), "1 samples that are NaN or infinite"),
        (make_recording(1.5, 4_000), "sample rate is 4,000 Hz"),
        ((np.ones((48_000, 3), np.float32), 24_000), "3 channels"),
        (b"this is no audio at all", "unknown audio format"),
        (b"", "the file is empty"),
        (b"RIFF\x00\x00\x00\x00WAVE", "no data chunk"),
        ("https://example.com/me.wav", "URLs are not fetched"),
        ("no/such/file.wav", "there is no such file"),
        (None, "audio must be a path, bytes, a data: URI"),
    ],
)
def test_unusable_recording_is_rejected(base: TTS, audio: Any, match: str) -> None:
    with pytest.raises(AudioError, match=match):
        base.clone(audio)


def test_file_that_is_not_audio_raises_with_its_name(base: TTS, tmp_path: Path) -> None:
    path = tmp_path / "me.wav"
    path.write_text("These are only words.")
    with pytest.raises(AudioError, match=r"me\.wav: unknown audio format"):
        base.clone(path)


@pytest.mark.parametrize(
    ("transcript", "match"),
    [
        ("", "the transcript is blank"),
        (" \n", "the transcript is blank"),
        (7, "transcript must be a string, not int"),
        ("a" * 4001, "ref_text must be a text of at most 4,000 characters"),
        ("\udc00", "half a character"),
    ],
)
def test_bad_transcript_is_rejected(base: TTS, transcript: Any, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        base.clone(make_recording(), transcript)


# --- Voices of another model ------------------------------------------------------------------


def test_voice_of_another_width_is_rejected_with_both_widths(load_tts: LoadTTS, base: TTS) -> None:
    voice = load_tts("base_projected").clone(make_recording())
    with pytest.raises(VoiceMismatchError, match="width 64 and this model 32"):
        base.speak(TEXT, voice=voice)


@pytest.mark.parametrize(
    ("codes", "match"),
    [
        (np.zeros((5, 8), np.int64), "8 codebooks .* this model has 16 codebooks"),
        (np.zeros((5, 17), np.int64), "17 codebooks .* this model has 16 codebooks"),
        (np.full((5, 16), 64), "codes up to 64; this model has .* codes up to 63"),
        (np.full((5, 16), 2047), "codes up to 2047"),
    ],
)
def test_voice_with_codes_of_another_model_is_rejected(
    base: TTS, codes: NDArray[np.int64], match: str
) -> None:
    voice = dataclasses.replace(base.clone(make_recording()), ref_codes=codes, ref_text=TRANSCRIPT)
    with pytest.raises(VoiceMismatchError, match=match):
        base.speak(TEXT, voice=voice)


def test_voice_with_the_largest_code_speaks(base: TTS) -> None:
    voice = dataclasses.replace(
        base.clone(make_recording()), ref_codes=np.full((5, 16), 63), ref_text=TRANSCRIPT
    )
    assert base.speak(TEXT, voice=voice, max_frames=1).usage.frames == 1


# --- Parts that do not fit together -----------------------------------------------------------


def test_tokenizer_with_more_ids_than_the_model_is_rejected(
    tiny_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_folder / "base", tmp_path / "base")
    path = folder / "tokenizer_config.json"
    tokens = json.loads(path.read_text())
    tokens["added_tokens_decoder"]["384"] = {"content": "<one_too_many>"}
    path.write_text(json.dumps(tokens))
    with pytest.raises(CheckpointError, match="ids up to 384 and the model's text_vocab_size"):
        TTS.load(folder, device="cpu")


# -- names of languages --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["German", "GERMAN", "de", "de-DE", "de_AT", " De "])
def test_language_may_be_a_name_or_a_code(custom: TTS, base: TTS, name: str) -> None:
    options: dict[str, Any] = {"seed": 3, "max_frames": 3, "trim": False}
    expected = custom.speak(TEXT, language="german", **options)
    assert custom.speak(TEXT, language=name, **options) == expected
    assert custom.speak([TEXT], language=name, **options) == [expected]
    dialogue = custom.dialogue([("vivian", TEXT)], language=name, **options)
    assert dialogue == custom.dialogue([("vivian", TEXT)], language="german", **options)
    assert base.clone(make_recording(), language=name).language == "german"
    words = {name: {"user": "usher"}}
    assert custom.speak(TEXT, language="de", lexicon=words, **options) == custom.speak(
        TEXT.replace("user", "usher"), language="german", **options
    )


def test_unknown_language_code_is_rejected(custom: TTS) -> None:
    for name in ("xx", "klingon", "en2"):
        with pytest.raises(UnknownLanguageError, match=name):
            custom.speak(TEXT, language=name)
    with pytest.raises(RequestError, match="language must be a string"):
        custom.speak(TEXT, language=3)  # type: ignore[call-overload]
