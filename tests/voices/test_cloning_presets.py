"""A checkpoint with presets that also clones by speaker vector."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest

from tests.support.cli_harness import Captured, assert_fails, make_recording, run_here
from vivace import TTS, Voice
from vivace.audio.files import read_audio
from vivace.conformance.record import record_golden
from vivace.errors import (
    CheckpointError,
    RequestError,
    UnknownVoiceError,
    UnsupportedRequestError,
)
from vivace.model.config import SPEAKER
from vivace.options import SpeechOptions
from vivace.quantize import quantize_checkpoint
from vivace.script.request import Request
from vivace.voices.library import VoiceLibrary

TEXT = "Hello there."


@pytest.fixture(scope="module")
def tts(cloning_presets: Path) -> Iterator[TTS]:
    with TTS.load(cloning_presets, device="cpu") as tts:
        yield tts


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return make_recording(tmp_path / "me.wav")


@pytest.fixture
def voice(tts: TTS, recording: Path) -> Voice:
    return tts.clone(recording)


def codes(tts: TTS, voice: str | Voice | Path, seed: int = 1) -> list[list[int]]:
    audio = tts.speak(TEXT, voice=voice, seed=seed, max_frames=4)
    assert audio.codes is not None
    return np.asarray(audio.codes).tolist()


def test_preset_speaks_as_without_speaker_encoder(tts: TTS, tiny_folder: Path) -> None:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as plain:
        assert plain.speakers == tts.speakers
        assert codes(plain, tts.speakers[0]) == codes(tts, tts.speakers[0])


def test_clone_and_preset_in_one_batch_speak_as_alone(tts: TTS, voice: Voice) -> None:
    voices: list[str | Voice] = [voice, tts.speakers[0], tts.speakers[1], voice]
    alone = [codes(tts, each) for each in voices]
    assert alone[0] == alone[3]
    assert len({json.dumps(each) for each in alone}) == 3
    streams = [
        tts.stream(TEXT, voice=each, seed=1, max_frames=4, chunk_frames=1) for each in voices
    ]
    together: list[list[list[int]]] = [[] for _ in streams]
    for chunks in zip_longest(*streams):
        for place, chunk in enumerate(chunks):
            together[place] += [] if chunk is None else np.asarray(chunk.codes).tolist()
    assert together == alone


def test_prompt_of_clone_has_vector_in_place_of_preset_and_same_layout(
    tts: TTS, voice: Voice
) -> None:
    writer, ids = tts.loaded.writer, tts.tokenizer.encode(TEXT)
    prompts = []
    for each in (tts.speakers[0], voice):
        request = Request(text=TEXT, voice=each, options=SpeechOptions())
        prompts.append(writer.write(request, TEXT, ids)[0])
    preset, cloned = prompts
    assert not writer.continues
    assert preset.text_ids == cloned.text_ids
    assert (preset.trailing_ids, cloned.trailing_ids) == ((), ())  # the whole text comes first
    [place] = np.flatnonzero(preset.codes[:, 0] != cloned.codes[:, 0])
    assert cloned.codes[place, 0] == SPEAKER
    assert cloned.speaker is not None
    np.testing.assert_array_equal(cloned.speaker, voice.speaker)


def test_recording_file_and_library_name_are_voices(
    tts: TTS, voice: Voice, recording: Path
) -> None:
    VoiceLibrary().add(Voice(name="ada", speaker=voice.speaker))
    expected = codes(tts, voice)
    for each in (recording, str(recording), "ada", "ADA"):
        assert codes(tts, each) == expected
    with pytest.raises(UnknownVoiceError, match=rf"'nobody'.*{tts.speakers[0]}.*ada"):
        tts.speak(TEXT, voice="nobody")


def test_preset_has_precedence_over_clone_of_same_name(tts: TTS, voice: Voice) -> None:
    preset = tts.speakers[0]
    VoiceLibrary().add(Voice(name=preset.lower(), speaker=voice.speaker))
    assert tts.voice(preset) == preset


def test_transcript_is_refused_before_recording_is_read(tts: TTS, tmp_path: Path) -> None:
    recording = tmp_path / "invalid.wav"
    recording.touch()
    for call in (tts.clone, tts.voice):
        with pytest.raises(UnsupportedRequestError, match=r"leave the transcript out, .*Base"):
            call(recording, "Words.")


def test_voice_of_other_width_is_refused(tts: TTS) -> None:
    other = Voice(name="wide", speaker=np.ones(2048, np.float32))
    with pytest.raises(RequestError, match="2048"):
        tts.speak(TEXT, voice=other)


def test_missing_weights_of_speaker_encoder_are_named(
    cloning_presets: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(cloning_presets, tmp_path / "copy"))
    shutil.copy(tiny_folder / "custom_voice" / "model.safetensors", folder)
    with pytest.raises(CheckpointError, match=r"speaker_encoder\."):
        TTS.load(folder, device="cpu")


def test_quantized_copy_still_clones(tts: TTS, recording: Path, tmp_path: Path) -> None:
    quantize_checkpoint(tts.checkpoint, tmp_path / "int8", "int8")
    with TTS.load(tmp_path / "int8", device="cpu") as quantized:
        assert quantized.clone(recording).width == tts.clone(recording).width


def test_golden_set_has_presets_and_speaker_vector(tts: TTS) -> None:
    with TTS.load(tts.checkpoint.folder, device="cpu", dtype="float32", backend="eager") as eager:
        golden = record_golden(eager, "tiny").golden
    assert [request.name for request in golden.requests] == [*tts.speakers[:2], "x-vector"]
    assert {request.layout for request in golden.requests} == {"whole"}
    assert golden.encoders is None


# -- command line ------------------------------------------------------------------------------


@pytest.fixture
def embedded(cloning_presets: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands without --model use the tiny checkpoint instead of the embedded voice."""
    monkeypatch.setattr("vivace.hub.folders.EMBEDDED", cloning_presets)
    monkeypatch.delenv("VIVACE_MODEL", raising=False)
    return cloning_presets


def test_clone_command_needs_no_model(
    embedded: Path, recording: Path, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "out.wav"
    limits = ("--seed=1", "--max-frames=4", "-q")
    assert run_here("clone", "--ref-audio", recording, "Hello.", "-o", out, *limits) == 0
    said = tmp_path / "said.wav"
    assert run_here("say", "Hello.", "--voice", recording, "-o", said, *limits) == 0
    np.testing.assert_array_equal(read_audio(out).samples, read_audio(said).samples)
    assert run_here("voice", "add", "ada", recording) == 0
    assert "speaker vector only" in capsys.readouterr().err
    assert run_here("say", "Hello.", "--voice=ada", "-o", said, "--force", *limits) == 0
    np.testing.assert_array_equal(read_audio(out).samples, read_audio(said).samples)
    capsys.readouterr()
    words = ("--ref-text=Words.", "--save=eve")
    assert_fails(
        run_here("clone", "--ref-audio", recording, *words), capsys, "leave the transcript"
    )


def test_speakers_command_lists_presets_and_cloning(embedded: Path, capsys: Captured) -> None:
    assert run_here("speakers") == 0
    assert "; clone a recording" in capsys.readouterr().out
