"""Reads the text tags of audio files: RIFF INFO and XMP, ID3, Vorbis comments and MP4 tags.

The files are untrusted. All lengths are checked, and text is limited.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from vivace.audio.tags import RIFF_NAMES, XMP, XMP_CHUNK

MAX_TEXT = 65_536  # bytes of one value
MAX_PARTS = 1_024  # chunks, frames, boxes or pages of one file
TEXT_FRAMES = {"TIT2": "title", "TPE1": "artist", "TALB": "album", "TSSE": "software"}
ENCODINGS = ("latin-1", "utf-16", "utf-16-be", "utf-8")
MP4_CONTAINERS = (b"moov", b"udta", b"meta", b"ilst")
MP4_NAMES = {b"\xa9cmt": "comment", b"\xa9too": "software", b"\xa9nam": "title"}

Pairs = Iterator[tuple[str, str]]


def read_tags(content: bytes) -> dict[str, str]:
    """The tags by name, in lower case. Empty for a file without tags, and for other files.

    Several values of one name are lines.
    """
    data = memoryview(content)
    if content[:4] == b"RIFF" and content[8:12] == b"WAVE":
        pairs = _read_riff(data)
    elif content[:3] == b"ID3":
        pairs = _read_id3(data)
    elif content[:4] == b"fLaC":
        pairs = _read_flac(data)
    elif content[:4] == b"OggS":
        pairs = _read_ogg(data)
    elif content[4:8] == b"ftyp":
        pairs = _read_mp4(data)
    else:
        return {}
    tags: dict[str, str] = {}
    try:
        for name, value in pairs:
            before, value = tags.get(name.lower()), value.strip("\0 ")
            if before is None:
                tags[name.lower()] = value
            elif len(before) < MAX_TEXT:
                tags[name.lower()] = f"{before}\n{value}"
    except (struct.error, IndexError, ValueError):  # truncated: the tags before are kept
        pass
    return tags


def _text(data: memoryview | bytes, encoding: str = "utf-8") -> str:
    return bytes(data[:MAX_TEXT]).decode(encoding, errors="replace")


def _chunks(data: memoryview, start: int) -> Iterator[tuple[bytes, int, int]]:
    """Names, starts and ends of the chunks of RIFF."""
    for _ in range(MAX_PARTS):
        if start + 8 > len(data):
            return
        name, size = struct.unpack_from("<4sI", data, start)
        yield name, start + 8, min(len(data), start + 8 + size)
        start += 8 + size + size % 2


def _read_riff(data: memoryview) -> Pairs:
    names = {chunk: name for name, chunk in RIFF_NAMES.items()}
    for name, start, end in _chunks(data, 12):
        if name == b"LIST" and bytes(data[start : start + 4]) == b"INFO":
            for field, first, last in _chunks(data[:end], start + 4):
                if field in names:
                    yield names[field], _text(data[first:last])
        elif name == XMP_CHUNK:
            yield XMP, _text(data[start:end])


def _syncsafe(data: memoryview | bytes) -> int:
    a, b, c, d = (one & 0x7F for one in data[:4])
    return a << 21 | b << 14 | c << 7 | d


def _read_id3(data: memoryview) -> Pairs:
    version, end = data[3], min(len(data), 10 + _syncsafe(data[6:10]))
    start = 10
    for _ in range(MAX_PARTS):
        if start + 10 > end or not data[start]:
            return
        name = _text(data[start : start + 4], "latin-1")
        sizes = data[start + 4 : start + 8]
        size = _syncsafe(sizes) if version >= 4 else struct.unpack(">I", sizes)[0]
        body = data[start + 10 : min(end, start + 10 + size)]
        if name in TEXT_FRAMES and len(body):
            yield TEXT_FRAMES[name], _text(body[1:], _encoding(body))
        elif name == "COMM" and len(body) > 4:
            encoding = _encoding(body)
            _, _, value = _text(body[4:], encoding).partition("\0")
            yield "comment", value.lstrip("\ufeff\ufffe")
        elif name == "PRIV" and bytes(body[:4]) == b"XMP\0":
            yield XMP, _text(body[4:])
        start += 10 + size


def _encoding(body: memoryview) -> str:
    return ENCODINGS[body[0]] if body[0] < len(ENCODINGS) else "latin-1"


def _read_vorbis(data: memoryview) -> Pairs:
    """A comment header after its magic: the vendor, then `NAME=value`."""
    start = 4 + struct.unpack_from("<I", data)[0]
    (count,) = struct.unpack_from("<I", data, start)
    start += 4
    for _ in range(min(count, MAX_PARTS)):
        (size,) = struct.unpack_from("<I", data, start)
        name, has_value, value = _text(data[start + 4 : start + 4 + size]).partition("=")
        if has_value:  # FFmpeg writes a comment as DESCRIPTION
            yield "comment" if name.lower() == "description" else name, value
        start += 4 + size


def _read_flac(data: memoryview) -> Pairs:
    start = 4
    for _ in range(MAX_PARTS):
        (header,) = struct.unpack_from(">I", data, start)
        size = header & 0xFFFFFF
        if header >> 24 & 0x7F == 4:
            yield from _read_vorbis(data[start + 4 : start + 4 + size])
        if header >> 31:
            return
        start += 4 + size


def _read_ogg(data: memoryview) -> Pairs:
    """The second packet, which may continue on further pages."""
    packets, packet, start = list[bytes](), b"", 0
    for _ in range(MAX_PARTS):
        if bytes(data[start : start + 4]) != b"OggS":
            break
        num_segments = data[start + 26]
        sizes = bytes(data[start + 27 : start + 27 + num_segments])
        start += 27 + num_segments
        for size in sizes:
            packet += bytes(data[start : start + size])
            start += size
            if size < 255:
                packets.append(packet)
                packet = b""
        if len(packets) > 1 or len(packet) > MAX_TEXT:
            break
    found = packets[1] if len(packets) > 1 else packet
    for magic in (b"\x03vorbis", b"OpusTags"):
        if found.startswith(magic):
            yield from _read_vorbis(memoryview(found)[len(magic) :])


def _read_mp4(data: memoryview, start: int = 0, end: int | None = None, depth: int = 0) -> Pairs:
    end = len(data) if end is None else end
    for _ in range(MAX_PARTS):
        if start + 8 > end or depth > 8:
            return
        size, name = struct.unpack_from(">I4s", data, start)
        head = 8
        if size == 1:
            (size,), head = struct.unpack_from(">Q", data, start + 8), 16
        last = end if size == 0 else min(end, start + size)
        if size and size < head:
            return
        if name in MP4_CONTAINERS:
            inner = start + head + (4 if name == b"meta" else 0)  # version and flags
            yield from _read_mp4(data, inner, last, depth + 1)
        elif name in MP4_NAMES and bytes(data[start + 12 : start + 16]) == b"data":
            yield MP4_NAMES[name], _text(data[start + 24 : last])
        start = last
