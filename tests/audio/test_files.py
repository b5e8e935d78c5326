"""Tests of reading audio: sources, formats, limits, and the checks of reference recordings."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from vivace.audio.decode import AudioLimits
from vivace.audio.files import Recording, check_path, check_reference, read_audio
from vivace.audio.wav import parse_wav
from vivace.audio.writer import write_audio
from vivace.errors import AudioError

RATE = 24_000
SMALL = AudioLimits(max_encoded_bytes=10_000, max_decoded_bytes=4_000)


def tone(seconds: float = 1.0, rate: int = RATE, level: float = 0.5) -> np.ndarray:
    time = np.arange(int(rate * seconds)) / rate
    return (level * np.sin(2 * np.pi * 440 * time)).astype(np.float32)


def encode(samples: np.ndarray, rate: int = RATE, **kind: str) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, **kind)
    return buffer.getvalue()


def make_wav(
    *, tag: int = 1, channels: int = 1, rate: int = RATE, bits: int = 16, data: bytes = bytes(64)
) -> bytes:
    frame = channels * bits // 8
    head = struct.pack("<HHIIHH", tag, channels, rate, rate * frame & 0xFFFFFFFF, frame, bits)
    return b"RIFF" + bytes(4) + b"WAVE" + chunk(b"fmt ", head) + chunk(b"data", data)


def chunk(name: bytes, body: bytes) -> bytes:
    return name + len(body).to_bytes(4, "little") + body + bytes(len(body) % 2)


WAV = encode(tone(0.02), format="WAV", subtype="PCM_16")
SMALL_FILES = {
    "WAV": WAV,
    "FLAC": encode(tone(0.05), format="FLAC"),
    "VORBIS": encode(tone(0.05), format="OGG", subtype="VORBIS"),
    "OPUS": encode(tone(0.05), format="OGG", subtype="OPUS"),
    "MP3": encode(tone(0.05), format="MP3"),
}


# -- sources -----------------------------------------------------------------------------------


def test_read_audio_of_path_bytes_and_data_uri_is_equal(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"  # the extension is ignored
    path.write_bytes(WAV)
    uri = "data:audio/wav;base64," + base64.b64encode(WAV).decode()
    for source in (path, str(path), WAV, bytearray(WAV), memoryview(WAV), uri):
        recording = read_audio(source)  # type: ignore[arg-type]
        assert recording.sample_rate == RATE
        assert recording.sha256 == hashlib.sha256(WAV).hexdigest()
        assert recording.samples.dtype == np.float32
        np.testing.assert_allclose(recording.samples, tone(0.02), atol=1e-4)


def test_recording_duration_is_in_seconds() -> None:
    assert read_audio((tone(1.5), RATE)).duration_s == 1.5


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("data:audio/wav;base64,!!!!", "invalid base64"),
        ("data:audio/wav;base64,AAA", "invalid base64"),
        ("data:audio/wav;base64,ÄÖ", "invalid base64"),
        ("data:audio/wav;base64,", "empty"),
        ("data:audio/wav,AAAA", "does not have the form"),
        ("data:text/plain;base64,AAAA", "does not have the form"),
        ("data:audio/wav;base64", "does not have the form"),
        ("DATA:" + "x" * 10_000, "does not have the form"),
    ],
)
def test_invalid_data_uri_raises_audio_error(uri: str, message: str) -> None:
    with pytest.raises(AudioError, match=message) as caught:
        read_audio(uri)
    assert len(str(caught.value)) < 300


def test_data_uri_with_parameters_is_read() -> None:
    uri = "data:audio/ogg;codecs=opus;base64," + base64.b64encode(SMALL_FILES["OPUS"]).decode()
    assert read_audio(uri).sample_rate == RATE


@pytest.mark.parametrize(
    "url",
    ["http://a.b/c.wav", "https://a.b/c.wav", " HTTPS://a.b/c", "file:///etc/passwd", "s3://a"],
)
def test_url_raises_audio_error(url: str) -> None:
    with pytest.raises(AudioError, match="URLs are not fetched"):
        read_audio(url)


def test_path_that_is_not_a_file_raises_error_with_its_kind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    for path, reason in {
        tmp_path / "none.wav": "there is no such file",
        Path("a\0b"): "there is no such file",
        tmp_path: "it is a folder, not a file",
        tmp_path / "pipe.wav": "it is a pipe, not a file",
        Path("/dev/zero"): "it is a device, not a file",
    }.items():
        with pytest.raises(AudioError, match=reason):
            read_audio(path)


def test_check_path_rejects_missing_file_and_leaves_uris_to_read_audio(tmp_path: Path) -> None:
    check_path("DATA:audio/wav;base64,AAAA")
    check_path("https://example.org/me.wav")
    with pytest.raises(AudioError, match=r"none\.wav: there is no such file"):
        check_path(str(tmp_path / "none.wav"))


def test_base64_without_prefix_raises_error_with_hint() -> None:
    with pytest.raises(AudioError, match="base64 needs the prefix data:audio") as caught:
        read_audio(base64.b64encode(WAV).decode())
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("source", [None, 3, tone(), [tone(), RATE], torch.zeros(9)])
def test_unsupported_source_type_raises_audio_error(source: Any) -> None:
    with pytest.raises(AudioError, match="audio must be a path, bytes"):
        read_audio(source)


# -- arrays ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "samples",
    [
        tone(),
        tone().astype(np.float64),
        tone()[:, None],
        tone()[None],
        np.stack([tone(), tone()]),
        np.stack([tone(), tone()], axis=1),
        torch.from_numpy(tone()),
        tone().tolist(),
        np.rint(tone() * 2**15).astype(np.int16),
        np.rint(tone().astype(np.float64) * 2**31).astype(np.int32),
    ],
    ids=lambda samples: f"{type(samples).__name__}-{getattr(samples, 'dtype', '')}",
)
def test_array_is_read_as_mono_float32(samples: Any) -> None:
    recording = read_audio((samples, RATE))
    assert recording.samples.dtype == np.float32
    np.testing.assert_allclose(recording.samples, tone(), atol=2e-5)


def test_uint8_array_is_centred_at_zero() -> None:
    samples = read_audio((np.array([0, 128, 255], np.uint8), RATE)).samples
    np.testing.assert_array_equal(samples, np.array([-1, 0, 127 / 128], np.float32))


def test_stereo_array_is_read_as_mean_of_channels() -> None:
    pair = np.stack([tone(), -tone() / 2], axis=1)
    np.testing.assert_allclose(read_audio((pair, RATE)).samples, tone() / 4, atol=1e-7)


def test_array_is_copied() -> None:
    samples = tone()
    recording = read_audio((samples, RATE))
    samples[:] = 9
    assert recording.samples.max() < 1


def test_sha256_of_array_depends_on_samples_and_rate() -> None:
    digest = read_audio((tone(), RATE)).sha256
    assert read_audio((tone().astype(np.float64), float(RATE))).sha256 == digest  # type: ignore[arg-type]
    assert read_audio((tone(), 22_050)).sha256 != digest
    assert read_audio((tone(level=0.4), RATE)).sha256 != digest


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((tone(),), "not a tuple of 1 items"),
        ((tone(), RATE, 1), "not a tuple of 3 items"),
        ((np.zeros((3, 100)), RATE), "3 channels; supported: 1 to 2"),
        ((np.zeros((2, 3, 4)), RATE), r"shape .*, not \[2, 3, 4\]"),
        ((0.5, RATE), r"shape .*, not \[\]"),
        (([[1.0], [1.0, 2.0]], RATE), "audio must be"),
        ((["a", "b"], RATE), "samples must be float, .*, not <U1"),
        (([0, 1, 0], RATE), "int64"),
        ((np.zeros(9, bool), RATE), "bool"),
        ((np.zeros(9, complex), RATE), "complex"),
        ((torch.zeros(9, requires_grad=True), RATE), "requires grad"),
        ((tone(), 7_999), "7,999 Hz; supported: 8,000 to 192,000"),
        ((tone(), 192_001), "192,001 Hz"),
        ((tone(), 0), "0 Hz"),
        ((tone(), -1), "-1 Hz"),
        ((tone(), True), "1 Hz"),
        ((tone(), 24_000.5), "whole number"),
        ((tone(), float("nan")), "audio must be"),
        ((tone(), float("inf")), "audio must be"),
        ((tone(), "24000"), "audio must be"),
        ((tone(), None), "audio must be"),
        ((np.zeros(2**22 + 1, np.int16), RATE), "longer than 174.8 s"),
    ],
)
def test_invalid_array_raises_audio_error(source: Any, message: str) -> None:
    with pytest.raises(AudioError, match=message):
        read_audio(source)


# -- WAV ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("container", ["WAV", "WAVEX"])
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_wav_samples_equal_libsndfile(subtype: str, container: str, channels: int) -> None:
    noise = np.random.default_rng(0).uniform(-1, 1, (999, channels))
    content = encode(noise, 44_100, format=container, subtype=subtype)
    wanted, _ = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    recording = read_audio(content)
    assert recording.sample_rate == 44_100
    np.testing.assert_array_equal(recording.samples, wanted.mean(axis=1))


def test_wav_is_read_without_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert len(read_audio(WAV).samples) == 480


@pytest.mark.parametrize(
    ("subtype", "found"),
    [
        ("MS_ADPCM", "Microsoft ADPCM"),
        ("IMA_ADPCM", "IMA ADPCM"),
        ("ULAW", "mu-law"),
        ("ALAW", "A-law"),
        ("GSM610", "format 0x0031"),
    ],
)
def test_unsupported_wav_encoding_raises_error_with_its_name(subtype: str, found: str) -> None:
    with pytest.raises(AudioError, match=f"{found}.*PCM with 8, 16, 24 or 32 bits"):
        read_audio(encode(tone(), format="WAV", subtype=subtype))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (make_wav(channels=0), "damaged"),
        (make_wav(channels=3), "3 channels; supported: 1 to 2"),
        (make_wav(rate=1), "1 Hz"),
        (make_wav(rate=2**31 - 1), "2,147,483,647 Hz"),
        (make_wav(bits=12), "12 bits"),
        (make_wav(tag=3, bits=16), "16 bits"),
        (make_wav(tag=0xFFFE), "0xfffe"),
        (WAV[:12], "no data chunk"),
        (WAV[:30], "truncated"),
        (WAV[:36], "no data chunk"),
        (b"RIFF\0\0\0\0WAVE" + chunk(b"data", bytes(8)), "precedes the format"),
        (b"RIFF\0\0\0\0WAVE" + chunk(b"fmt ", bytes(4)), "truncated"),
        (b"RIFF\0\0\0\0WAVE" + bytes(9_000), "no data chunk"),
        (WAV[:32] + b"\x07\0" + WAV[34:], "in 7 bytes"),
    ],
)
def test_damaged_wav_raises_audio_error(content: bytes, message: str) -> None:
    with pytest.raises(AudioError, match=message):
        read_audio(content)


def test_unknown_wav_chunks_are_skipped() -> None:
    content = make_wav(data=b"\0\x40" * 10)
    content = content[:12] + chunk(b"LIST", b"odd") + content[12:] + chunk(b"id3 ", bytes(10))
    np.testing.assert_array_equal(read_audio(content).samples, np.full(10, 0.5, np.float32))


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFE, 1_000_000])
def test_streamed_wav_with_wrong_size_is_read_to_its_end(size: int) -> None:
    start = WAV.index(b"data")
    content = WAV[: start + 4] + size.to_bytes(4, "little") + WAV[start + 8 :] + b"\0"
    np.testing.assert_array_equal(read_audio(content).samples, read_audio(WAV).samples)


@pytest.mark.parametrize(("size", "is_cut"), [(0xFFFFFFFF, False), (1_000_000, True)])
def test_wav_with_missing_samples_is_rejected_if_asked(size: int, is_cut: bool) -> None:
    start = WAV.index(b"data")
    content = WAV[: start + 4] + size.to_bytes(4, "little") + WAV[start + 8 :]
    limits = AudioLimits(accepts_cut=False)
    if is_cut:
        with pytest.raises(AudioError, match=r"truncated: 9\d\d,\d+ bytes .* missing"):
            read_audio(content, limits)
    else:
        read_audio(content, limits)
    read_audio(WAV, limits)


def test_file_with_only_a_tag_is_not_called_empty() -> None:
    with pytest.raises(AudioError, match="only a tag"):
        read_audio(b"ID3\4\0\0\0\0\0\4abcd")


# -- other formats -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["FLAC", "VORBIS", "OPUS", "MP3"])
def test_compressed_format_is_detected_from_content(kind: str) -> None:
    recording = read_audio(SMALL_FILES[kind])
    assert recording.sample_rate == RATE
    assert 0.05 <= recording.duration_s < 0.2
    assert 0.3 < np.abs(recording.samples).max() < 0.7


def test_id3_tag_is_skipped_before_mp3_only() -> None:
    tag = b"ID3\x04\0\0" + bytes([0, 0, 1, 2]) + bytes(130) + bytes(20)  # 130 bytes and padding
    untagged = read_audio(SMALL_FILES["MP3"]).samples
    for tags in (tag, tag[:-20] + tag):
        np.testing.assert_array_equal(read_audio(tags + SMALL_FILES["MP3"]).samples, untagged)
    for other in ("FLAC", "WAV"):
        with pytest.raises(AudioError, match="unknown audio format"):
            read_audio(tag + SMALL_FILES[other])


@pytest.mark.parametrize("kind", ["AIFF", "AU", "CAF", "W64", "RF64", "VOC", "AVR", "MAT5", "WVE"])
def test_unsupported_format_raises_error_with_supported_formats(kind: str) -> None:
    subtype = {"WVE": "ALAW"}.get(kind, "PCM_16")
    content = encode(tone(rate=8_000), 8_000, format=kind, subtype=subtype)
    with pytest.raises(AudioError, match="WAV, FLAC, OGG and MP3 are supported"):
        read_audio(content)


@pytest.mark.parametrize("content", [b"RIFX\0\0\0\0WAVE", b"\xff\xf1\x50\x80" * 20, b"ID3", b"x"])
def test_content_similar_to_audio_raises_audio_error(content: bytes) -> None:
    with pytest.raises(AudioError, match="unknown audio format"):
        read_audio(content)


def test_empty_content_raises_audio_error() -> None:
    with pytest.raises(AudioError, match="empty"):
        read_audio(b"")


def test_decode_error_starts_with_file_name(tmp_path: Path) -> None:
    (tmp_path / "me.flac").write_bytes(b"fLaC and then nothing of the kind")
    with pytest.raises(AudioError, match=r"me\.flac: cannot be decoded: \w") as caught:
        read_audio(tmp_path / "me.flac")
    assert "BytesIO" not in str(caught.value)


@pytest.mark.parametrize("kind", ["FLAC", "OPUS", "MP3"])
def test_missing_soundfile_raises_install_hint(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(AudioError, match="pip install soundfile"):
        read_audio(SMALL_FILES[kind], trusted=True)


def test_modules_import_without_soundfile_soxr_and_av() -> None:
    script = (
        "import sys; sys.modules.update(soundfile=None, soxr=None, av=None)\n"
        "import vivace.audio.clip, vivace.audio.files, vivace.audio.speed, vivace.voices.voice"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# -- limits ------------------------------------------------------------------------------------


def test_file_over_encoded_limit_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "sparse.wav"
    with path.open("wb") as file:
        file.write(WAV)
        file.truncate(2**40)  # a sparse terabyte
    with pytest.raises(AudioError, match="larger than the limit of 10 MiB"):
        read_audio(path)


def test_data_uri_over_limit_is_not_decoded() -> None:
    with pytest.raises(AudioError, match="the data URI: larger than"):
        read_audio("data:audio/wav;base64," + "!" * 20_000, SMALL)


def test_encoded_limit_is_inclusive() -> None:
    content = make_wav(data=bytes(1_000))
    read_audio(content, AudioLimits(max_encoded_bytes=len(content)))
    read_audio(
        "data:audio/wav;base64," + base64.b64encode(content).decode(),
        AudioLimits(max_encoded_bytes=len(content)),
    )
    with pytest.raises(AudioError, match="larger than"):
        read_audio(content, AudioLimits(max_encoded_bytes=len(content) - 1))


@pytest.mark.parametrize("suffix", ["flac", "ogg", "opus", "mp3"])
def test_decoding_stops_at_decoded_limit(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty seconds of silence in a few kilobytes are rejected after the first block."""
    bomb = write_audio(tmp_path / f"bomb.{suffix}", np.zeros(20 * RATE), RATE)
    num_read = 0
    read = soundfile.SoundFile.read

    def counting(self: Any, *args: Any, **kwargs: Any) -> np.ndarray:
        nonlocal num_read
        block = read(self, *args, **kwargs)
        num_read += len(block)
        return block

    monkeypatch.setattr(soundfile.SoundFile, "read", counting)
    with pytest.raises(AudioError, match=r"longer than 0\.0 s, the limit at 24,000 Hz"):
        read_audio(bomb, AudioLimits(max_decoded_bytes=4_000), trusted=True)
    assert num_read <= 65_536
    assert read_audio(bomb, trusted=True).duration_s == pytest.approx(20, abs=0.2)  # the control


def test_forged_flac_length_allocates_no_memory() -> None:
    content = bytearray(SMALL_FILES["FLAC"])
    content[21] |= 0x0F  # the 36-bit number of samples
    content[22:26] = b"\xff" * 4
    try:
        assert read_audio(bytes(content)).duration_s < 1
    except AudioError as error:
        assert "cannot be decoded" in str(error)  # noqa: PT017


def test_decoded_limit_of_8_bit_wav_counts_float32() -> None:
    with pytest.raises(AudioError, match=r"longer than 0\.0 s"):
        read_audio(make_wav(bits=8, data=bytes(1_001)), SMALL)


def test_flac_with_six_channels_raises_audio_error() -> None:
    with pytest.raises(AudioError, match="6 channels; supported: 1 to 2"):
        read_audio(encode(np.zeros((100, 6)), format="FLAC"))


# -- reference recordings ----------------------------------------------------------------------


def reference(samples: np.ndarray, rate: int = RATE) -> Recording:
    return read_audio((samples, rate))


@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
def test_valid_reference_is_accepted(rate: int) -> None:
    check_reference(reference(tone(3.0, rate), rate))
    check_reference(reference(tone(1.0, rate, level=0.01), rate))
    check_reference(reference(tone(30.0, rate), rate))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (tone(0.99), r"lasts 0\.99 s; it must have 1 to 30 s"),
        (tone(0.0), r"lasts 0\.00 s"),
        (tone(30.01), r"lasts 30\.01 s; it must have 1 to 30 s"),
        (np.where(np.arange(RATE) == 9, np.nan, tone()), "1 samples that are NaN"),
        (np.where(np.arange(RATE) < 9, np.inf, tone()), "9 samples that are NaN or infinite"),
        (tone().astype(np.float64) * 1e300, "NaN or infinite"),
        (np.zeros(RATE), r"silent \(-200 dBFS\); .* at least -60 dBFS"),
        (tone(level=0.001), r"silent \(-63 dBFS\)"),
        (np.full(RATE, 0.5), "silent"),
        (np.sign(tone()), r"clipped: 100% of its samples .*peak 1.; at most 50%"),
        (tone(level=32_767.0), r"100% .*peak 32767.*range -1 to 1"),
    ],
)
def test_unusable_reference_raises_audio_error(samples: np.ndarray, message: str) -> None:
    with pytest.raises(AudioError, match=message):
        check_reference(reference(samples))


def test_slightly_clipped_reference_is_accepted() -> None:
    check_reference(reference(np.clip(tone(level=1.3), -1, 1)))


# -- mutated files -----------------------------------------------------------------------------


edits = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=8)


def read_or_reject(content: bytes) -> None:
    try:
        recording = read_audio(content, trusted=True)  # faster; test_sandbox.py covers the sandbox
    except AudioError:
        return
    assert recording.samples.ndim == 1
    assert recording.samples.nbytes <= AudioLimits().max_decoded_bytes


@pytest.mark.parametrize("kind", list(SMALL_FILES))
@examples(100)
@given(edits=edits)
def test_mutated_file_is_read_or_raises_error(kind: str, edits: list[tuple[int, int]]) -> None:
    content = bytearray(SMALL_FILES[kind])
    for position, value in edits:
        content[position % len(content)] = value
    read_or_reject(bytes(content))


@examples(300)
@given(
    st.lists(st.tuples(st.integers(12, 60), st.integers(0, 255)), max_size=8), st.integers(0, 99)
)
def test_mutated_wav_header_is_read_or_raises_audio_error(
    edits: list[tuple[int, int]], cut: int
) -> None:
    content = bytearray(encode(tone(0.01), format="WAVEX", subtype="FLOAT"))
    for position, value in edits:
        content[position] = value
    read_or_reject(bytes(content[: len(content) - cut]))


@examples(200)
@given(
    st.sampled_from([b"", b"RIFF\0\0\0\0WAVEfmt ", b"fLaC", b"OggS", b"ID3\x04", b"\xff\xfb"]),
    st.binary(max_size=200),
)
def test_random_bytes_are_read_or_raise_audio_error(magic: bytes, rest: bytes) -> None:
    read_or_reject(magic + rest)


def test_parse_wav_reads_header() -> None:
    wav = parse_wav(WAV)
    assert (wav.sample_rate, wav.num_channels, wav.bits, wav.num_frames) == (RATE, 1, 16, 480)


# -- FFmpeg ------------------------------------------------------------------------------------


def make_container(path: Path, codec: str, rate: int, channels: str) -> Path:
    av = pytest.importorskip("av")
    times = np.arange(2 * rate) / rate
    tone = np.tile(0.5 * np.sin(2 * np.pi * 440 * times).astype(np.float32), (2, 1))
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=rate, layout=channels)
        samples = tone if channels == "stereo" else tone[:1]
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=channels)
        frame.sample_rate, frame.pts = rate, 0
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize(
    ("name", "codec", "rate", "channels"),
    [
        ("a.m4a", "aac", 44_100, "stereo"),
        ("a.m4a", "aac", 24_000, "mono"),
        ("a.aac", "aac", 24_000, "mono"),
        ("a.webm", "libopus", 48_000, "mono"),
    ],
)
def test_m4a_aac_and_webm_are_read(
    tmp_path: Path, name: str, codec: str, rate: int, channels: str, trusted: bool
) -> None:
    path = make_container(tmp_path / name, codec, rate, channels)
    recording = read_audio(path, trusted=trusted)
    assert recording.sample_rate == rate
    assert recording.duration_s == pytest.approx(2, abs=0.1)
    assert np.std(recording.samples) == pytest.approx(0.5 / 2**0.5, rel=0.05)
    content = path.read_bytes()
    for bad in (content[:40], content[: len(content) // 3], content[:8] + bytes(2_000)):
        with contextlib.suppress(AudioError):  # no other error is allowed
            read_audio(bad, trusted=trusted)


def test_limits_apply_to_m4a(tmp_path: Path) -> None:
    content = make_container(tmp_path / "a.m4a", "aac", 48_000, "stereo").read_bytes()
    for limits in (
        AudioLimits(max_decoded_bytes=48_000),
        AudioLimits(max_channels=1),
        AudioLimits(max_sample_rate=44_100),
    ):
        with pytest.raises(AudioError, match=r"limit|channels|sample rate"):
            read_audio(content, limits)


def test_damaged_mp3_raises_error_without_the_word_pipe() -> None:
    with pytest.raises(AudioError) as error:
        read_audio(b"\xff\xfb\x90\x64" + bytes(500))
    assert "pipe" not in str(error.value)
    assert "damaged" in str(error.value)
