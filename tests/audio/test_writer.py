"""Tests of writing audio files, at once and chunk by chunk: a file is complete or absent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.support.examples import examples
from vivace.audio.encode import open_encoder
from vivace.audio.files import read_audio
from vivace.audio.formats import FORMATS
from vivace.audio.writer import WorkerThread, open_audio_file, write_audio
from vivace.errors import AudioError

RATE = 24_000
STEP = 1_920


def tone(seconds: float = 1.0, rate: int = RATE, level: float = 0.5) -> np.ndarray:
    time = np.arange(int(rate * seconds)) / rate
    return (level * np.sin(2 * np.pi * 440 * time)).astype(np.float32)


# -- at once -----------------------------------------------------------------------------------


def test_write_wav_rounds_and_clips_to_16_bits(tmp_path: Path) -> None:
    samples = np.array([0, 0.5, 1.4 / 32768, 1.6 / 32768, 1, -1, 2, -2, 3e38], np.float32)
    path = write_audio(tmp_path / "a.wav", samples, RATE)
    assert path == tmp_path / "a.wav"
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        pcm = np.frombuffer(file.readframes(99), "<i2")
    assert pcm.tolist() == [0, 16384, 1, 2, 32767, -32768, 32767, -32768, 32767]


@given(
    hnp.arrays(np.float32, st.integers(0, 300), elements=st.floats(-1, 1, width=32)),
    st.integers(8_000, 192_000),
)
@examples(100)
def test_wav_roundtrip_error_is_at_most_half_a_step(samples: np.ndarray, rate: int) -> None:
    encoder = open_encoder("wav", rate)
    recording = read_audio(encoder.encode(samples) + encoder.finish())
    assert recording.sample_rate == rate
    np.testing.assert_allclose(
        recording.samples, np.minimum(samples, 32767 / 32768), rtol=0, atol=0.5 / 32768
    )


def test_wav_read_and_written_again_is_identical(tmp_path: Path) -> None:
    first = write_audio(tmp_path / "a.wav", tone(), RATE)
    second = write_audio(tmp_path / "b.wav", read_audio(first).samples, RATE)
    assert first.read_bytes() == second.read_bytes()


def test_flac_samples_equal_wav_samples(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).uniform(-1.1, 1.1, RATE)
    wav = read_audio(write_audio(tmp_path / "a.wav", samples, RATE))
    flac = read_audio(write_audio(tmp_path / "a.flac", samples, RATE))
    np.testing.assert_array_equal(flac.samples, wav.samples)


@pytest.mark.parametrize("name", ["a.mp3", "a.ogg", "a.opus", "a.MP3", "a.b.Flac"])
def test_extension_selects_format(tmp_path: Path, name: str) -> None:
    path = write_audio(tmp_path / name, tone(5.0), RATE)
    recording = read_audio(path)
    assert recording.sample_rate == RATE
    assert recording.duration_s == pytest.approx(5, abs=0.15)
    assert np.std(recording.samples) == pytest.approx(0.5 / 2**0.5, rel=0.05)
    with soundfile.SoundFile(path) as file:
        assert {"a.ogg": "VORBIS", "a.opus": "OPUS"}.get(name, file.subtype) == file.subtype


@pytest.mark.parametrize("name", ["a", "a.m4a", "a.wav.txt", ".wav"])
def test_unknown_extension_raises_error_with_known_extensions(tmp_path: Path, name: str) -> None:
    with pytest.raises(AudioError, match=r"\.wav, \.flac, \.mp3, \.ogg, .*\.aac"):
        write_audio(tmp_path / name, tone(), RATE)


@pytest.mark.parametrize(
    ("samples", "rate", "name", "message"),
    [
        (np.zeros((2, 9)), RATE, "a.wav", r"not \[2, 9\]"),
        (np.array([np.nan]), RATE, "a.wav", "NaN"),
        (np.array([1e300]), RATE, "a.wav", "infinite"),
        (np.zeros(0), RATE, "a.wav", "no samples"),
        (tone(), 0, "a.wav", "sample_rate .*not 0"),
        (tone(), -5, "a.flac", "sample_rate .*not -5"),
        (tone(), 22_050, "a.opus", "22,050 Hz"),
    ],
)
def test_invalid_samples_raise_error_and_leave_no_file(
    tmp_path: Path, samples: np.ndarray, rate: int, name: str, message: str
) -> None:
    with pytest.raises(AudioError, match=message):
        write_audio(tmp_path / name, samples, rate)
    assert not list(tmp_path.iterdir())


def test_long_ogg_does_not_crash_process(tmp_path: Path) -> None:
    """The Vorbis encoder of libsndfile 1.2.2 overflows its stack with two minutes at once."""
    path = write_audio(tmp_path / "long.ogg", tone(120.0), RATE)
    assert read_audio(path).duration_s == pytest.approx(120, abs=0.1)


def test_unwritable_path_raises_audio_error(tmp_path: Path) -> None:
    (tmp_path / "folder.wav").mkdir()
    os.mkfifo(tmp_path / "pipe.wav")
    (tmp_path / "file").touch()
    for name in ("none/a.wav", "folder.wav", "pipe.wav", "file/a.wav", "x" * 300 + ".wav"):
        with pytest.raises(AudioError, match="cannot write"):
            write_audio(tmp_path / name, tone(), RATE)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder.wav", "pipe.wav"]


def test_link_to_device_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "null.wav").symlink_to("/dev/null")
    with pytest.raises(AudioError, match="not a file"):
        write_audio(tmp_path / "null.wav", tone(), RATE)


def test_link_to_file_stays_and_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real.wav").write_bytes(b"old")
    (tmp_path / "link.wav").symlink_to(tmp_path / "real.wav")
    write_audio(tmp_path / "link.wav", tone(), RATE)
    assert (tmp_path / "link.wav").is_symlink()
    assert len(read_audio(tmp_path / "real.wav").samples) == RATE


def test_failed_write_keeps_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_audio(tmp_path / "a.wav", tone(), RATE)
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(AudioError, match="No space left"):
        write_audio(path, tone(2.0), RATE)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_without_soundfile_wav_works_and_flac_raises_install_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    write_audio(tmp_path / "a.wav", tone(), RATE)
    with pytest.raises(AudioError, match="pip install soundfile"):
        write_audio(tmp_path / "a.flac", tone(), RATE)


# -- chunk by chunk ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_file_written_in_steps_equals_file_written_at_once(name: str, tmp_path: Path) -> None:
    if "av" in FORMATS[name].packages:
        pytest.importorskip("av")
    whole = write_audio(tmp_path / f"whole.{name}", tone(), RATE)
    with open_audio_file(tmp_path / f"steps.{name}", RATE) as file:
        for start in range(0, RATE, STEP):
            file.write(tone()[start : start + STEP])
            assert not file.path.exists()  # before the file is complete
    assert file.duration_s == 1
    size = file.path.stat().st_size
    assert size == pytest.approx(whole.stat().st_size, rel=0.05)  # FFmpeg splits frames itself
    if name in ("wav", "flac", "pcm", "mp3"):  # an Ogg has a random serial number
        assert file.path.read_bytes() == whole.read_bytes()


def test_finished_wav_header_has_length(tmp_path: Path) -> None:
    with open_audio_file(tmp_path / "a.wav", RATE) as file:
        file.write(tone())
        file.write(tone())
    content = file.path.read_bytes()
    assert int.from_bytes(content[4:8], "little") == len(content) - 8
    with wave.open(str(file.path)) as reader:
        assert reader.getnframes() == 2 * RATE


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.mp3"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_error_in_with_block_keeps_written_audio(
    name: str, error: type[BaseException], tmp_path: Path
) -> None:
    with pytest.raises(error), open_audio_file(tmp_path / name, RATE) as file:  # noqa: PT012
        file.write(tone())
        raise error
    assert list(tmp_path.iterdir()) == [tmp_path / name]
    assert soundfile.info(tmp_path / name).duration == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("num_empty", [0, 3])
def test_file_without_samples_is_deleted(num_empty: int, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), open_audio_file(tmp_path / "a.flac", RATE) as file:  # noqa: PT012
        for _ in range(num_empty):
            file.write(np.zeros(0, np.float32))
        raise RuntimeError
    with open_audio_file(tmp_path / "b.wav", RATE):
        pass
    assert not list(tmp_path.iterdir())


ENDLESS_WRITER = """
import itertools, sys, numpy as np
from vivace.audio.writer import open_audio_file
with open_audio_file(sys.argv[1], 24_000) as file:
    for number in itertools.count(1):
        file.write(np.sin(np.arange(1_920, dtype=np.float32)))
        if number == int(sys.argv[2]):
            print("ready", flush=True)
"""


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg"])
@pytest.mark.parametrize("num_written", [1, 20])
def test_ctrl_c_leaves_complete_file(name: str, num_written: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDLESS_WRITER, str(tmp_path / name), str(num_written)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()  # a hanging process would block the test
    assert b"KeyboardInterrupt" in errors
    assert b"cffi" not in errors
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    samples, _ = soundfile.read(tmp_path / name, dtype="float32")
    assert len(samples) == soundfile.info(tmp_path / name).frames
    assert len(samples) % STEP == 0
    assert len(samples) >= num_written * STEP


def test_worker_thread_raises_error_of_own_call_after_interrupted_wait() -> None:
    thread, made = WorkerThread("test"), list[str]()
    thread._calls.put(lambda: made.append("first, interrupted"))

    def fail() -> None:
        made.append("second")
        raise ValueError("second call")

    with pytest.raises(ValueError, match="second call"):
        thread.do(fail)
    thread.do(lambda: made.append("third"))
    assert made == ["first, interrupted", "second", "third"]
    thread.end()


def test_existing_file_is_kept_without_force(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"precious")
    with pytest.raises(AudioError, match="exists; choose another name"):
        open_audio_file(path, RATE)
    with open_audio_file(path, RATE, force=True):
        pass
    assert path.read_bytes() == b"precious"  # no samples were written
    with open_audio_file(path, RATE, force=True) as file:
        file.write(tone())
    assert read_audio(path).duration_s == 1


@pytest.mark.parametrize("name", ["none/a.wav", "file/a.wav", "x" * 300 + ".wav", "a\0.wav"])
def test_open_of_unwritable_path_raises_audio_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AudioError, match="cannot write"):
        open_audio_file(tmp_path / name, RATE)


def test_circular_links_raise_audio_error(tmp_path: Path) -> None:
    (tmp_path / "a.wav").symlink_to(tmp_path / "b.wav")
    (tmp_path / "b.wav").symlink_to(tmp_path / "a.wav")
    with pytest.raises(AudioError, match="cannot write"):
        open_audio_file(tmp_path / "a.wav", RATE, force=True)


def test_full_disk_raises_error_and_leaves_no_file(tmp_path: Path) -> None:
    file = open_audio_file(tmp_path / "a.wav", RATE)
    with open("/dev/full", "wb", buffering=0) as full:
        os.dup2(full.fileno(), file._claim.file.fileno())
    with pytest.raises(AudioError, match="No space left"), file:
        file.write(tone())
    assert not list(tmp_path.iterdir())


def test_write_to_closed_file_raises_audio_error(tmp_path: Path) -> None:
    with open_audio_file(tmp_path / "a.wav", RATE) as file:
        file.write(tone())
    file.close()  # a second close is allowed
    with pytest.raises(AudioError, match="is closed"):
        file.write(tone())


def test_invalid_samples_keep_earlier_samples(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match="NaN"), open_audio_file(tmp_path / "a.wav", RATE) as file:  # noqa: PT012
        file.write(tone())
        file.write(np.array([np.nan]))
    assert read_audio(tmp_path / "a.wav").duration_s == 1
