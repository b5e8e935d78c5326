"""Decodes the bytes of a page by byte order mark, content, or declared encoding, in that order.

A declaration that the bytes contradict is ignored: converted pages often keep an outdated one.
"""

from __future__ import annotations

import codecs
import re

BOMS = (  # UTF-32 first: its little-endian mark starts with the mark of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)
NUM_SNIFFED_BYTES = 1024
MIN_NUL_SHARE = 0.3  # of the even or odd bytes: markup in UTF-16 is mostly ASCII
LATIN = "cp1252"
_DECLARED = re.compile(rb"(?:encoding|charset)\s{0,9}=\s{0,9}[\"']?\s{0,9}([A-Za-z0-9._-]{2,40})")
_SEVEN_BIT = ("iso2022", "hz")  # escape sequences that are valid UTF-8
_EIGHT_BIT = ("big5", "cp", "euc", "gb", "iso8859", "johab", "koi8", "mac", "ptcp", "shift", "tis")
_HIGH_RUN = re.compile(rb"[\x80-\xff]{3}")
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def decode_page(content: bytes) -> str:
    """Decode a page and replace characters that XML forbids, such as NUL, with spaces.

    Raises UnicodeDecodeError if the encoding is neither declared nor recognized.
    """
    return _NOT_IN_XML.sub(" ", _decode(content))


def _decode(content: bytes) -> str:
    marked = (encoding for mark, encoding in BOMS if content.startswith(mark))
    encoding = next(marked, None) or _by_nuls(content)
    declared = _declared(content)
    if encoding is None and declared and declared.startswith(_SEVEN_BIT):
        encoding = declared
    if encoding is not None:
        return content.decode(encoding)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        if declared and (text := _try(content, declared)) is not None:
            return text
        if _looks_latin(content) and (text := _try(content, LATIN)) is not None:
            return text
        raise


def _by_nuls(content: bytes) -> str | None:
    """UTF-16 or UTF-32 without a byte order mark: every second byte of ASCII is NUL."""
    if content.startswith((b"<\0", b"\0<")) and content[2:4] not in (b"\0\0", b"\0<"):
        return "utf-16-le" if content[1] == 0 else "utf-16-be"
    start = content[: min(len(content), NUM_SNIFFED_BYTES) // 4 * 4]
    nuls = tuple(start[i::4].count(0) > MIN_NUL_SHARE * len(start) / 4 for i in range(4))
    encodings: dict[tuple[bool, ...], str] = {
        (False, True, True, True): "utf-32-le",
        (True, True, True, False): "utf-32-be",
        (False, True, False, True): "utf-16-le",
        (True, False, True, False): "utf-16-be",
    }
    return encodings.get(nuls)


def _declared(content: bytes) -> str | None:
    """The declared encoding. UTF encodings are ignored: the content would have shown them."""
    found = _DECLARED.search(content[:NUM_SNIFFED_BYTES])
    if found is None:
        return None
    try:
        name = codecs.lookup(found[1].decode()).name
    except LookupError:
        return None
    if not name.startswith((*_SEVEN_BIT, *_EIGHT_BIT)):
        return None
    return LATIN if name == "iso8859-1" else name  # as browsers do


def _try(content: bytes, encoding: str) -> str | None:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        return None


def _looks_latin(content: bytes) -> bool:
    """Whether non-ASCII bytes are rare and scattered, like accented letters."""
    num_high = len(content.translate(None, bytes(range(0x80))))
    num_ascii = len(content.translate(None, bytes([*range(0x41), *range(0x80, 0x100)])))
    return num_high * 5 < num_ascii and _HIGH_RUN.search(content) is None
