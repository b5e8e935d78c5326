"""Decodes audio bytes to mono float32 and enforces size limits while decoding.

The package parses WAV itself. libsndfile or FFmpeg decode other formats, in a sandbox unless the
audio is trusted.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from vivace.audio.encode import import_package
from vivace.audio.formats import READABLE_FORMATS
from vivace.audio.wav import Samples, parse_wav
from vivace.errors import AudioError

MIB = 2**20
BLOCK_FRAMES = 65_536
EBML = b"\x1a\x45\xdf\xa3"  # first bytes of Matroska and WebM


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioLimits:
    """Limits for untrusted audio, enforced while decoding."""

    max_encoded_bytes: int = 10 * MIB
    max_decoded_bytes: int = 16 * MIB  # float32, after mixing to mono
    max_channels: int = 2
    min_sample_rate: int = 8_000
    max_sample_rate: int = 192_000
    accepts_cut: bool = True  # a WAV with fewer samples than its header declares

    def check_encoded(self, num_bytes: int) -> None:
        if num_bytes > self.max_encoded_bytes:
            limit = self.max_encoded_bytes / MIB
            raise AudioError(f"larger than the limit of {limit:g} MiB; use a shorter recording")

    def check_format(self, sample_rate: int, num_channels: int) -> None:
        if not self.min_sample_rate <= sample_rate <= self.max_sample_rate:
            raise AudioError(
                f"the sample rate is {sample_rate:,} Hz; "
                f"supported: {self.min_sample_rate:,} to {self.max_sample_rate:,} Hz"
            )
        if not 1 <= num_channels <= self.max_channels:
            raise AudioError(f"{num_channels} channels; supported: 1 to {self.max_channels}")

    def check_complete(self, num_missing_bytes: int) -> None:
        if num_missing_bytes and not self.accepts_cut:
            raise AudioError(
                f"the file is truncated: {num_missing_bytes:,} bytes of its samples are missing"
            )

    def check_decoded(self, num_frames: int, sample_rate: int) -> None:
        max_frames = self.max_decoded_bytes // 4
        if num_frames > max_frames:
            raise AudioError(
                f"longer than {max_frames / sample_rate:.1f} s, the limit at {sample_rate:,} Hz; "
                "use a shorter recording"
            )


DEFAULT_LIMITS = AudioLimits()
Decoded = tuple[Samples, int]  # samples [n] and their rate
Decompress = Callable[[bytes, AudioLimits], Decoded]


def mix(frames: Samples) -> Samples:
    """[n, channels] -> [n]"""
    with np.errstate(all="ignore"):
        mono: Samples = frames.mean(axis=1, dtype=np.float32)
    return mono


def decode(content: bytes, limits: AudioLimits, decompress: Decompress) -> Decoded:
    """Decode WAV here and all other formats with `decompress`."""
    if content[:4] == b"RIFF" and content[8:12] == b"WAVE":
        wav = parse_wav(content)
        limits.check_format(wav.sample_rate, wav.num_channels)
        limits.check_complete(wav.num_missing_bytes)
        limits.check_decoded(wav.num_frames, wav.sample_rate)
        return mix(wav.decode()), wav.sample_rate
    if content[:4] in (b"fLaC", b"OggS") or _container(content):
        return decompress(content, limits)
    audio = _skip_id3(content)
    if _is_mp3_frame(audio):
        return decompress(audio, limits)
    if not audio:
        raise AudioError("the file has only a tag, no audio" if content else "the file is empty")
    raise AudioError(f"unknown audio format; {READABLE_FORMATS}")


def _skip_id3(content: bytes) -> bytes:
    # libsndfile accepts any of its formats after a tag, so the format is checked here first.
    start = 0
    while content[start : start + 3] == b"ID3" and start + 10 <= len(content):
        a, b, c, d = content[start + 6 : start + 10]
        start += 10 + (a << 21 | b << 14 | c << 7 | d)  # seven bits per byte
    return content[start:].lstrip(b"\0") if start else content


def _is_mp3_frame(content: bytes) -> bool:
    if len(content) < 4 or content[0] != 0xFF or content[1] & 0xE0 != 0xE0:
        return False
    version, layer = content[1] >> 3 & 3, content[1] >> 1 & 3
    return version != 1 and layer == 1 and content[2] >> 4 != 15 and content[2] >> 2 & 3 != 3


def _container(content: bytes) -> str | None:
    """FFmpeg's name of the container, or None if libsndfile decodes the file."""
    if content[4:8] == b"ftyp":
        return "mov"
    if content[:4] == EBML:
        return "matroska"
    return "aac" if _is_adts(content) else None


def _is_adts(content: bytes) -> bool:
    """Whether the content begins with a frame of AAC without a container."""
    if len(content) < 7 or content[0] != 0xFF or content[1] & 0xF6 != 0xF0:
        return False
    size = (content[3] & 3) << 11 | content[4] << 3 | content[5] >> 5
    return 7 <= size <= len(content) and content[size : size + 2] in (b"", content[:2])


def decode_compressed(content: bytes, limits: AudioLimits) -> Decoded:
    """Decode FLAC, OGG and MP3 with libsndfile, M4A, AAC and WebM with FFmpeg, in this process."""
    blocks: list[Samples] = []
    num_frames, sample_rate = 0, 0
    container = _container(content)
    source = _read_sndfile(content) if container is None else _read_av(content, container)
    try:
        for block, sample_rate in source:
            limits.check_format(sample_rate, block.shape[1])
            num_frames += len(block)
            limits.check_decoded(num_frames, sample_rate)
            blocks.append(mix(block))
    except AudioError:
        raise
    except (RuntimeError, ValueError, OSError, EOFError) as error:
        raise AudioError(f"cannot be decoded: {_reason(error)}") from error
    return np.concatenate(blocks), sample_rate


def _read_sndfile(content: bytes) -> Iterator[Decoded]:
    """Blocks [n, channels] and their rate, starting with an empty block."""
    with import_package("soundfile").SoundFile(io.BytesIO(content)) as file:
        sample_rate = int(file.samplerate)
        yield np.zeros((0, file.channels), np.float32), sample_rate
        file.seekable = lambda: False  # soundfile seeks after each block; streamed FLAC would fail
        while len(block := file.read(BLOCK_FRAMES, dtype="float32", always_2d=True)):
            yield block, sample_rate


def _read_av(content: bytes, container: str) -> Iterator[Decoded]:
    av = import_package("av")
    with av.open(io.BytesIO(content), format=container) as file:
        if not file.streams.audio:
            raise AudioError("the file has no audio stream")
        stream = file.streams.audio[0]
        stream.codec_context.thread_count = 1  # a sandboxed child cannot start threads
        yield np.zeros((0, stream.channels), np.float32), stream.rate
        resampler = av.AudioResampler(format="fltp")
        for frame in file.decode(stream):
            for part in resampler.resample(frame):
                yield part.to_ndarray().T, part.sample_rate


def _reason(error: Exception) -> str:
    message = str(getattr(error, "error_string", error))  # libsndfile's message only
    return "the file is damaged or truncated" if "pipe" in message else message
