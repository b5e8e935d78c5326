"""Writes M4B audiobooks with PyAV: AAC in MP4 with chapter marks, tags and a cover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any, BinaryIO

import numpy as np

from vivace.audio.encode import BLOCK_FRAMES, AvStream, import_package
from vivace.audio.formats import M4B_CODEC, cover_kind
from vivace.audio.tags import XMP, Tags
from vivace.audio.wav import Samples
from vivace.errors import AudioError

COVER_SIZE = 16  # FFmpeg requires a size; players ignore it
AUDIOBOOK = "2"  # MP4 media type


@dataclass(frozen=True, slots=True)
class ChapterMark:
    """Title and length of a chapter in an audio file."""

    title: str
    num_samples: int


def write_m4b(
    file: BinaryIO,
    samples: Iterable[Samples],
    sample_rate: int,
    *,
    marks: Sequence[ChapterMark],
    tags: Tags,
    cover: bytes | None = None,
    bit_rate: int | None = None,
) -> None:
    """Write samples, -1 to 1, to a seekable file. Equal input gives equal bytes."""
    av = import_package("av")
    if not hasattr(av.container.OutputContainer, "set_chapters"):
        raise AudioError(f"writing m4b needs PyAV 17; {av.__version__} is installed")
    options = dict(M4B_CODEC.options)
    try:
        with av.open(file, "w", format=M4B_CODEC.container, options=options) as container:
            container.metadata.update(
                {name: value for name, value in tags.items() if name != XMP}
                | {"media_type": AUDIOBOOK}
            )
            container.set_chapters(_chapters(marks, sample_rate))
            _write(av, container, samples, sample_rate, cover, bit_rate)
    except av.FFmpegError as error:
        raise AudioError(f"cannot write m4b: {error}") from error


def _chapters(marks: Sequence[ChapterMark], sample_rate: int) -> list[Any]:
    base, ends = Fraction(1, sample_rate), accumulate(mark.num_samples for mark in marks)
    spans = pairwise([0, *ends])
    return [
        {"id": id, "start": start, "end": end, "time_base": base, "metadata": {"title": mark.title}}
        for id, (mark, (start, end)) in enumerate(zip(marks, spans, strict=True))
    ]


def _write(
    av: Any,
    container: Any,
    samples: Iterable[Samples],
    sample_rate: int,
    cover: bytes | None,
    bit_rate: int | None,
) -> None:
    stream = AvStream(container, M4B_CODEC, sample_rate, bit_rate)
    picture = None if cover is None else _cover(av, container, cover)
    for part in samples:
        for start in range(0, len(part), BLOCK_FRAMES):
            stream.write(np.clip(part[start : start + BLOCK_FRAMES], -1, 1).astype(np.float32))
            if picture is not None:  # after the first audio, when the header is written
                container.mux(picture)
                picture = None
    stream.close()


def _cover(av: Any, container: Any, cover: bytes) -> Any:
    kind = cover_kind(cover)
    if kind is None:
        raise AudioError("the cover must be a JPEG or PNG image")
    stream = container.add_mux_stream(kind, width=COVER_SIZE, height=COVER_SIZE)
    stream.disposition = av.stream.Disposition.attached_pic
    packet = av.Packet(cover)
    packet.stream, packet.pts, packet.dts = stream, 0, 0
    packet.time_base, packet.is_keyframe = Fraction(1, 90_000), True
    return packet
