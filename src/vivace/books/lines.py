"""Joins lines and cells to what is spoken as one block."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ENDED = tuple(".,;:!?…。！？，、；：")
_OPENERS = "\"'“‘«„([*_—–- "
_ITEM = re.compile(r"\s*(?:[-*+•‣◦·–—][ \t]+|\(?(?:\d{1,3}|[a-z])[.)][ \t]+)\S")
MAX_VERSE_CHARS = 60  # of the longest line; prose is rarely wrapped as early


def join_cells(cells: Iterable[str]) -> str:
    """Cells of a row as one line, with a comma where no other mark separates them."""
    parts: list[str] = []
    for cell in filter(None, cells):
        if parts:
            parts.append(" " if parts[-1].endswith(_ENDED) else ", ")
        parts.append(cell)
    return "".join(parts)


def join_continued(lines: Iterable[str]) -> list[str]:
    """Lines that are spoken apart; a line that goes on in lower case belongs to the one before."""
    found: list[list[str]] = []
    for line in filter(None, lines):
        if found and line[0].islower() and not found[-1][-1].endswith(_ENDED):
            found[-1].append(line)
        else:
            found.append([line])
    return [" ".join(parts) for parts in found]


def split_wrapped(lines: list[str]) -> list[str]:
    """Lines of a paragraph of plain text: joined, unless they are a list or a verse."""
    if len(lines) > 1 and _is_verse(lines):
        return [line.strip() for line in lines]
    found: list[list[str]] = []
    for line in lines:
        if found and not _ITEM.match(line):
            found[-1].append(line.strip())
        else:
            found.append([line.strip()])
    return [" ".join(parts) for parts in found]


def _is_verse(lines: list[str]) -> bool:
    """Whether all lines are short and begin as sentences or verses do."""
    starts = [line.lstrip(_OPENERS + "\t\u3000")[:1] for line in lines]
    return max(map(len, lines)) <= MAX_VERSE_CHARS and all(map(str.isupper, starts))
