"""Joins lines of text and table cells into the paragraphs that are spoken."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ENDED = tuple(".,;:!?…。！？，、；：")
_OPENERS = "\"'“‘«„([*_—–- "
_ITEM = re.compile(r"\s*(?:[-*+•‣◦·–—][ \t]+|\(?(?:\d{1,3}|[a-z])[.)][ \t]+)\S")
MAX_VERSE_CHARS = 60  # of the longest line; wrapped prose has longer lines


def join_cells(cells: Iterable[str]) -> str:
    """Join the cells of a row with commas, unless a cell ends with punctuation."""
    parts: list[str] = []
    for cell in filter(None, cells):
        if parts:
            parts.append(" " if parts[-1].endswith(_ENDED) else ", ")
        parts.append(cell)
    return "".join(parts)


def join_continued(lines: Iterable[str]) -> list[str]:
    """Join a line that starts in lower case with the line before; keep other lines separate."""
    found: list[list[str]] = []
    for line in filter(None, lines):
        if found and line[0].islower() and not found[-1][-1].endswith(_ENDED):
            found[-1].append(line)
        else:
            found.append([line])
    return [" ".join(parts) for parts in found]


def split_wrapped(lines: list[str]) -> list[str]:
    """Join the lines of a plain-text paragraph, except for list items and verse."""
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
    """Whether all lines are short and start with a capital letter."""
    starts = [line.lstrip(_OPENERS + "\t\u3000")[:1] for line in lines]
    return max(map(len, lines)) <= MAX_VERSE_CHARS and all(map(str.isupper, starts))
