"""Streaming encoders: samples in, encoded bytes out, with one interface for all formats."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vivace.audio.file_mark import FileMark
from vivace.audio.formats import AudioFormat, FfmpegCodec, check_bit_rate, find_format
from vivace.audio.id3 import id3_tag
from vivace.audio.tags import SOUNDFILE_NAMES, XMP, Tags, named_tags, riff_chunks
from vivace.audio.wav import Samples, wav_header
from vivace.errors import AudioError, install_command

MAX_SAMPLE_RATE = 192_000
UNKNOWN_SIZE = b"\xff" * 4  # at the end of a WAV header
BLOCK_FRAMES = 65_536  # libsndfile's Vorbis encoder overflows its stack with minutes at once
INSTALL = {"av": install_command("av")}  # other packages: by their name


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderTags:
    """The tags of a file. aac and pcm have no place for them, and only mp3 for a cover."""

    fields: Tags = field(default_factory=dict)
    cover: bytes | None = None  # JPEG or PNG
    are_first: bool = False  # of a WAV: in front of the samples. Else `Encoder.patch` writes them.


NO_TAGS = EncoderTags()


def tags_of(mark: FileMark | None, *, are_first: bool = False) -> EncoderTags:
    """The tags of a marked file, or no tags."""
    return NO_TAGS if mark is None else EncoderTags(fields=mark.tags, are_first=are_first)


def open_encoder(
    format: str, sample_rate: int, bit_rate: int | None = None, tags: EncoderTags = NO_TAGS
) -> Encoder:
    """Return an encoder of one channel; `format` is a name in `FORMATS`.

    `bit_rate`, in bits per second, applies to mp3, aac, and opus with PyAV. None is the default of
    the format.
    """
    if not 1 <= sample_rate <= MAX_SAMPLE_RATE:
        raise AudioError(f"sample_rate must be 1 to {MAX_SAMPLE_RATE:,} Hz, not {sample_rate}")
    check_bit_rate(bit_rate)
    return Encoder(find_format(format, sample_rate), sample_rate, bit_rate, tags)


class Encoder:
    """Encodes samples to bytes. All returned bytes joined are the audio file.

    `encode` returns the bytes that are ready, `finish` the rest. If the output can seek, call
    `patch` afterwards: it corrects the lengths in the header, and appends the tags of a WAV.
    """

    def __init__(
        self,
        format: AudioFormat,
        sample_rate: int,
        bit_rate: int | None = None,
        tags: EncoderTags = NO_TAGS,
    ) -> None:
        self.format = format
        self.sample_rate = sample_rate
        has_id3 = format.name == "mp3" and (tags.fields or tags.cover)
        self._buffer = _ByteBuffer(id3_tag(tags.fields, tags.cover) if has_id3 else b"")
        self._is_finished = False
        self._writer: _SampleWriter = self._run(
            lambda: _open_writer(self._buffer, format, sample_rate, bit_rate, tags)
        )

    def encode(self, samples: ArrayLike) -> bytes:
        """Encode samples [n], clipped to -1 to 1. Returns the bytes that are ready."""
        if self._is_finished:
            raise AudioError("the encoder is finished; open a new encoder")
        signal = np.clip(_check_samples(samples), -1, 1)
        for start in range(0, len(signal), BLOCK_FRAMES):
            block = signal[start : start + BLOCK_FRAMES]
            self._run(lambda block=block: self._writer.write(block))  # type: ignore[misc]
        return self._buffer.take()

    def finish(self) -> bytes:
        """Flush the encoder and return the last bytes. A second call returns no bytes."""
        if not self._is_finished:
            self._is_finished = True
            self._run(lambda: self._writer.close())
        return self._buffer.take()

    def patch(self, file: BinaryIO) -> None:
        """After `finish`, correct the bytes in a file that begins with the audio."""
        for position, content in self._buffer.patches:
            file.seek(position)
            file.write(content)

    def _run(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except AudioError:
            raise
        except Exception as error:  # FFmpeg's errors share no base class below Exception
            name, rate = self.format.name, self.sample_rate
            reason = str(getattr(error, "error_string", error))  # libsndfile's message only
            raise AudioError(f"cannot write {name} at {rate:,} Hz: {reason}") from error


class _ByteBuffer:
    """The file object that encoders write into. Keeps only bytes that were not taken yet.

    Encoders count positions from the end of `prefix`.
    """

    def __init__(self, prefix: bytes = b"") -> None:
        self.patches: list[tuple[int, bytes]] = []
        self._pending = bytearray(prefix)
        self._base = self._position = len(prefix)
        self._num_taken = 0

    def take(self) -> bytes:
        taken = bytes(self._pending)
        self._num_taken += len(taken)
        self._pending.clear()
        return taken

    def write(self, data: Any) -> int:
        content = bytes(data)
        num_late = max(0, min(len(content), self._num_taken - self._position))
        if num_late:  # the encoder overwrites bytes that were already taken
            self.patches.append((self._position, content[:num_late]))
        start = self._position + num_late - self._num_taken
        self._pending[start : start + len(content) - num_late] = content[num_late:]
        self._position += len(content)
        return len(content)

    def append_late(self, content: bytes) -> None:
        """Add bytes behind the end that only a complete file has."""
        if self._num_taken:
            self.patches.append((self._num_taken + len(self._pending), content))
        else:
            self._pending += content

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        end = self._num_taken + len(self._pending)
        self._position = offset + (self._base, self._position, end)[whence]
        return self.tell()

    def tell(self) -> int:
        return self._position - self._base

    def read(self, num_bytes: int = -1) -> bytes:
        raise OSError("encoded audio cannot be read back")  # soundfile requires a read method


class _WriteOnly:
    """Exposes only `write` of a buffer to FFmpeg, so that FFmpeg never tries to seek."""

    def __init__(self, buffer: _ByteBuffer) -> None:
        self.write = buffer.write


class _SampleWriter(Protocol):
    def write(self, signal: Samples) -> None: ...

    def close(self) -> None: ...


class _PcmWriter:
    """Writes 16-bit little-endian samples."""

    def __init__(self, buffer: _ByteBuffer) -> None:
        self._buffer, self._num_bytes = buffer, 0

    def write(self, signal: Samples) -> None:
        self._num_bytes += self._buffer.write(to_pcm(signal).astype("<i2").tobytes())

    def close(self) -> None:
        """Raw samples have no header to correct."""


class _WavWriter(_PcmWriter):
    """Writes a WAV file. A stream has no size, so its tags can only precede its samples."""

    def __init__(self, buffer: _ByteBuffer, sample_rate: int, tags: EncoderTags) -> None:
        super().__init__(buffer)
        chunks = riff_chunks(tags.fields)
        self._before, self._after = (chunks, b"") if tags.are_first else (b"", chunks)
        self._sample_rate = sample_rate
        buffer.write(wav_header(sample_rate, before=self._before))

    def close(self) -> None:
        header = wav_header(
            self._sample_rate, self._num_bytes, before=self._before, num_after=len(self._after)
        )
        self._buffer.seek(0)
        self._buffer.write(header)
        if self._after and not header.endswith(UNKNOWN_SIZE):
            self._buffer.append_late(self._after)


class _SoundfileWriter:
    def __init__(
        self,
        buffer: _ByteBuffer,
        format: AudioFormat,
        sample_rate: int,
        bit_rate: int | None,
        tags: Tags,
    ) -> None:
        self._is_pcm = format.name == "flac"
        arguments = dict(format.soundfile or {})
        if bit_rate is not None and format.name == "mp3":
            arguments["compression_level"] = _mp3_level(bit_rate, sample_rate)
        self._file = import_package("soundfile").SoundFile(
            buffer, "w", sample_rate, channels=1, **arguments
        )
        for name, value in named_tags(tags, SOUNDFILE_NAMES).items():
            setattr(self._file, name, value)

    def write(self, signal: Samples) -> None:
        self._file.write(to_pcm(signal) if self._is_pcm else signal)

    def close(self) -> None:
        self._file.close()


class AvStream:
    """One channel of audio in a container of FFmpeg."""

    def __init__(
        self, container: Any, codec: FfmpegCodec, sample_rate: int, bit_rate: int | None
    ) -> None:
        self._av, self._container = import_package("av"), container
        self._stream = container.add_stream(codec.codec, rate=sample_rate, layout="mono")
        self._stream.codec_context.thread_count = 1
        self._stream.bit_rate = bit_rate or codec.bit_rate
        self._stream.codec_context.open()  # reports unsupported settings now
        self._sample_rate, self._num_samples = sample_rate, 0

    def write(self, signal: Samples) -> None:
        frame = self._av.AudioFrame.from_ndarray(signal[None], format="flt", layout="mono")
        frame.sample_rate, frame.pts = self._sample_rate, self._num_samples
        with _one_cpu() if not self._num_samples else contextlib.nullcontext():
            packets = self._stream.encode(frame)
        self._num_samples += len(signal)
        self._container.mux(packets)

    def close(self) -> None:
        if self._num_samples:  # FFmpeg cannot flush an encoder that received no frame
            self._container.mux(self._stream.encode(None))
        self._container.close()


@contextlib.contextmanager
def _one_cpu() -> Iterator[None]:
    """Pin the calling thread to one CPU while FFmpeg sets up an encoder.

    FFmpeg starts one idle thread per stream for each CPU that the first caller may use.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, allowed)


def _open_writer(
    buffer: _ByteBuffer,
    format: AudioFormat,
    sample_rate: int,
    bit_rate: int | None,
    tags: EncoderTags,
) -> _SampleWriter:
    """Open the first writer of the format whose package is installed."""
    if not format.packages:
        is_wav = format.name == "wav"
        return _WavWriter(buffer, sample_rate, tags) if is_wav else _PcmWriter(buffer)
    *preferred, last = format.packages
    package = next(filter(_is_usable, preferred), last)
    if package == "soundfile":
        own = {} if format.name == "mp3" else tags.fields  # mp3 has an ID3 tag
        return _SoundfileWriter(buffer, format, sample_rate, bit_rate, own)
    codec = format.ffmpeg
    assert codec is not None
    options = {"flush_packets": "1", **codec.options}
    container = import_package("av").open(
        _WriteOnly(buffer), "w", format=codec.container, options=options
    )
    container.metadata.update({name: one for name, one in tags.fields.items() if name != XMP})
    return AvStream(container, codec, sample_rate, bit_rate)


def _is_usable(package: str) -> bool:
    try:
        import_package(package)
    except AudioError:
        return False
    return True


def _mp3_level(bit_rate: int, sample_rate: int) -> float:
    """The compression level of libsndfile; 0 is the highest bit rate of the sample rate."""
    least, most = (32, 320) if sample_rate >= 32_000 else (8, 160 if sample_rate >= 16_000 else 64)
    return min(0.99, max(0.0, (most - bit_rate / 1_000) / (most - least)))


def import_package(name: str) -> Any:
    """Import av, soundfile or soxr. The AudioError of a missing package says how to install it."""
    try:
        package = import_module(name)
        if name == "av":  # imported with the first file, when a sandboxed child cannot any more
            with contextlib.suppress(ImportError):
                import_module("av.subtitles.stream")
        return package
    except (ImportError, OSError) as error:  # OSError: the wheel has no libsndfile
        raise AudioError(
            f"the audio needs the package {name}, which cannot be imported; "
            f"run: {INSTALL.get(name, f'pip install {name}')}"
        ) from error


def _check_samples(samples: ArrayLike) -> Samples:
    with np.errstate(over="ignore"):  # an overflow becomes infinite, which is rejected below
        signal = np.asarray(samples, dtype=np.float32)
    if signal.ndim != 1:
        raise AudioError(f"samples must have the shape [n], not {list(signal.shape)}")
    if not np.isfinite(signal).all():
        raise AudioError("samples contain NaN or infinite values; nothing was written")
    return signal


def to_pcm(signal: Samples) -> NDArray[np.int16]:
    pcm: NDArray[np.int16] = np.clip(np.rint(signal * 32_768), -32_768, 32_767).astype(np.int16)
    return pcm
