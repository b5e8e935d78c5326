"""Tests of the encoders: content, latency and errors."""

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

from vivace.audio.encode import open_encoder
from vivace.audio.files import read_audio
from vivace.audio.formats import FORMATS
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
    """The bytes after each step, and the complete file with a patched header."""
    encoder = open_encoder(format, RATE)
    steps = [encoder.encode(samples[i : i + step]) for i in range(0, len(samples), step)]
    steps.append(encoder.finish())
    whole = io.BytesIO(b"".join(steps))
    for position, patch in encoder._buffer.patches:
        assert position + len(patch) <= len(whole.getvalue()) - len(steps[-1])
    encoder.patch(whole)
    return steps, whole.getvalue()


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


def skip_without(format: str, package: str | None = None) -> None:
    if (package or FORMATS[format].packages[:1] == ("av",)) and package != "soundfile":
        pytest.importorskip("av")


def similarity(samples: np.ndarray, wanted: np.ndarray) -> float:
    """The best correlation over the possible delays of a codec."""
    span = len(wanted) - 8_000
    centre = wanted[2_000 : 2_000 + span]
    return max(
        float(np.corrcoef(samples[delay : delay + span], centre)[0, 1])
        for delay in range(2_000, min(2_000 + 55, len(samples) - span))  # one period of the tone
    )


# -- content -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_patched", [True, False], ids=["file", "stream"])
@pytest.mark.parametrize("format", ["wav", "flac", "pcm"])
def test_lossless_format_keeps_16_bit_samples(format: str, is_patched: bool) -> None:
    samples = np.random.default_rng(0).uniform(-1.1, 1.1, RATE).astype(np.float32)
    steps, whole = encode_in_steps(format, samples)
    found = decode(format, whole if is_patched else b"".join(steps))
    wanted = np.clip(np.rint(samples * 32_768), -32_768, 32_767) / 32_768
    np.testing.assert_array_equal(found, wanted.astype(np.float32))


@pytest.mark.parametrize("is_patched", [True, False], ids=["file", "stream"])
@pytest.mark.parametrize("format", LOSSY)
def test_lossy_format_keeps_length_and_sound(format: str, is_patched: bool) -> None:
    skip_without(format)
    steps, whole = encode_in_steps(format, tone())
    found = decode(format, whole if is_patched else b"".join(steps))
    assert len(found) / RATE == pytest.approx(2, abs=0.15)
    assert similarity(found, tone()) > 0.9
    assert np.std(found[4_000:-8_000]) == pytest.approx(0.5 / 2**0.5, rel=0.1)


def test_similarity_of_noise_and_tone_is_low() -> None:
    assert similarity(np.random.default_rng(0).normal(size=2 * RATE), tone()) < 0.2


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["wav", "flac", "pcm"]), st.lists(st.integers(0, 3_000), max_size=12))
def test_encoded_audio_does_not_depend_on_chunk_sizes(format: str, sizes: list[int]) -> None:
    samples = np.random.default_rng(1).uniform(-1, 1, sum(sizes)).astype(np.float32)
    encoder = open_encoder(format, RATE)
    parts = [encoder.encode(part) for part in np.split(samples, np.cumsum(sizes))]
    content = b"".join([*parts, encoder.finish()])
    if len(samples) or format == "pcm":
        np.testing.assert_allclose(decode(format, content), samples, atol=1 / 32_768)


@pytest.mark.parametrize("format", ["ogg", "opus"])
@pytest.mark.parametrize("package", ["soundfile", "av"])
def test_long_samples_at_once_do_not_crash_encoder(
    format: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without(format, package)
    if package == "soundfile":
        monkeypatch.setitem(sys.modules, "av", None)
    encoder = open_encoder(format, RATE)
    seconds = 120.0 if format == "ogg" else 20.0  # Vorbis overflowed its stack
    content = encoder.encode(tone(seconds)) + encoder.finish()
    assert len(decode(format, content)) / RATE == pytest.approx(seconds, abs=0.1)


def test_streamed_bytes_are_readable() -> None:
    for format in ("wav", "flac", "mp3", "ogg", "opus"):
        steps, _ = encode_in_steps(format, tone())
        assert read_audio(b"".join(steps)).duration_s == pytest.approx(2, abs=0.15)


def test_pcm_is_little_endian_without_header() -> None:
    encoder = open_encoder("pcm", RATE)
    assert encoder.encode([0.5, -1.0, 2.0]) + encoder.finish() == b"\0\x40\0\x80\xff\x7f"


def test_wav_length_is_open_until_patched() -> None:
    steps, whole = encode_in_steps("wav", tone())
    assert steps[0][4:8] == steps[0][40:44] == b"\xff\xff\xff\xff"
    with wave.open(io.BytesIO(whole)) as file:
        assert file.getnframes() == len(tone())
    assert int.from_bytes(whole[4:8], "little") == len(whole) - 8


# -- latency -----------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["wav", "pcm", "mp3", "opus"])
def test_first_chunk_returns_audio(format: str) -> None:
    skip_without(format)
    steps, _ = encode_in_steps(format, tone())
    header = {"wav": 44, "opus": 200}.get(format, 0)
    assert len(steps[0]) > header
    assert all(steps[:-1])


@pytest.mark.parametrize("format", ["flac", "aac"])
def test_three_chunks_return_audio(format: str) -> None:
    skip_without(format)
    steps, _ = encode_in_steps(format, tone())
    assert all(any(steps[i : i + 3]) for i in range(1, len(steps) - 2))


def test_opus_without_av_is_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    steps, whole = encode_in_steps("opus", tone())
    assert not any(steps[1:10])
    assert similarity(decode("opus", whole), tone()) > 0.9


def test_encoder_keeps_no_taken_bytes() -> None:
    encoder = open_encoder("flac", RATE)
    for _ in range(20):
        encoder.encode(tone())
    assert len(encoder._buffer._pending) == 0


# -- errors ------------------------------------------------------------------------------------


def test_unknown_format_raises_error_with_known_formats() -> None:
    with pytest.raises(
        AudioError, match=r"unknown audio format 'wma'; choose one of: wav, flac, mp3"
    ):
        open_encoder("wma", RATE)


@pytest.mark.parametrize(
    ("format", "package", "line"),
    [
        ("aac", "av", r"needs the package av, .* pip install '\.\[av\]'"),
        ("flac", "soundfile", "needs the package soundfile, .* pip install soundfile"),
        ("mp3", "soundfile", "pip install soundfile"),
    ],
)
def test_missing_package_raises_install_hint(
    format: str, package: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(AudioError, match=line):
        open_encoder(format, RATE)


def test_wav_and_pcm_are_encoded_without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setitem(sys.modules, "av", None)
    for format in ("wav", "pcm"):
        encode_in_steps(format, tone())


@pytest.mark.parametrize("package", ["soundfile", "av"])
def test_unsupported_sample_rate_of_format_raises_audio_error(
    package: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    skip_without("opus", package)
    if package == "soundfile":
        monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(AudioError, match="cannot write opus at 22,050 Hz"):
        open_encoder("opus", 22_050)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("rate", "bit_rate"),
    [
        (44_100, 128_000),
        (44_100, 32_000),
        (32_000, 64_000),
        (24_000, 48_000),
        (22_050, 32_000),
        (16_000, 40_000),
        (8_000, 16_000),
    ],
)
def test_mp3_has_requested_bit_rate(rate: int, bit_rate: int) -> None:
    av = pytest.importorskip("av")
    encoder = open_encoder("mp3", rate, bit_rate)
    content = encoder.encode(tone(1.0, rate)) + encoder.finish()
    with av.open(io.BytesIO(content)) as container:
        found = container.streams.audio[0].codec_context
        assert (found.sample_rate, found.bit_rate) == (rate, bit_rate)


@pytest.mark.parametrize("format", ["opus", "aac"])
def test_file_is_smaller_with_lower_bit_rate(format: str) -> None:
    pytest.importorskip("av")
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, RATE).astype(np.float32)
    sizes = []
    for bit_rate in (24_000, None, 96_000):
        encoder = open_encoder(format, RATE, bit_rate)
        sizes.append(len(encoder.encode(noise) + encoder.finish()))
    low, default, high = sizes
    assert low * 1.2 < default < high / 1.2


@pytest.mark.parametrize("bit_rate", [0, 7_999, 320_001])
def test_bit_rate_out_of_range_raises_audio_error(bit_rate: int) -> None:
    with pytest.raises(AudioError, match=f"from 8000 to 320000 bits a second, not {bit_rate}"):
        open_encoder("mp3", 24_000, bit_rate)


@pytest.mark.parametrize("rate", [0, -1, 192_001])
def test_sample_rate_out_of_range_raises_audio_error(rate: int) -> None:
    with pytest.raises(AudioError, match=f"sample_rate must be 1 to 192,000 Hz, not {rate}"):
        open_encoder("wav", rate)


@pytest.mark.parametrize(
    ("samples", "message"),
    [([np.nan], "NaN"), ([1e300], "infinite"), (np.zeros((2, 3)), r"not \[2, 3\]")],
)
@pytest.mark.parametrize("format", ["wav", "mp3"])
def test_invalid_samples_raise_audio_error(format: str, samples: object, message: str) -> None:
    with pytest.raises(AudioError, match=message):
        open_encoder(format, RATE).encode(samples)  # type: ignore[arg-type]


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_finished_encoder_rejects_samples(format: str) -> None:
    skip_without(format)
    encoder = open_encoder(format, RATE)
    encoder.finish()
    assert encoder.finish() == b""
    with pytest.raises(AudioError, match="finished"):
        encoder.encode(tone())


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
@pytest.mark.parametrize("name", ["opus", "aac"])
def test_encoder_starts_no_threads_and_keeps_cpu_affinity(name: str) -> None:
    pytest.importorskip("av")
    open_encoder(name, 24_000).encode(np.zeros(4_800, np.float32))  # the first may start
    cpus, before = os.sched_getaffinity(0), set(os.listdir("/proc/self/task"))
    encoders = [open_encoder(name, 24_000) for _ in range(4)]
    for encoder in encoders:
        encoder.encode(np.zeros(4_800, np.float32))
    assert set(os.listdir("/proc/self/task")) <= before
    assert os.sched_getaffinity(0) == cpus


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="CPUs of a thread are set on Linux"
)
def test_cpus_of_the_thread_are_restored_after_encoder_setup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("av")
    cpus, calls = os.sched_getaffinity(0), list[set[int]]()
    monkeypatch.setattr(os, "sched_setaffinity", lambda _thread, allowed: calls.append(allowed))
    open_encoder("aac", RATE).encode(tone())
    assert calls == [{min(cpus)}, cpus]
