"""Tests of `Audio` and `AudioChunk`: comparison, encoding, playback and notebook display."""

from __future__ import annotations

import base64
import dataclasses
import io
import os
import re
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from vivace import Audio, Usage, Word
from vivace.audio.clip import AudioChunk
from vivace.audio.file_mark import FileMark, Provenance
from vivace.errors import AudioError, OutputExistsError

RATE = 24_000


def make_audio(seconds: float = 0.5, **changes: Any) -> Audio:
    time = np.arange(round(seconds * RATE)) / RATE
    audio = Audio(
        samples=(0.3 * np.sin(2 * np.pi * 440 * time)).astype(np.float32),
        sample_rate=RATE,
        codes=np.arange(12, dtype=np.int64).reshape(6, 2),
        finish_reason="stop",
        usage=Usage(text_tokens=3, frames=6, audio_s=seconds, wall_s=0.1, seed=7),
    )
    return dataclasses.replace(audio, **changes)


def test_equality_and_hash_ignore_usage() -> None:
    audio = make_audio()
    slower = make_audio(usage=dataclasses.replace(audio.usage, wall_s=9.0))
    assert audio == slower
    assert hash(audio) == hash(slower)
    assert len({audio, slower}) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": np.zeros(12_000, np.float32)},
        {"samples": np.zeros(5, np.float32)},
        {"sample_rate": 16_000},
        {"codes": np.zeros((6, 2), np.int64)},
        {"finish_reason": "length"},
    ],
)
def test_audio_with_different_content_is_not_equal(changes: dict[str, Any]) -> None:
    assert make_audio() != make_audio(**changes)
    assert make_audio() != "audio"


def test_hash_is_unchanged_after_samples_change_in_place() -> None:
    audio = make_audio()
    before = hash(audio)
    audio.samples[:] = 0
    assert hash(audio) == before


def test_repr_of_audio_and_chunk_is_short() -> None:
    assert repr(make_audio()) == "<Audio 0.50 s at 24000 Hz, stop, seed 7>"
    chunk = AudioChunk(
        samples=np.zeros(1920, np.float32),
        sample_rate=RATE,
        start_s=1.2,
        is_last=True,
        finish_reason="length",
        codes=np.zeros((1, 16), np.int64),
    )
    assert repr(chunk) == "<AudioChunk 0.08 s from 1.20 s, the last: length>"
    assert repr(dataclasses.replace(chunk, is_last=False)) == "<AudioChunk 0.08 s from 1.20 s>"


@pytest.mark.parametrize("format", ["wav", "flac", "mp3", "ogg", "opus"])
def test_to_bytes_returns_complete_file(format: str) -> None:
    audio = make_audio(1.0)
    samples, rate = soundfile.read(io.BytesIO(audio.to_bytes(format)), dtype="float32")
    assert len(samples) / rate == pytest.approx(1.0, abs=0.1)
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.1)


def test_to_bytes_equals_saved_file(tmp_path: Path) -> None:
    audio = make_audio()
    for format in ("wav", "flac"):
        assert audio.to_bytes(format) == audio.save(tmp_path / f"a.{format}").read_bytes()
    with wave.open(io.BytesIO(audio.to_bytes())) as file:
        assert file.getnframes() == len(audio.samples)
    assert len(audio.to_bytes("pcm")) == 2 * len(audio.samples)


def test_save_to_existing_file_needs_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"mine")
    with pytest.raises(OutputExistsError, match=r"a\.wav exists.*overwrite=True") as caught:
        make_audio().save(path)
    assert isinstance(caught.value, FileExistsError)
    assert isinstance(caught.value, AudioError)
    assert path.read_bytes() == b"mine"
    assert os.listdir(tmp_path) == ["a.wav"]
    audio = make_audio()
    assert audio.save(path, overwrite=True).read_bytes() == audio.to_bytes()


def test_save_subtitles_to_existing_file_needs_overwrite(tmp_path: Path) -> None:
    word = Word(text="Hi.", start_s=0.0, end_s=0.4, start_char=0, end_char=3)
    audio, path = make_audio(words=(word,)), tmp_path / "a.srt"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"a\.srt exists"):
        audio.save_subtitles(path)
    assert path.read_bytes() == b"mine"
    assert "Hi." in audio.save_subtitles(path, overwrite=True).read_text()


# -- NumPy arrays --------------------------------------------------------------------------------


def make_chunk() -> AudioChunk:
    audio = make_audio()
    return AudioChunk(
        samples=audio.samples,
        sample_rate=RATE,
        start_s=0.0,
        is_last=True,
        finish_reason="stop",
        codes=audio.codes,
    )


@pytest.mark.parametrize("make", [make_audio, make_chunk])
def test_asarray_returns_samples_without_copy(make: Callable[[], Audio | AudioChunk]) -> None:
    audio = make()
    assert np.asarray(audio) is audio.samples
    assert np.array_equal(np.concatenate([audio, audio]), np.tile(audio.samples, 2))
    assert np.abs(audio).max() == np.abs(audio.samples).max()


@pytest.mark.parametrize("make", [make_audio, make_chunk])
def test_array_copies_and_converts_on_request(make: Callable[[], Audio | AudioChunk]) -> None:
    audio = make()
    copied = np.array(audio)
    assert np.array_equal(copied, audio.samples)
    assert not np.shares_memory(copied, audio.samples)
    double = np.asarray(audio, dtype=np.float64)
    assert double.dtype == np.float64
    assert np.array_equal(double, audio.samples.astype(np.float64))
    assert audio.__array__(np.float32, copy=False) is audio.samples
    assert not np.shares_memory(audio.__array__(copy=True), audio.samples)
    with pytest.raises(ValueError, match="without a copy"):
        audio.__array__(np.float64, copy=False)


def test_to_bytes_of_unknown_format_raises_error_with_known_formats() -> None:
    with pytest.raises(AudioError, match=r"'xyz'; choose one of: wav, flac, mp3"):
        make_audio().to_bytes("xyz")


def embedded_audio(audio: Audio) -> tuple[float, str]:
    """The seconds of audio in the notebook player, and the note beside it."""
    found = re.fullmatch(
        r'<audio controls src="data:audio/mpeg;base64,([A-Za-z0-9+/=]+)"></audio>(.*)',
        audio._repr_html_(),
    )
    assert found is not None
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(found[1])))
    return len(samples) / rate, found[2]


def test_repr_html_is_audio_player() -> None:
    seconds, note = embedded_audio(make_audio(2.0))
    assert seconds == pytest.approx(2.0, abs=0.1)
    assert note == ""


def test_repr_html_of_long_audio_is_cut_with_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vivace.audio.clip.MAX_NOTEBOOK_S", 10.0)
    seconds, note = embedded_audio(make_audio(16))
    assert seconds == pytest.approx(10, abs=0.1)
    assert note == "<br>first 10 of 16 s; save() writes all"


def test_repr_html_of_signed_speech_is_tagged_and_not_signed() -> None:
    class Signer:
        formats = ("mp3",)

        def sign(self, source: Any, target: Any, format: str, title: str) -> None:
            raise AssertionError("a notebook player is not signed")

    provenance = Provenance(model="m", voices=("preset",), is_signed=True)
    shown = make_audio(mark=FileMark(provenance, Signer()))._repr_html_()
    content = base64.b64decode(shown.partition("base64,")[2].partition('"')[0])
    assert b"AI-generated" in content
    assert b"marks: metadata;" in content


def test_play_writes_all_samples_to_output(monkeypatch: pytest.MonkeyPatch) -> None:
    from vivace.audio.play import Loudspeaker

    class FakeOutput:
        played: list[np.ndarray]  # by the last output
        events: list[str]

        def __init__(self, sample_rate: int) -> None:
            assert sample_rate == RATE
            FakeOutput.played, FakeOutput.events = [], []

        def write(self, samples: np.ndarray) -> None:
            self.played.append(samples)

        def finish(self) -> None:
            self.events.append("finished")

        def stop(self) -> None:
            self.events.append("stopped")

    monkeypatch.setattr("vivace.audio.play.find_output", lambda: Loudspeaker("fake", FakeOutput))
    audio = make_audio()
    audio.play()
    assert np.array_equal(np.concatenate(FakeOutput.played), audio.samples)
    assert FakeOutput.events[0] == "finished"


def test_play_without_output_raises_audio_error() -> None:
    with pytest.raises(AudioError):
        make_audio().play()
