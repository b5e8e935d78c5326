"""E-mail addresses, URLs, file names, versions, `@handles` and `#tags`."""

from __future__ import annotations

import re
from urllib.parse import unquote

from vivace.text.normalize.english.capitals import spell_letters
from vivace.text.normalize.english.codes import read_mixed, split_case
from vivace.text.normalize.english.numbers import cardinal, read_digits, spell_digits, year
from vivace.text.normalize.english.tables import word_map, word_set
from vivace.text.normalize.rules import Reading, Token, TokenReader, word_before

_EMAIL = re.compile(r"(?:mailto:)?([\w.+-]+)@([\w-]+(?:\.[\w-]+)+)", re.IGNORECASE)
_URL = re.compile(r"(?:(?:https?|ftp|file)://)(?:[^/@\s]*@)?(\S+)|(www\.\S+)", re.IGNORECASE)
_DOTTED = re.compile(
    r"[\w~+-]*(?:[\w+-]*\.[\w-]+)+(?:[/\\][^\s]*)?|~/[\w.-]+|(?:~|\.{1,2})?(?:/[\w.-]+){2,}/?"
    r"|(?:[A-Za-z_][\w-]*)?/(?:[\w-]+/)*[A-Za-z_][\w-]*(?:\.[\w-]+)*\.[a-z][a-z0-9]{0,4}"
)
_QUALIFIED = re.compile(r"(?=.*\.[a-z])[a-z_]\w*(?:\.[A-Za-z_]\w*){2,}")  # java.util.List
_HANDLE = re.compile(r"@(\w{1,40}(?:\.\w{1,40}){0,4})((?:['’]s)?)")
_TAG = re.compile(r"#(?=\d*[A-Za-z_])(\w{1,61})")
_CODE = re.compile(r"[A-Za-z0-9-]+")
_LINK = re.compile(r"([^\]]*)\]\((?:https?://|mailto:)([!-~]+)")
_NUMBERED = re.compile(r"#(\d{1,9}[A-Z]?)")
_NUMBERS = re.compile(r"#\d{2,}(?:-\d{2,}){2,}")  # of an order
_VERSION = re.compile(r"([vV])?(\d{1,4}(?:\.\d{1,4})+)((?:-?(?:alpha|beta|rc)\.?\d*)?)")
_LINE = re.compile(  # "main.py:42", "src/index.tsx#L42-L50"
    r"([~\w./\\-]*\w\.(?:c|cc|cpp|cs|css|go|h|hpp|html|java|js|json|jsx|kt|log|lua|md|php|py|rb|rs|sh"
    r"|sql|swift|toml|ts|tsx|txt|xml|ya?ml))(?::|#L)(\d{1,6})(?:-L?(\d{1,6}))?(?::\d{1,4})?"
)
_INITIALS = re.compile(r"(?:[A-Z][a-z]?\.|[a-z]\.)+[A-Za-z]{1,2}")
_NO_SPACE = re.compile(r"(\d+)([.?!])([A-Z][a-z]+)")
_WINDOWS_PATH = re.compile(r"[A-Za-z]:\\\S*|\\\\[\w.$-]+(?:\\[^\\\s]+)+")
_HOST_AND_PORT = re.compile(r"(?:localhost|[\w-]+(?:\.[\w-]+)+):\d{2,5}(?:/\S*)?")
# Sentences without a space between them.
_GLUED_WORDS = re.compile(r"[A-Za-z'’\"“”‘(),;:.?!-]+")
_GLUED = re.compile(r"(?<=[a-z]{2})([.?!][”’)]*)(\"?)(?=[“‘(]?[A-Z])")
_LETTERED = word_set("spelled_names")
_WORDED = word_map("address_words")
_SIGNS = word_map("address_signs")
_PIECES = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")


def read_web(reader: TokenReader, token: Token) -> Reading | None:
    core = token.core
    if (found := _LINK.fullmatch(core)) and token.trail.startswith(")"):
        label = read_mixed(found[1]) if _CODE.fullmatch(found[1]) else found[1]
        words = f"{label}, {spell_address(found[2].rstrip('/'))}"
        return Reading(words, trail=token.trail[1:])
    if found := _EMAIL.fullmatch(core):
        return Reading(f"{spell_address(found[1])} at {spell_address(found[2])}")
    if found := _URL.fullmatch(core):
        return Reading(spell_address(unquote(found[1] or found[2]).rstrip("/")))
    if found := _HANDLE.fullmatch(core):
        return Reading(f"at {spell_address(found[1])}{found[2]}")
    if found := _NUMBERED.fullmatch(core):
        read = read_digits if found[1].isdecimal() else read_mixed
        return Reading(f"number {read(found[1])}")
    if _NUMBERS.fullmatch(core):
        return Reading(f"number {reader.read_alone(core[1:])}")
    if found := _TAG.fullmatch(core):
        return Reading(f"hashtag {' '.join(map(_read_piece, split_case(found[1])))}")
    if found := _LINE.fullmatch(core):
        last = f" to {cardinal(int(found[3]))}" if found[3] else ""
        lines = f"line{'s' if last else ''} {cardinal(int(found[2]))}{last}"
        return Reading(f"{spell_address(found[1])} {lines}")
    if _WINDOWS_PATH.fullmatch(core) or _HOST_AND_PORT.fullmatch(core):
        return Reading(spell_address(core.lstrip("\\")))
    if (words := _part_sentences(token)) != core:
        return Reading(words)
    if token.lead == "_" and core:  # __init__.py
        return None
    return read_dotted(reader, core)


def _part_sentences(token: Token) -> str:
    """Add the missing spaces after sentences; a quotation mark closes what the word opened."""
    core = token.core
    if _QUALIFIED.fullmatch(core) or not _GLUED.search(core) or not _GLUED_WORDS.fullmatch(core):
        return core
    return _GLUED.sub(r"\1\2 " if '"' in token.lead else r"\1 \2", core)


def read_dotted(reader: TokenReader, core: str) -> Reading | None:
    """Words with full stops inside: versions, files, domains, missing spaces."""
    if "." not in core and "/" not in core:
        return None
    if (found := _VERSION.fullmatch(core)) and (found[1] or core.count(".") > 1 or found[3]):
        is_named = word_before(reader) == "version"
        return Reading(_version(found).removeprefix("version " if is_named else "\0"))
    if found := _NO_SPACE.fullmatch(core):
        return Reading(f"{found[1]}{found[2]} {found[3]}")
    if _INITIALS.fullmatch(core) or not _DOTTED.fullmatch(core) or core.strip(".").isdecimal():
        return None
    return Reading(spell_address(core.strip("/") if core.startswith("/") else core))


def read_version(text: str) -> str:
    """`1.2.3` after a name."""
    found = _VERSION.fullmatch(text)
    return _version(found) if found else spell_address(text)


def _version(found: re.Match[str]) -> str:
    parts = found[2].split(".")
    is_address = len(parts) == 4 and not found[1] and all(int(part) < 256 for part in parts)
    if is_address:
        return " dot ".join(map(spell_digits, parts))
    words = " point ".join(map(read_digits, parts))
    if found[3]:
        words += " " + " ".join(
            _read_piece(piece) for piece in _PIECES.findall(found[3]) if piece not in "-."
        )
    return f"version {words}" if found[1] else words


def spell_address(text: str) -> str:
    """Read an address or file name: signs are named."""
    return " ".join(_read_piece(piece) for part in _PIECES.findall(text) for piece in _split(part))


def _split(part: str) -> list[str]:
    return split_case(part) if part.isascii() and part.isalpha() else [part]


def _read_piece(piece: str) -> str:
    if piece in _SIGNS:
        return _SIGNS[piece]
    if piece.isdecimal():
        return cardinal(int(piece)) if len(piece) <= 2 and piece[0] != "0" else _digits(piece)
    lower = piece.lower()
    if lower in _WORDED:
        return _WORDED[lower]
    if lower in _LETTERED or (
        len(lower) > 1 and lower.isascii() and not re.search(r"[aeiouy]", lower)
    ):
        return spell_letters(lower)
    return lower if piece.isalpha() and len(piece) > 1 else read_mixed(piece)


def _digits(piece: str) -> str:
    is_year = len(piece) == 4 and piece[:2] in ("19", "20")
    return year(int(piece)) if is_year else spell_digits(piece)
