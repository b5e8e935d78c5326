"""Decodes audio bytes to mono float32, within limits that are checked while decoding.

WAV is read by our own parser, the rest by libsndfile or FFmpeg, in a sandbox unless trusted.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivace.audio.encode import import_package
from vivace.audio.wav import parse_wav
from vivace.errors import AudioError

MIB = 2**20
BLOCK_FRAMES = 65_536
READABLE = "WAV, FLAC, OGG and MP3 are read, and M4A and WebM with vivace[av]"
EBML = b"\x1a\x45\xdf\xa3"  # how Matroska and WebM begin


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioLimits:
    """Limits for untrusted audio, checked while it is decoded."""

    max_encoded_bytes: int = 10 * MIB
    max_decoded_bytes: int = 16 * MIB  # float32, after mixing to mono
    max_channels: int = 2
    min_sample_rate: int = 8_000
    max_sample_rate: int = 192_000

    def check_encoded(self, num_bytes: int) -> None:
        if num_bytes > self.max_encoded_bytes:
            limit = self.max_encoded_bytes / MIB
            raise AudioError(f"larger than {limit:g} MiB, the limit; give a shorter piece")

    def check_format(self, sample_rate: int, num_channels: int) -> None:
        if not self.min_sample_rate <= sample_rate <= self.max_sample_rate:
            raise AudioError(
                f"the sample rate is {sample_rate:,} Hz; "
                f"{self.min_sample_rate:,} to {self.max_sample_rate:,} Hz are read"
            )
        if not 1 <= num_channels <= self.max_channels:
            raise AudioError(f"{num_channels} channels; 1 to {self.max_channels} are read")

    def check_decoded(self, num_frames: int, sample_rate: int) -> None:
        max_frames = self.max_decoded_bytes // 4
        if num_frames > max_frames:
            raise AudioError(
                f"longer than {max_frames / sample_rate:.1f} s, the limit at {sample_rate:,} Hz; "
                "give a shorter piece"
            )


DEFAULT_LIMITS = AudioLimits()
Decoded = tuple[NDArray[np.float32], int]  # samples [n] and their rate
Decompress = Callable[[bytes, AudioLimits], Decoded]


def mix(frames: NDArray[np.float32]) -> NDArray[np.float32]:
    """[n, channels] -> [n]"""
    with np.errstate(all="ignore"):
        mono: NDArray[np.float32] = frames.mean(axis=1, dtype=np.float32)
    return mono


def decode(content: bytes, limits: AudioLimits, decompress: Decompress) -> Decoded:
    """Samples and their rate; what is not WAV is left to `decompress`."""
    if content[:4] == b"RIFF" and content[8:12] == b"WAVE":
        wav = parse_wav(content)
        limits.check_format(wav.sample_rate, wav.num_channels)
        limits.check_decoded(wav.num_frames, wav.sample_rate)
        return mix(wav.decode()), wav.sample_rate
    if content[:4] in (b"fLaC", b"OggS") or _container(content):
        return decompress(content, limits)
    content = _skip_id3(content)
    if _is_mp3_frame(content):
        return decompress(content, limits)
    raise AudioError(f"not a format that is known here; {READABLE}" if content else "it is empty")


def _skip_id3(content: bytes) -> bytes:
    # libsndfile looks for any of its formats behind a tag; ours must be looked at first
    start = 0
    while content[start : start + 3] == b"ID3" and start + 10 <= len(content):
        a, b, c, d = content[start + 6 : start + 10]
        start += 10 + (a << 21 | b << 14 | c << 7 | d)  # seven bits a byte
    return content[start:].lstrip(b"\0") if start else content


def _is_mp3_frame(content: bytes) -> bool:
    if len(content) < 4 or content[0] != 0xFF or content[1] & 0xE0 != 0xE0:
        return False
    version, layer = content[1] >> 3 & 3, content[1] >> 1 & 3
    return version != 1 and layer == 1 and content[2] >> 4 != 15 and content[2] >> 2 & 3 != 3


def _container(content: bytes) -> str | None:
    """FFmpeg's name for the kind of file, if that is what reads it."""
    return "mov" if content[4:8] == b"ftyp" else "matroska" if content[:4] == EBML else None


def decode_compressed(content: bytes, limits: AudioLimits) -> Decoded:
    """FLAC, OGG or MP3 by libsndfile, M4A or WebM by FFmpeg, in this process."""
    blocks: list[NDArray[np.float32]] = []
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
    return np.concatenate(blocks or [np.zeros(0, np.float32)]), sample_rate


def _read_sndfile(content: bytes) -> Iterator[tuple[NDArray[np.float32], int]]:
    """Blocks [n, channels] and their rate, an empty one first."""
    with import_package("soundfile").SoundFile(io.BytesIO(content)) as file:
        sample_rate = int(file.samplerate)
        yield np.zeros((0, file.channels), np.float32), sample_rate
        file.seekable = lambda: False  # soundfile seeks after each block; a stream's FLAC fails
        while len(block := file.read(BLOCK_FRAMES, dtype="float32", always_2d=True)):
            yield block, sample_rate


def _read_av(content: bytes, container: str) -> Iterator[tuple[NDArray[np.float32], int]]:
    av = import_package("av")
    with av.open(io.BytesIO(content), format=container) as file:
        if not file.streams.audio:
            raise AudioError("there is no audio in it")
        stream = file.streams.audio[0]
        stream.codec_context.thread_count = 1  # the child that decodes may start no thread
        yield np.zeros((0, stream.channels), np.float32), stream.rate
        resampler = av.AudioResampler(format="fltp")
        for frame in file.decode(stream):
            for part in resampler.resample(frame):
                yield part.to_ndarray().T, part.sample_rate


def _reason(error: Exception) -> str:
    words = str(getattr(error, "error_string", error))  # libsndfile's, without our buffer's
    return "the file is damaged or cut short" if "pipe" in words else words
