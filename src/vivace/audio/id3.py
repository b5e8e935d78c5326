"""Writes ID3v2.3 tags, which precede the audio in an mp3 file."""

from __future__ import annotations

from vivace.audio.m4b import cover_kind

FRAMES = {"title": "TIT2", "artist": "TPE1", "album": "TALB", "track": "TRCK", "genre": "TCON"}
MIME = {"mjpeg": b"image/jpeg", "png": b"image/png"}
UTF_16 = b"\x01"


def id3_tag(tags: dict[str, str], cover: bytes | None = None) -> bytes:
    """The bytes of the tag; names that are not in FRAMES are ignored."""
    frames = [
        _frame(FRAMES[name], UTF_16 + value.encode("utf-16"))
        for name, value in tags.items()
        if name in FRAMES and value
    ]
    if cover is not None and (kind := cover_kind(cover)):
        frames.append(_frame("APIC", b"\x00" + MIME[kind] + b"\x00\x03\x00" + cover))
    content = b"".join(frames)
    size = bytes(len(content) >> shift & 0x7F for shift in (21, 14, 7, 0))  # seven bits per byte
    return b"ID3\x03\x00\x00" + size + content


def _frame(name: str, content: bytes) -> bytes:
    return name.encode() + len(content).to_bytes(4, "big") + b"\x00\x00" + content
