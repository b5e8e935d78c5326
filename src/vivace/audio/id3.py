"""Writes ID3v2.3 tags, which precede the audio in an mp3 file."""

from __future__ import annotations

from vivace.audio.formats import cover_kind
from vivace.audio.tags import XMP, Tags

FRAMES = {
    "title": "TIT2", "artist": "TPE1", "album": "TALB", "track": "TRCK", "genre": "TCON",
    "software": "TSSE",
}  # fmt: skip
MIME = {"mjpeg": b"image/jpeg", "png": b"image/png"}
LATIN_1, UTF_16 = b"\x00", b"\x01"
LANGUAGE = b"eng"  # of the comment


def id3_tag(tags: Tags, cover: bytes | None = None) -> bytes:
    """The bytes of the tag; unknown names are ignored."""
    frames = [
        _frame(FRAMES[name], _encode(value))
        for name, value in tags.items()
        if name in FRAMES and value
    ]
    if comment := tags.get("comment"):
        content = _encode(comment)
        no_description = "".encode("utf-16") + b"\0\0" if content[:1] == UTF_16 else b"\0"
        frames.append(_frame("COMM", content[:1] + LANGUAGE + no_description + content[1:]))
    if packet := tags.get(XMP):
        frames.append(_frame("PRIV", b"XMP\0" + packet.encode()))
    if cover is not None and (kind := cover_kind(cover)):
        frames.append(_frame("APIC", b"\x00" + MIME[kind] + b"\x00\x03\x00" + cover))
    content = b"".join(frames)
    size = bytes(len(content) >> shift & 0x7F for shift in (21, 14, 7, 0))  # seven bits per byte
    return b"ID3\x03\x00\x00" + size + content


def _encode(value: str) -> bytes:
    """Latin-1 if possible. The bytes of UTF-16 can look like the start of an mp3 frame."""
    try:
        return LATIN_1 + value.encode("latin-1")
    except UnicodeEncodeError:
        return UTF_16 + value.encode("utf-16")


def _frame(name: str, content: bytes) -> bytes:
    return name.encode() + len(content).to_bytes(4, "big") + b"\x00\x00" + content
