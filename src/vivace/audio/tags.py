"""Descriptive fields of audio files: their names in each format, and the chunks of WAV.

WAV has a LIST chunk of type INFO and an XMP chunk, mp3 an ID3 tag (`id3.py`). The other formats
have Vorbis comments or MP4 tags, which their encoders write.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

Tags = Mapping[str, str]
"""Values by name: title, artist, album, track, genre, comment, software and xmp."""

XMP = "xmp"  # the value is an XMP packet, for formats that have a place for it
XMP_CHUNK = b"_PMX"
RIFF_NAMES = {
    "title": b"INAM", "artist": b"IART", "album": b"IPRD", "track": b"ITRK", "genre": b"IGNR",
    "comment": b"ICMT", "software": b"ISFT",
}  # fmt: skip
SOUNDFILE_NAMES = {
    "title": "title", "artist": "artist", "album": "album", "track": "tracknumber",
    "genre": "genre", "comment": "comment", "software": "software",
}  # fmt: skip
_XMP_PACKET = """\
<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about=""
 xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
 xmlns:xmp="http://ns.adobe.com/xap/1.0/"
 Iptc4xmpExt:DigitalSourceType={source_type}
 xmp:CreatorTool={software}/>
</rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>"""


def riff_chunks(tags: Tags) -> bytes:
    """The chunks of a WAV file that hold the tags; empty without tags."""
    fields = b"".join(
        _chunk(RIFF_NAMES[name], value.encode() + b"\0")
        for name, value in tags.items()
        if name in RIFF_NAMES and value
    )
    info = _chunk(b"LIST", b"INFO" + fields) if fields else b""
    return info + (_chunk(XMP_CHUNK, tags[XMP].encode()) if tags.get(XMP) else b"")


def named_tags(tags: Tags, names: Mapping[str, str]) -> dict[str, str]:
    """The tags that `names` has, under the names of a library."""
    return {names[name]: value for name, value in tags.items() if name in names and value}


def xmp_packet(source_type: str, software: str) -> str:
    """An XMP packet with IPTC's digital source type and the tool that made the file."""
    return _XMP_PACKET.format(source_type=_quoted(source_type), software=_quoted(software))


def _quoted(value: str) -> str:
    """The value of an XML attribute. The modules of XML take long to import."""
    escaped = value.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return f'"{escaped}"'


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack("<4sI", name, len(content)) + content + bytes(len(content) % 2)
