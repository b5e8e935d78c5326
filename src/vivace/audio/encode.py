"""Streaming encoders: samples in, encoded bytes out, one interface for all formats."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vivace.audio.wav import wav_header
from vivace.errors import AudioError

MAX_SAMPLE_RATE = 192_000
BLOCK_FRAMES = 65_536  # given minutes at once, libsndfile's Vorbis overflows its stack
INSTALL = {"soundfile": "pip install soundfile", "av": 'pip install "vivace[av]"'}


@dataclass(frozen=True, slots=True)
class Format:
    """An audio file format."""

    name: str
    extensions: tuple[str, ...]
    content_type: str
    packages: tuple[str, ...] = ()  # the first that is installed encodes; empty: numpy alone


FORMATS = {
    known.name: known
    for known in (
        Format("wav", (".wav",), "audio/wav"),
        Format("flac", (".flac",), "audio/flac", ("soundfile",)),
        Format("mp3", (".mp3",), "audio/mpeg", ("soundfile",)),
        Format("ogg", (".ogg", ".oga"), "audio/ogg", ("soundfile",)),  # Vorbis
        # PyAV gives bytes every 80 ms, libsndfile every second.
        Format("opus", (".opus",), "audio/ogg", ("av", "soundfile")),
        Format("aac", (".aac",), "audio/aac", ("av",)),
        Format("pcm", (".pcm",), "audio/pcm"),
    )
}
EXTENSIONS: dict[str, str] = {
    extension: known.name for known in FORMATS.values() for extension in known.extensions
}
SOUNDFILE_KINDS: dict[str, dict[str, Any]] = {
    "flac": {"format": "FLAC", "subtype": "PCM_16"},
    # At a variable rate, a stream's length is guessed wrong, and libsndfile stops there.
    "mp3": {"format": "MP3", "bitrate_mode": "CONSTANT", "compression_level": 0.4},  # 96 kbit/s
    "ogg": {"format": "OGG", "subtype": "VORBIS"},
    "opus": {"format": "OGG", "subtype": "OPUS"},
}
AV_KINDS = {  # FFmpeg's container, codec, bits a second and container options
    "opus": ("ogg", "libopus", 48_000, {"page_duration": "20000"}),  # microseconds
    "aac": ("adts", "aac", 64_000, {}),
}


def format_of(path: str | os.PathLike[str]) -> str:
    """The format that a file's extension asks for."""
    name = Path(path)
    if name.suffix.lower() not in EXTENSIONS:
        raise AudioError(
            f"cannot write {name.name!r}; name it with one of: {', '.join(EXTENSIONS)}"
        )
    return EXTENSIONS[name.suffix.lower()]


def open_encoder(format: str, sample_rate: int, bit_rate: int | None = None) -> Encoder:
    """An encoder of one channel; `format` is a name in FORMATS.

    `bit_rate`, in bits a second, is for mp3, opus by av and aac; None is a sound choice of ours.
    """
    if format not in FORMATS:
        raise AudioError(f"no audio format named {format!r}; try one of: {', '.join(FORMATS)}")
    if not 1 <= sample_rate <= MAX_SAMPLE_RATE:
        raise AudioError(f"a sample rate of {sample_rate} Hz cannot be written")
    return Encoder(FORMATS[format], sample_rate, bit_rate)


class Encoder:
    """Samples in, bytes out; all bytes joined are the audio.

    `encode` gives what is ready now and `finish` the rest, once. Where the output can seek,
    `patches` then says what to overwrite, so that the lengths in the header are right too.
    """

    def __init__(self, format: Format, sample_rate: int, bit_rate: int | None = None) -> None:
        self.format = format
        self.sample_rate = sample_rate
        self._sink = _Sink()
        self._is_finished = False
        self._codec: _Codec = self._run(
            lambda: _open_codec(self._sink, format, sample_rate, bit_rate)
        )

    @property
    def patches(self) -> list[tuple[int, bytes]]:
        """(position, bytes) to overwrite in the output; complete after `finish`."""
        return list(self._sink.patches)

    def encode(self, samples: ArrayLike) -> bytes:
        """Encode samples [n], clipped to -1 to 1; returns the bytes that are ready."""
        if self._is_finished:
            raise AudioError("the encoder is finished; open another one")
        signal = np.clip(_check_samples(samples), -1, 1)
        for start in range(0, len(signal), BLOCK_FRAMES):
            block = signal[start : start + BLOCK_FRAMES]
            self._run(lambda block=block: self._codec.write(block))  # type: ignore[misc]
        return self._sink.take()

    def finish(self) -> bytes:
        """Flush the encoder; returns the last bytes. A second call returns none."""
        if not self._is_finished:
            self._is_finished = True
            self._run(lambda: self._codec.close())
        return self._sink.take()

    def _run(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except AudioError:
            raise
        except Exception as error:  # FFmpeg's errors have no root of their own below Exception
            name, rate = self.format.name, self.sample_rate
            reason = str(getattr(error, "error_string", error))  # libsndfile's words alone
            raise AudioError(f"cannot write {name} at {rate:,} Hz: {reason}") from error


class _Sink:
    """The file object that codecs write into: it buffers only what was not taken yet."""

    def __init__(self) -> None:
        self.patches: list[tuple[int, bytes]] = []
        self._pending = bytearray()
        self._num_taken = 0
        self._position = 0

    def take(self) -> bytes:
        taken = bytes(self._pending)
        self._num_taken += len(taken)
        self._pending.clear()
        return taken

    def write(self, data: Any) -> int:
        content = bytes(data)
        num_late = max(0, min(len(content), self._num_taken - self._position))
        if num_late:  # bytes that were already taken change
            self.patches.append((self._position, content[:num_late]))
        start = self._position + num_late - self._num_taken
        self._pending[start : start + len(content) - num_late] = content[num_late:]
        self._position += len(content)
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        end = self._num_taken + len(self._pending)
        self._position = offset + (0, self._position, end)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, num_bytes: int = -1) -> bytes:
        raise OSError("what was encoded cannot be read back")  # soundfile wants to see a reader


class _ForwardSink:
    """The part of a sink that FFmpeg may see, so that it never tries to seek."""

    def __init__(self, sink: _Sink) -> None:
        self.write = sink.write


class _Codec(Protocol):
    def write(self, signal: NDArray[np.float32]) -> None: ...

    def close(self) -> None: ...


class _Pcm:
    """16 bits, little-endian; `has_header` makes it a WAV."""

    def __init__(self, sink: _Sink, sample_rate: int, *, has_header: bool) -> None:
        self._sink, self._sample_rate, self._has_header = sink, sample_rate, has_header
        self._num_bytes = 0
        if has_header:
            sink.write(wav_header(sample_rate))

    def write(self, signal: NDArray[np.float32]) -> None:
        self._num_bytes += self._sink.write(to_pcm(signal).astype("<i2").tobytes())

    def close(self) -> None:
        if self._has_header:
            self._sink.seek(0)
            self._sink.write(wav_header(self._sample_rate, self._num_bytes))


class _Soundfile:
    def __init__(self, sink: _Sink, format: Format, sample_rate: int, bit_rate: int | None) -> None:
        self._is_pcm = format.name == "flac"
        kind = dict(SOUNDFILE_KINDS[format.name])
        if bit_rate is not None and format.name == "mp3":
            kind["compression_level"] = _mp3_level(bit_rate, sample_rate)
        self._file = import_package("soundfile").SoundFile(
            sink, "w", sample_rate, channels=1, **kind
        )

    def write(self, signal: NDArray[np.float32]) -> None:
        self._file.write(to_pcm(signal) if self._is_pcm else signal)

    def close(self) -> None:
        self._file.close()


class _Av:
    def __init__(self, sink: _Sink, format: Format, sample_rate: int, bit_rate: int | None) -> None:
        container, codec, usual_rate, options = AV_KINDS[format.name]
        self._av = import_package("av")
        options = {"flush_packets": "1", **options}
        self._container = self._av.open(_ForwardSink(sink), "w", format=container, options=options)
        self._stream = self._container.add_stream(codec, rate=sample_rate, layout="mono")
        self._stream.codec_context.thread_count = 1
        self._stream.bit_rate = bit_rate or usual_rate
        self._stream.codec_context.open()  # a rate it cannot do is an error now
        self._sample_rate, self._num_samples = sample_rate, 0

    def write(self, signal: NDArray[np.float32]) -> None:
        frame = self._av.AudioFrame.from_ndarray(signal[None], format="flt", layout="mono")
        frame.sample_rate, frame.pts = self._sample_rate, self._num_samples
        with _one_cpu() if not self._num_samples else contextlib.nullcontext():
            packets = self._stream.encode(frame)
        self._num_samples += len(signal)
        self._container.mux(packets)

    def close(self) -> None:
        if self._num_samples:  # an encoder that never saw a frame has nothing to flush
            self._container.mux(self._stream.encode(None))
        self._container.close()


@contextlib.contextmanager
def _one_cpu() -> Iterator[None]:
    """While FFmpeg sets up how it cuts a stream into frames: for that, every stream would get as
    many idle threads as its first caller may use CPUs.
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


def _open_codec(sink: _Sink, format: Format, sample_rate: int, bit_rate: int | None) -> _Codec:
    if not format.packages:
        return _Pcm(sink, sample_rate, has_header=format.name == "wav")
    for package in format.packages[:-1]:
        try:
            import_package(package)
        except AudioError:
            continue
        return _by_package(package, sink, format, sample_rate, bit_rate)
    return _by_package(format.packages[-1], sink, format, sample_rate, bit_rate)


def _by_package(
    package: str, sink: _Sink, format: Format, sample_rate: int, bit_rate: int | None
) -> _Codec:
    codec = _Av if package == "av" else _Soundfile
    return codec(sink, format, sample_rate, bit_rate)


def _mp3_level(bit_rate: int, sample_rate: int) -> float:
    """libsndfile's compression level: 0 is the highest bit rate at that sample rate."""
    least, most = (32, 320) if sample_rate >= 32_000 else (8, 160 if sample_rate >= 16_000 else 64)
    return min(0.99, max(0.0, (most - bit_rate / 1_000) / (most - least)))


def import_package(name: str) -> Any:
    """soundfile or av, or the line that installs it."""
    try:
        if name == "av":
            import av  # type: ignore[import-not-found, unused-ignore]

            with contextlib.suppress(ImportError):  # av would at the first file, too late for
                import_module("av.subtitles.stream")  # a child that can open none
            return av
        import soundfile

        return soundfile
    except (ImportError, OSError) as error:  # OSError: the wheel came without libsndfile
        raise AudioError(
            f"this format needs {name}, which is not usable here: {INSTALL[name]}"
        ) from error


def _check_samples(samples: ArrayLike) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # infinite then, and refused below
        signal = np.asarray(samples, dtype=np.float32)
    if signal.ndim != 1:
        raise AudioError(f"samples of shape {list(signal.shape)} were given; [n] can be written")
    if not np.isfinite(signal).all():
        raise AudioError("the samples hold NaN or infinite values; they were not written")
    return signal


def to_pcm(signal: NDArray[np.float32]) -> NDArray[np.int16]:
    pcm: NDArray[np.int16] = np.clip(np.rint(signal * 32_768), -32_768, 32_767).astype(np.int16)
    return pcm
