"""Encoders give bytes early, and the bytes joined are the audio."""

from __future__ import annotations

import io
import os
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.audio.encode import EXTENSIONS, FORMATS, format_of, open_encoder
from vivace.audio.files import read_audio
from vivace.errors import AudioError

RATE = 24_000
STEP = 1_920  # 80 ms
LOSSY = ("mp3", "ogg", "opus", "aac")


def tone(seconds: float = 2.0, rate: int = RATE) -> np.ndarray:
    time = np.arange(int(rate * seconds)) / rate
    return (0.5 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)


def encode_in_steps(
    format: str, samples: np.ndarray, step: int = STEP
) -> tuple[list[bytes], bytes]:
    """What came after each step, and the whole with its header put right."""
    encoder = open_encoder(format, RATE)
    steps = [encoder.encode(samples[i : i + step]) for i in range(0, len(samples), step)]
    steps.append(encoder.finish())
    whole = bytearray(b"".join(steps))
    for position, patch in encoder.patches:
        assert position + len(patch) <= len(whole) - len(steps[-1])
        whole[position : position + len(patch)] = patch
    return steps, bytes(whole)


def decode(format: str, content: bytes) -> np.ndarray:
    if format == "pcm":
        return np.frombuffer(content, "<i2").astype(np.float32) / 32_768
    if format != "aac":
        recording = read_audio(content, trusted=True)
        assert recording.sample_rate == RATE
        return recording.samples
    av = pytest.importorskip("av")
    with av.open(io.BytesIO(content)) as container:
        assert container.streams.audio[0].rate == RATE
        return np.concatenate([f.to_ndarray().reshape(-1) for f in container.decode(audio=0)])


def need(format: str, package: str | None = None) -> None:
    if (package or FORMATS[format].packages[:1] == ("av",)) and package != "soundfile":
        pytest.importorskip("av")


def likeness(samples: np.ndarray, wanted: np.ndarray) -> float:
    """The best correlation over the delays a codec may have."""
    span = len(wanted) - 8_000
    centre = wanted[2_000 : 2_000 + span]
    return max(
        float(np.corrcoef(samples[delay : delay + span], centre)[0, 1])
        for delay in range(2_000, min(2_000 + 55, len(samples) - span))  # one period of the tone
    )


# What the bytes hold


@pytest.mark.parametrize("is_patched", [True, False], ids=["file", "stream"])
@pytest.mark.parametrize("format", ["wav", "flac", "pcm"])
def test_lossless_formats_give_back_16_bits(format: str, is_patched: bool) -> None:
    samples = np.random.default_rng(0).uniform(-1.1, 1.1, RATE).astype(np.float32)
    steps, whole = encode_in_steps(format, samples)
    found = decode(format, whole if is_patched else b"".join(steps))
    wanted = np.clip(np.rint(samples * 32_768), -32_768, 32_767) / 32_768
    np.testing.assert_array_equal(found, wanted.astype(np.float32))


@pytest.mark.parametrize("is_patched", [True, False], ids=["file", "stream"])
@pytest.mark.parametrize("format", LOSSY)
def test_lossy_formats_keep_length_and_sound(format: str, is_patched: bool) -> None:
    need(format)
    steps, whole = encode_in_steps(format, tone())
    found = decode(format, whole if is_patched else b"".join(steps))
    assert len(found) / RATE == pytest.approx(2, abs=0.15)
    assert likeness(found, tone()) > 0.9
    assert np.std(found[4_000:-8_000]) == pytest.approx(0.5 / 2**0.5, rel=0.1)


def test_the_similarity_check_notices_another_sound() -> None:
    assert likeness(np.random.default_rng(0).normal(size=2 * RATE), tone()) < 0.2


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["wav", "flac", "pcm"]), st.lists(st.integers(0, 3_000), max_size=12))
def test_any_cutting_gives_the_same_audio(format: str, sizes: list[int]) -> None:
    samples = np.random.default_rng(1).uniform(-1, 1, sum(sizes)).astype(np.float32)
    encoder = open_encoder(format, RATE)
    parts = [encoder.encode(part) for part in np.split(samples, np.cumsum(sizes))]
    content = b"".join([*parts, encoder.finish()])
    if len(samples) or format == "pcm":
        np.testing.assert_allclose(decode(format, content), samples, atol=1 / 32_768)


@pytest.mark.parametrize("format", ["ogg", "opus"])
@pytest.mark.parametrize("package", ["soundfile", "av"])
def test_minutes_at_once_do_not_end_the_process(
    format: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(format, package)
    if package == "soundfile":
        monkeypatch.setitem(sys.modules, "av", None)
    encoder = open_encoder(format, RATE)
    seconds = 120.0 if format == "ogg" else 20.0  # Vorbis is the one that overflowed its stack
    content = encoder.encode(tone(seconds)) + encoder.finish()
    assert len(decode(format, content)) / RATE == pytest.approx(seconds, abs=0.1)


def test_what_we_stream_we_can_read() -> None:
    for format in ("wav", "flac", "mp3", "ogg", "opus"):
        steps, _ = encode_in_steps(format, tone())
        assert read_audio(b"".join(steps)).duration_s == pytest.approx(2, abs=0.15)


def test_pcm_is_little_endian_and_has_no_header() -> None:
    encoder = open_encoder("pcm", RATE)
    assert encoder.encode([0.5, -1.0, 2.0]) + encoder.finish() == b"\0\x40\0\x80\xff\x7f"


def test_a_streamed_wav_leaves_its_length_open_and_a_patched_one_does_not() -> None:
    steps, whole = encode_in_steps("wav", tone())
    assert steps[0][4:8] == steps[0][40:44] == b"\xff\xff\xff\xff"
    with wave.open(io.BytesIO(whole)) as file:
        assert file.getnframes() == len(tone())
    assert int.from_bytes(whole[4:8], "little") == len(whole) - 8


# When the bytes come


@pytest.mark.parametrize("format", ["wav", "pcm", "mp3", "opus"])
def test_the_first_step_gives_audio(format: str) -> None:
    need(format)
    steps, _ = encode_in_steps(format, tone())
    header = {"wav": 44, "opus": 200}.get(format, 0)
    assert len(steps[0]) > header
    assert all(steps[:-1])


@pytest.mark.parametrize("format", ["flac", "aac"])
def test_three_steps_always_give_audio(format: str) -> None:
    need(format)
    steps, _ = encode_in_steps(format, tone())
    assert all(any(steps[i : i + 3]) for i in range(1, len(steps) - 2))


def test_opus_comes_without_av_but_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    steps, whole = encode_in_steps("opus", tone())
    assert not any(steps[1:10])
    assert likeness(decode("opus", whole), tone()) > 0.9


def test_an_encoder_keeps_no_audio() -> None:
    encoder = open_encoder("flac", RATE)
    for _ in range(20):
        encoder.encode(tone())
    assert len(encoder._sink._pending) == 0


# What is refused


def test_an_unknown_format_is_refused_and_the_known_named() -> None:
    with pytest.raises(
        AudioError, match=r"no audio format named 'wma'; try one of: wav, flac, mp3"
    ):
        open_encoder("wma", RATE)


@pytest.mark.parametrize(
    ("format", "package", "line"),
    [
        ("aac", "av", r"needs av, .* pip install \"vivace\[av\]\""),
        ("flac", "soundfile", "needs soundfile, .* pip install soundfile"),
        ("mp3", "soundfile", "pip install soundfile"),
    ],
)
def test_a_missing_package_comes_with_the_line_that_installs_it(
    format: str, package: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(AudioError, match=line):
        open_encoder(format, RATE)


def test_wav_and_pcm_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setitem(sys.modules, "av", None)
    for format in ("wav", "pcm"):
        encode_in_steps(format, tone())


@pytest.mark.parametrize("package", ["soundfile", "av"])
def test_a_rate_that_a_codec_cannot_do_is_refused_at_once(
    package: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    need("opus", package)
    if package == "soundfile":
        monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(AudioError, match="cannot write opus at 22,050 Hz"):
        open_encoder("opus", 22_050)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("rate", "bit_rate"),
    [(44_100, 128_000), (44_100, 32_000), (22_050, 32_000), (24_000, 48_000), (8_000, 16_000)],
)
def test_an_mp3_has_the_bit_rate_that_was_asked_for(rate: int, bit_rate: int) -> None:
    av = pytest.importorskip("av")
    encoder = open_encoder("mp3", rate, bit_rate)
    content = encoder.encode(tone(1.0, rate)) + encoder.finish()
    with av.open(io.BytesIO(content)) as container:
        found = container.streams.audio[0].codec_context
        assert (found.sample_rate, found.bit_rate) == (rate, bit_rate)


@pytest.mark.parametrize("rate", [0, -1, 192_001])
def test_a_rate_that_nothing_can_do_is_refused(rate: int) -> None:
    with pytest.raises(AudioError, match=f"{rate} Hz cannot be written"):
        open_encoder("wav", rate)


@pytest.mark.parametrize(
    ("samples", "message"),
    [([np.nan], "NaN"), ([1e300], "infinite"), (np.zeros((2, 3)), r"shape \[2, 3\]")],
)
@pytest.mark.parametrize("format", ["wav", "mp3"])
def test_samples_that_are_none_are_refused(format: str, samples: object, message: str) -> None:
    with pytest.raises(AudioError, match=message):
        open_encoder(format, RATE).encode(samples)  # type: ignore[arg-type]


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_finished_encoder_is_finished(format: str) -> None:
    need(format)
    encoder = open_encoder(format, RATE)
    encoder.finish()
    assert encoder.finish() == b""
    with pytest.raises(AudioError, match="finished"):
        encoder.encode(tone())


# Names


def test_the_extension_gives_the_format() -> None:
    assert [format_of(f"x/a{extension}") for extension in EXTENSIONS] == list(EXTENSIONS.values())
    assert format_of("A.Oga") == "ogg"
    for name in ("a", "wav", ".wav", "a.wav.gz", ""):
        with pytest.raises(AudioError, match=r"name it with one of: \.wav, \.flac"):
            format_of(name)


def test_content_types_are_those_that_clients_know() -> None:
    assert {name: known.content_type for name, known in FORMATS.items()} == {
        "wav": "audio/wav",
        "flac": "audio/flac",
        "mp3": "audio/mpeg",
        "ogg": "audio/ogg",
        "opus": "audio/ogg",
        "aac": "audio/aac",
        "pcm": "audio/pcm",
    }


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
@pytest.mark.parametrize("name", ["opus", "aac"])
def test_an_encoder_starts_no_threads_and_leaves_the_cpus_as_they_were(name: str) -> None:
    pytest.importorskip("av")
    open_encoder(name, 24_000).encode(np.zeros(4_800, np.float32))  # libraries may start some once
    cpus, before = os.sched_getaffinity(0), set(os.listdir("/proc/self/task"))
    encoders = [open_encoder(name, 24_000) for _ in range(4)]
    for encoder in encoders:
        encoder.encode(np.zeros(4_800, np.float32))
    assert set(os.listdir("/proc/self/task")) <= before
    assert os.sched_getaffinity(0) == cpus
