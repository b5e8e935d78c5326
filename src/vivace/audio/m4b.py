"""Writes an audiobook: AAC in MP4, with chapter marks, tags and a cover, by PyAV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vivace.errors import AudioError

BIT_RATE = 64_000
BLOCK = 65_536  # samples handed to the encoder at once
COVER_SIZE = 16  # a cover is an atom of its own: nobody reads the size that FFmpeg asks for
AUDIOBOOK = "2"  # the media type of players


@dataclass(frozen=True, slots=True)
class Mark:
    """A chapter in an audio file."""

    title: str
    num_samples: int


def cover_kind(image: bytes) -> str | None:
    """The codec of a cover: `mjpeg` or `png`, by its first bytes; None for anything else."""
    if image.startswith(b"\xff\xd8\xff"):
        return "mjpeg"
    return "png" if image.startswith(b"\x89PNG\r\n\x1a\n") else None


def write_m4b(
    file: BinaryIO,
    samples: Iterable[NDArray[np.float32]],
    sample_rate: int,
    *,
    marks: Sequence[Mark],
    tags: dict[str, str],
    cover: bytes | None = None,
    bit_rate: int | None = None,
) -> None:
    """Write samples, -1 to 1, to a file that can seek; the same input gives the same bytes."""
    try:
        import av
    except ImportError as error:
        raise AudioError('writing m4b needs PyAV: pip install "vivace[av]"') from error
    if not hasattr(av.container.OutputContainer, "set_chapters"):
        raise AudioError(f"writing m4b needs PyAV 17, and {av.__version__} is installed")
    try:
        with av.open(file, "w", format="mp4", options={"brand": "M4B "}) as container:
            container.metadata.update({**tags, "media_type": AUDIOBOOK})
            container.set_chapters(_chapters(marks, sample_rate))
            _write(container, samples, sample_rate, cover, bit_rate or BIT_RATE)
    except av.FFmpegError as error:
        raise AudioError(f"cannot write m4b: {error}") from error


def _chapters(marks: Sequence[Mark], sample_rate: int) -> list[Any]:
    chapters, start = [], 0
    for number, mark in enumerate(marks):
        end = start + mark.num_samples
        chapters.append(
            {
                "id": number,
                "start": start,
                "end": end,
                "time_base": Fraction(1, sample_rate),
                "metadata": {"title": mark.title},
            }
        )
        start = end
    return chapters


def _write(
    container: Any,
    samples: Iterable[NDArray[np.float32]],
    sample_rate: int,
    cover: bytes | None,
    bit_rate: int,
) -> None:
    import av

    stream = container.add_stream("aac", rate=sample_rate)
    stream.codec_context.layout = "mono"
    stream.codec_context.bit_rate = bit_rate
    picture = None if cover is None else _cover(container, cover)
    position = 0
    for part in samples:
        for start in range(0, len(part), BLOCK):
            block = np.clip(part[start : start + BLOCK], -1, 1).astype(np.float32)
            frame = av.AudioFrame.from_ndarray(block[None], format="fltp", layout="mono")
            frame.sample_rate, frame.pts = sample_rate, position
            position += len(block)
            container.mux(stream.encode(frame))
            if picture is not None:  # the header is written by now
                container.mux(picture)
                picture = None
    container.mux(stream.encode(None))


def _cover(container: Any, cover: bytes) -> Any:
    import av

    kind = cover_kind(cover)
    if kind is None:
        raise AudioError("a cover is a JPEG or PNG image, and this is neither")
    stream = container.add_mux_stream(kind, width=COVER_SIZE, height=COVER_SIZE)
    stream.disposition = av.stream.Disposition.attached_pic
    packet = av.Packet(cover)
    packet.stream, packet.pts, packet.dts = stream, 0, 0
    packet.time_base, packet.is_keyframe = Fraction(1, 90_000), True
    return packet
