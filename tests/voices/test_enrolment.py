"""Enrolment: appended silence, the cache, and how `voice` is resolved."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray

from vivace import TTS, Voice
from vivace.audio.files import read_audio
from vivace.errors import (
    AudioError,
    RequestError,
    UnknownVoiceError,
    UnsupportedRequestError,
    VoiceFileError,
    VoiceMismatchError,
)
from vivace.voices import enroll as enrolment
from vivace.voices.cache import EnrolmentCache, EnrolmentKey
from vivace.voices.enroll import encoder_fingerprint
from vivace.voices.library import VoiceLibrary

WORDS = "These are the words of the recording."
Codes = NDArray[np.int64]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate VIVACE_HOME for every test."""
    monkeypatch.setenv("VIVACE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def load_tts(tiny_folder: Path) -> Callable[[str], TTS]:
    return cache(lambda name: TTS.load(tiny_folder / name, device="cpu"))


@pytest.fixture
def base(load_tts: Callable[[str], TTS]) -> TTS:
    return load_tts("base")


@pytest.fixture
def custom(load_tts: Callable[[str], TTS]) -> TTS:
    return load_tts("custom_voice")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    soundfile.write(tmp_path / "me.wav", *make_recording())
    return tmp_path / "me.wav"


@pytest.fixture
def enrolled(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Record the transcript of every enrolment that the cache does not avoid."""
    transcripts: list[str | None] = []
    enroll = enrolment.enroll

    def count(*parts: Any, **options: Any) -> Voice:
        transcripts.append(options["transcript"])
        return enroll(*parts, **options)

    monkeypatch.setattr(enrolment, "enroll", count)
    return transcripts


def make_recording(pitch: float = 150, rate: int = 24_000) -> tuple[NDArray[np.float32], int]:
    t = np.arange(round(1.6 * rate)) / rate
    tone = 0.2 * np.sin(2 * np.pi * pitch * t) * np.sin(3 * t)
    return tone.astype(np.float32), rate


def codes_of(voice: Voice) -> Codes:
    assert voice.ref_codes is not None
    return voice.ref_codes


# --- Silence after the recording --------------------------------------------------------------


@pytest.mark.parametrize("rate", [8_000, 24_000, 44_100])
def test_half_a_second_of_silence_is_encoded_behind_the_recording(base: TTS, rate: int) -> None:
    samples, rate = make_recording(rate=rate)
    silence = np.zeros(rate // 2, np.float32)
    by_hand = base.clone((np.concatenate((samples, silence)), rate), WORDS, append_silence=False)
    appended = base.clone((samples, rate), WORDS)
    np.testing.assert_array_equal(codes_of(appended), codes_of(by_hand))
    assert appended.reference_s == pytest.approx(2.16)  # 2.1 s in whole frames
    plain = base.clone((samples, rate), WORDS, append_silence=False)
    assert plain.reference_s == pytest.approx(1.6)


def test_speaker_vector_excludes_the_appended_silence(base: TTS) -> None:
    appended, plain = (base.clone(make_recording(), WORDS, append_silence=a) for a in (True, False))
    np.testing.assert_array_equal(appended.speaker, plain.speaker)
    alone = base.clone(make_recording())
    np.testing.assert_array_equal(appended.speaker, alone.speaker)
    assert alone.reference_s == 0
    assert appended.source_sha256 == plain.source_sha256


def test_longest_reference_accepts_appended_silence(base: TTS) -> None:
    tone = np.tile(make_recording(rate=8_000)[0], 20)[: 30 * 8_000]
    assert base.clone((tone, 8_000), WORDS).reference_s == pytest.approx(30.56)


# --- The cache --------------------------------------------------------------------------------


def make_key(number: int = 0, **changes: Any) -> EnrolmentKey:
    fields: dict[str, Any] = {
        "source_sha256": f"{number:064x}",
        "transcript": None,
        "append_silence": True,
        "width": 32,
        "encoders": "e",
    }
    return EnrolmentKey(**(fields | changes))


def make_voice(key: EnrolmentKey, value: float = 1.0) -> Voice:
    return Voice(
        name="cloned",
        speaker=np.full(key.width, value, np.float32),
        source_sha256=key.source_sha256,
        ref_text=key.transcript,
        ref_codes=None if key.transcript is None else np.arange(60 * 16).reshape(60, 16),
    )


def refuse() -> Voice:
    raise AssertionError("made again")


def test_equal_recording_is_enrolled_once(tmp_path: Path) -> None:
    kept = EnrolmentCache(tmp_path / "cache")
    made = kept.find_or_make(make_key(), lambda: make_voice(make_key(), 3))
    again = EnrolmentCache(tmp_path / "cache").find_or_make(make_key(), refuse)
    np.testing.assert_array_equal(made.speaker, again.speaker)
    assert len(kept) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"source_sha256": "f" * 64},
        {"transcript": WORDS},
        {"append_silence": False},
        {"width": 64},
        {"encoders": "others"},
        {"family": "another"},
    ],
)
def test_cache_key_contains_every_input(tmp_path: Path, change: dict[str, Any]) -> None:
    kept = EnrolmentCache(tmp_path)
    kept.put(make_key(), make_voice(make_key()))
    assert kept.get(make_key()) is not None
    assert kept.get(make_key(**change)) is None


def test_missing_and_empty_transcript_have_different_keys() -> None:
    transcripts = [None, "", "null", "None", '", "x": "']
    assert len({make_key(transcript=transcript).digest for transcript in transcripts}) == 5


def test_least_recently_used_voice_is_evicted_first(tmp_path: Path) -> None:
    kept = EnrolmentCache(tmp_path, max_entries=3)
    for number in range(3):
        kept.put(make_key(number), make_voice(make_key(number)))
        path = tmp_path / f"{make_key(number).digest}.safetensors"
        os.utime(path, ns=(number * 10**9, number * 10**9))
    assert kept.get(make_key(0)) is not None  # marks the entry as used
    kept.put(make_key(3), make_voice(make_key(3)))
    found = [number for number in range(4) if kept.get(make_key(number)) is not None]
    assert found == [0, 2, 3]
    assert len(kept) == len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("content", [b"", b"junk", b"\0" * 2**21])
def test_damaged_cache_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    kept = EnrolmentCache(tmp_path)
    (tmp_path / f"{make_key().digest}.safetensors").write_bytes(content)
    kept.find_or_make(make_key(), lambda: make_voice(make_key(), 4))
    found = kept.find_or_make(make_key(), refuse)
    assert found.speaker[0] == 4


def test_cache_file_with_a_wrong_key_is_ignored(tmp_path: Path) -> None:
    kept = EnrolmentCache(tmp_path)
    for other in (make_key(1), make_key(width=64), make_key(transcript=WORDS)):
        kept.put(make_key(), make_voice(other))  # simulates a renamed file
        assert kept.get(make_key()) is None


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk_disables_the_cache_and_keeps_the_voice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    kept = EnrolmentCache(tmp_path)
    assert kept.find_or_make(make_key(), lambda: make_voice(make_key(), 5)).speaker[0] == 5
    assert list(tmp_path.iterdir()) == []
    assert "an enrolled voice was not cached" in caplog.text


def test_cache_path_that_is_a_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept = EnrolmentCache(tmp_path / "file")
    assert kept.find_or_make(make_key(), lambda: make_voice(make_key(), 5)).speaker[0] == 5


STORM = """
import sys
from pathlib import Path
import numpy as np
from vivace.voices.cache import EnrolmentCache, EnrolmentKey
from vivace.voices.voice import Voice

kept = EnrolmentCache(Path(sys.argv[1]), max_entries=5)
for turn in range(150):
    number = turn % 9
    digest = f"{number:064x}"
    key = EnrolmentKey(
        source_sha256=digest, transcript=None, append_silence=True, width=32, encoders="e"
    )
    speaker = np.full(32, number, np.float32)
    made = Voice(name="cloned", speaker=speaker, source_sha256=digest)
    assert kept.find_or_make(key, lambda: made).speaker[0] == number
"""


def test_cache_is_safe_for_several_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STORM, str(tmp_path)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        assert error == ""
    assert len(EnrolmentCache(tmp_path)) <= 5
    assert all(path.suffix == ".safetensors" for path in tmp_path.iterdir())


def test_encoder_fingerprint_differs_by_weights_and_precision(
    tiny: Callable[[str], Any],
) -> None:
    parts = tiny("base")
    first = encoder_fingerprint(parts.model, parts.codec)
    assert first == encoder_fingerprint(parts.model, parts.codec)
    half = parts.checkpoint.load_model(torch.device("cpu"), torch.bfloat16)
    assert encoder_fingerprint(half, parts.codec) != first
    tuned = parts.checkpoint.load_model(torch.device("cpu"), torch.float32)
    with torch.no_grad():
        next(p for p in tuned.speaker_encoder.parameters() if p.ndim == 1)[0] += 0.01
    assert encoder_fingerprint(tuned, parts.codec) != first


# --- Values of `voice` ------------------------------------------------------------------------


def test_recording_as_voice_is_enrolled_once(
    base: TTS, recording: Path, enrolled: list[str | None]
) -> None:
    by_path = base.speak("Hello.", voice=recording, seed=1, max_frames=3)
    copy = recording.rename(recording.with_name("copy"))  # no ending, another path
    by_copy = base.speak("Hello.", voice=str(copy), seed=1, max_frames=3)
    np.testing.assert_array_equal(by_path.codes, by_copy.codes)
    assert enrolled == [None]
    cloned = base.speak("Hello.", voice=base.clone(copy), seed=1, max_frames=3)
    np.testing.assert_array_equal(by_path.codes, cloned.codes)


def test_other_transcript_or_recording_is_enrolled_again(
    base: TTS, recording: Path, enrolled: list[str | None]
) -> None:
    voices = [base.voice(recording, words) for words in (None, WORDS, "Other.", WORDS, None)]
    assert enrolled == [None, WORDS, "Other."]
    assert [v.ref_text for v in voices if isinstance(v, Voice)] == [
        None, WORDS, "Other.", WORDS, None,
    ]  # fmt: skip
    soundfile.write(recording, *make_recording(pitch=220))  # the same path
    other = base.voice(recording)
    assert isinstance(other, Voice)
    assert other.source_sha256 == read_audio(recording).sha256
    assert enrolled == [None, WORDS, "Other.", None]


def test_models_of_different_widths_do_not_share_voices(
    load_tts: Callable[[str], TTS], recording: Path
) -> None:
    widths = []
    for name in ("base", "base_projected", "base"):
        voice = load_tts(name).voice(recording)
        assert isinstance(voice, Voice)
        widths.append(voice.width)
    assert widths == [32, 64, 32]


def test_failed_enrolment_leaves_no_file(base: TTS, tmp_path: Path, home: Path) -> None:
    soundfile.write(tmp_path / "silent.wav", np.zeros(48_000), 24_000)
    with pytest.raises(AudioError, match="silent"):
        base.voice(tmp_path / "silent.wav")
    assert not home.exists()


def test_voice_file_is_loaded(base: TTS, recording: Path, tmp_path: Path) -> None:
    path = base.clone(recording, WORDS, name="ada").save(tmp_path / "x.safetensors")
    for source in (path, str(path)):
        found = base.voice(source)
        assert isinstance(found, Voice)
        assert (found.name, found.ref_text) == ("ada", WORDS)


def test_voice_object_is_returned_unchanged(base: TTS, recording: Path) -> None:
    voice = base.clone(recording)
    assert base.voice(voice) is voice


def test_name_is_looked_up_in_the_library(base: TTS, recording: Path) -> None:
    voice = base.clone(recording, WORDS, name="ada")
    VoiceLibrary().add(voice)
    first, second, third = (
        base.speak("Hello.", voice=v, seed=2, max_frames=3) for v in (voice, "ada", "Ada")
    )
    np.testing.assert_array_equal(first.codes, second.codes)
    np.testing.assert_array_equal(first.codes, third.codes)


def test_file_in_the_working_folder_does_not_replace_a_voice(
    base: TTS, custom: TTS, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    VoiceLibrary().add(base.clone(recording, name="ada"))
    for name in ("ada", "vivian"):
        (tmp_path / name).write_bytes(b"no audio at all")
    found = base.voice("ada")
    assert isinstance(found, Voice)
    assert custom.voice("vivian") == "vivian"
    with pytest.raises(AudioError, match="unknown audio format"):
        base.voice("vivian")  # not a preset, but a file


def test_preset_is_returned_as_a_name(custom: TTS, recording: Path, base: TTS) -> None:
    VoiceLibrary().add(base.clone(recording, name="vivian"))
    assert custom.voice("vivian") == "vivian"
    assert custom.voice("Vivian") == "Vivian"
    assert custom.speak("Hello.", voice="Vivian", max_frames=1).usage.frames == 1


def test_only_a_base_checkpoint_speaks_with_a_voice_of_the_library(custom: TTS) -> None:
    VoiceLibrary().add(Voice(name="ada", speaker=np.ones(2048, np.float32)))
    with pytest.raises(UnsupportedRequestError, match=r"cloned voice 'ada'.*12Hz-1\.7B-Base"):
        custom.speak("Hello.", voice="ada")


def test_unknown_name_raises_with_the_usable_voices(base: TTS, custom: TTS) -> None:
    with pytest.raises(UnsupportedRequestError, match=r"'eve'; load .*CustomVoice$"):
        base.speak("Hello.", voice="eve")
    for name in ("ada", "bob"):
        VoiceLibrary().add(Voice(name=name, speaker=np.ones(32, np.float32)))
    with pytest.raises(
        UnsupportedRequestError, match="CustomVoice, or take one of yours: ada, bob"
    ):
        base.speak("Hello.", voice="eve")
    with pytest.raises(UnknownVoiceError, match=r"'eve'; try one of: aiden, .*vivian$"):
        custom.speak("Hello.", voice="eve")


@pytest.mark.parametrize(
    ("voice", "error", "match"),
    [
        ("absent.wav", AudioError, "absent.wav: there is no such file"),
        (Path("absent"), AudioError, "absent: there is no such file"),
        ("https://example.com/me.wav", AudioError, "URLs are not fetched"),
        ("absent.safetensors", VoiceFileError, "absent.safetensors: there is no such voice"),
        ("../no/such", RequestError, "preset voice '../no/such'"),
        ("", RequestError, "preset voice ''"),
        ("a\0b", RequestError, "preset voice"),
        ("x" * 5_000, RequestError, "preset voice"),
        ("\ud800", RequestError, "preset voice"),
        (b"bytes", RequestError, "voice must be a preset's name, a path or a Voice, not bytes"),
    ],
)
def test_invalid_voice_argument_is_rejected(base: TTS, voice: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        base.speak("Hello.", voice=voice)


def test_only_a_base_checkpoint_enrols_a_recording(custom: TTS, recording: Path) -> None:
    with pytest.raises(UnsupportedRequestError, match=r"cannot clone a voice; load .*-Base"):
        custom.speak("Hello.", voice=recording)


def test_voice_of_the_library_for_another_model_is_rejected(base: TTS) -> None:
    VoiceLibrary().add(Voice(name="wide", speaker=np.ones(64, np.float32)))
    with pytest.raises(VoiceMismatchError, match="'wide' has width 64 and this model 32"):
        base.speak("Hello.", voice="wide")


def test_transcript_without_recording_is_rejected(base: TTS, recording: Path) -> None:
    voice = base.clone(recording, name="ada")
    VoiceLibrary().add(replace(voice, name="bob"))
    for source in (voice, "bob"):
        with pytest.raises(RequestError, match="transcript needs a recording"):
            base.voice(source, WORDS)
    with pytest.raises(RequestError, match="the transcript is blank"):
        base.voice(recording, " ")
