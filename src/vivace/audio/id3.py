"""ID3v2.3 tags, which stand before the audio of an mp3."""

from __future__ import annotations

from vivace.audio.m4b import cover_kind

FRAMES = {"title": "TIT2", "artist": "TPE1", "album": "TALB", "track": "TRCK", "genre": "TCON"}
MIME = {"mjpeg": b"image/jpeg", "png": b"image/png"}
UTF_16 = b"\x01"


def id3_tag(tags: dict[str, str], cover: bytes | None = None) -> bytes:
    """The tag; names that are not in FRAMES are left out."""
    frames = [
        _frame(FRAMES[name], UTF_16 + value.encode("utf-16"))
        for name, value in tags.items()
        if name in FRAMES and value
    ]
    if cover is not None and (kind := cover_kind(cover)):
        frames.append(_frame("APIC", b"\x00" + MIME[kind] + b"\x00\x03\x00" + cover))
    content = b"".join(frames)
    size = len(content)
    seven_bits = bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\x03\x00\x00" + seven_bits + content


def _frame(name: str, content: bytes) -> bytes:
    return name.encode() + len(content).to_bytes(4, "big") + b"\x00\x00" + content
