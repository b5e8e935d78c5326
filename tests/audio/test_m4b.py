"""Tests of M4B files and ID3 tags, read with FFmpeg: chapters, tags, cover and length."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
import pytest

from vivace.audio.formats import cover_kind
from vivace.audio.id3 import id3_tag
from vivace.audio.m4b import ChapterMark, write_m4b
from vivace.errors import AudioError

RATE = 24_000
TAGS = {"title": "Ein Buch", "artist": "Jemand", "album": "Ein Buch", "genre": "Audiobook"}


def make_jpeg() -> bytes:
    encoder = av.CodecContext.create("mjpeg", "w")
    encoder.width = encoder.height = 16
    encoder.pix_fmt, encoder.time_base = "yuvj420p", Fraction(1, 1)
    pixels = np.full((16, 16, 3), 128, np.uint8)
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuvj420p")
    return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])


def write(cover: bytes | None = None) -> bytes:
    tone = (0.3 * np.sin(np.arange(3 * RATE) * 0.1)).astype(np.float32)
    file = io.BytesIO()
    marks = [ChapterMark("Eins: Ä", RATE), ChapterMark("Zwei", 2 * RATE)]
    write_m4b(file, [tone[:RATE], tone[RATE:]], RATE, marks=marks, tags=TAGS, cover=cover)
    return file.getvalue()


def test_m4b_has_chapters_tags_and_cover() -> None:
    jpeg = make_jpeg()
    with av.open(io.BytesIO(write(jpeg))) as book:
        assert book.metadata["major_brand"] == "M4B "
        assert {name: book.metadata[name] for name in TAGS} == TAGS
        chapters = [
            (
                float(each["start"] * each["time_base"]),
                float(each["end"] * each["time_base"]),
                each["metadata"]["title"],
            )
            for each in book.chapters()
        ]
        assert chapters == [(0.0, 1.0, "Eins: Ä"), (1.0, 3.0, "Zwei")]
        [picture] = [stream for stream in book.streams if stream.type == "video"]
        assert picture.disposition == av.stream.Disposition.attached_pic
        [packet] = [packet for packet in book.demux(picture) if packet.size]
        assert bytes(packet) == jpeg
    with av.open(io.BytesIO(write())) as book:
        decoded = np.concatenate([frame.to_ndarray()[0] for frame in book.decode(audio=0)])
    assert len(decoded) == pytest.approx(3 * RATE, abs=2_048)
    assert np.sqrt((decoded**2).mean()) == pytest.approx(0.3 / np.sqrt(2), rel=0.05)


def test_equal_input_gives_equal_bytes() -> None:
    assert write(make_jpeg()) == write(make_jpeg())


def test_cover_that_is_no_image_raises_audio_error() -> None:
    assert (cover_kind(make_jpeg()), cover_kind(b"GIF89a")) == ("mjpeg", None)
    with pytest.raises(AudioError, match="JPEG or PNG"):
        write(b"<svg/>")


def test_id3_tag_is_readable_in_mp3() -> None:
    from vivace.audio.encode import open_encoder

    encoder = open_encoder("mp3", RATE)
    sound = encoder.encode(np.zeros(RATE, np.float32)) + encoder.finish()
    tag = id3_tag({**TAGS, "track": "2/9", "unknown": "x"}, make_jpeg())
    with av.open(io.BytesIO(tag + sound)) as file:
        assert file.metadata["title"] == "Ein Buch"
        assert file.metadata["track"] == "2/9"
        assert [stream.type for stream in file.streams] == ["audio", "video"]
        assert sum(frame.samples for frame in file.decode(audio=0)) >= RATE
