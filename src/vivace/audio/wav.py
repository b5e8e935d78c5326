"""Reads PCM and float WAV files and writes 16-bit PCM headers, with numpy alone."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.errors import AudioError

Samples = NDArray[np.float32]
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
REFUSED = {2: "Microsoft ADPCM", 6: "A-law", 7: "mu-law", 0x11: "IMA ADPCM", 0x55: "MP3 in WAV"}
WIDTHS = {PCM: (8, 16, 24, 32), FLOAT: (32, 64)}  # bits per sample
GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")  # follows the tag in a subformat
SAMPLE_TYPES = {("u", 1), ("i", 1), ("i", 2), ("i", 4)}  # integers: numpy kind and bytes
MAX_CHUNKS = 256
MAX_DATA_BYTES = 2**32 - 64  # RIFF sizes are 32-bit
UNKNOWN_BYTES = 2**32 - 1  # size field of a streamed file: read until the end
MAX_KNOWN_BYTES = 2**31 - 2**16  # programs write larger sizes, or 0, if they do not know the size


@dataclass(frozen=True, slots=True)
class WavFile:
    """A parsed header and the undecoded bytes of the samples."""

    sample_rate: int
    num_channels: int
    tag: int  # PCM or FLOAT
    bits: int  # of one sample
    data: memoryview | bytes = b""
    num_missing_bytes: int = 0  # of the samples that the header declares; 0 if they are unknown

    @property
    def num_frames(self) -> int:
        return len(self.data) // (self.num_channels * self.bits // 8)

    def decode(self) -> Samples:
        """All samples, -1 to 1.  [n, channels]"""
        frame_bytes = self.num_channels * self.bits // 8
        values = _unpack(self.data[: self.num_frames * frame_bytes], self.tag, self.bits)
        return to_float(values).reshape(-1, self.num_channels)


def parse_wav(content: bytes) -> WavFile:
    """Parse the header. A data chunk longer than the file is cut at the end of the file."""
    wav: WavFile | None = None
    for name, size, body in _chunks(memoryview(content)):
        if name == b"fmt ":
            wav = _parse_format(body)
        elif name == b"data":
            if wav is None:
                raise AudioError("the WAV data chunk precedes the format; the file is damaged")
            num_missing = size - len(body) if size <= MAX_KNOWN_BYTES else 0
            return replace(wav, data=body, num_missing_bytes=num_missing)
    raise AudioError("the WAV has no data chunk; the file is damaged or truncated")


def to_float(values: NDArray[Any]) -> Samples:
    """Scale samples of any width to -1 to 1, as libsndfile does; the shape is kept."""
    kind, size = values.dtype.kind, values.dtype.itemsize
    if (kind, size) not in SAMPLE_TYPES and kind != "f":
        # int64, which numpy makes of a list of integers, has no known full scale.
        raise AudioError(f"samples must be float, int16, int32 or uint8, not {values.dtype}")
    with np.errstate(all="ignore"):  # an overflow becomes infinite, which is rejected later
        samples: Samples = values.astype(np.float32)
    if kind != "f":
        samples *= np.float32(2.0 ** (1 - 8 * size))
    if kind == "u":
        samples -= np.float32(1)
    return samples


def wav_header(
    sample_rate: int, num_bytes: int | None = None, *, before: bytes = b"", num_after: int = 0
) -> bytes:
    """The header of 16-bit mono PCM; without a size if `num_bytes` is None or too large.

    `before` are chunks in front of the samples, `num_after` the size of chunks behind them. Without
    `before`, the header has 44 bytes, which many clients skip.
    """
    if num_bytes is None or num_bytes > MAX_DATA_BYTES - len(before) - num_after:
        num_bytes, riff_bytes = UNKNOWN_BYTES, UNKNOWN_BYTES
    else:
        riff_bytes = num_bytes + 36 + len(before) + num_after
    start = struct.pack(
        "<4sI4s4sIHHIIHH",
        *(b"RIFF", riff_bytes, b"WAVE"),
        *(b"fmt ", 16, PCM, 1, sample_rate, sample_rate * 2, 2, 16),
    )
    return start + before + struct.pack("<4sI", b"data", num_bytes)


def _chunks(content: memoryview) -> Iterator[tuple[bytes, int, memoryview]]:
    """Name, declared size and content of each chunk."""
    start = 12  # past "RIFF", size, "WAVE"
    for _ in range(MAX_CHUNKS):
        if start + 8 > len(content):
            return
        name, size = struct.unpack_from("<4sI", content, start)
        yield name, size, content[start + 8 : start + 8 + size]
        start += 8 + size + size % 2  # chunks start at even offsets


def _parse_format(body: memoryview) -> WavFile:
    if len(body) < 16:
        raise AudioError("the WAV format chunk is truncated; the file is damaged")
    tag, num_channels, sample_rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", body)
    if tag == EXTENSIBLE and len(body) >= 40 and bytes(body[26:40]) == GUID_TAIL:
        (tag,) = struct.unpack_from("<H", body, 24)
    if bits not in WIDTHS.get(tag, ()):
        found = REFUSED.get(tag, f"format {tag:#06x} with {bits} bits")
        raise AudioError(
            f"the WAV contains {found}; supported: PCM with 8, 16, 24 or 32 bits, float with 32 "
            "or 64 bits"
        )
    if num_channels == 0 or frame_bytes != num_channels * bits // 8:
        raise AudioError(
            f"the WAV header declares {num_channels} channels of {bits} bits in {frame_bytes} "
            "bytes; the file is damaged"
        )
    return WavFile(sample_rate, num_channels, tag, bits)


def _unpack(data: memoryview | bytes, tag: int, bits: int) -> NDArray[Any]:
    if tag == FLOAT:
        return np.frombuffer(data, f"<f{bits // 8}")
    if bits == 24:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return wide.view("<i4")
    return np.frombuffer(data, np.uint8 if bits == 8 else f"<i{bits // 8}")
