"""`clean_text` for a text that is still being written.

All markup that is cleaned begins and ends within a line. So words can go on as they come, unless
they stand inside something that is still open, or in a line that is of a kind of its own.
"""

from __future__ import annotations

import re

from vivace.text.script import clean_text

# A line that may be a heading, a list item, a quotation, a table row, a rule or a fence: only its
# end tells. Emphasis at its start does not make it one.
_SET_APART = re.compile(r"[^\S\n]*(?:[-+•>#|`~=\\]|\*(?!\*?\w)|_(?!_?\w)|<)")
# What may stretch over spaces, still open at the end: a link, its address, a tag.
_OPEN = re.compile(
    r"\[[^\[\]\n]*\Z|\]\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*(?:\([^()\n]*)?\Z|<[^<>\n]*\Z"
)
_SPACE = re.compile(r"\s")
MAX_HELD = 2_000  # characters; what is open for longer is no markup


class LiveCleaner:
    """Pieces of markdown in, words out: together what `clean_text` makes of the whole.

    Only the number of spaces and line ends between two words may differ.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_line_start = True
        self._gap = ""  # white space owed before the next word
        self._has_begun = False

    def feed(self, piece: str) -> str:
        """The words that have become certain."""
        *lines, self._held = (self._held + piece.replace("\r", "\n")).split("\n")
        said = "".join(self._end_line(line) for line in lines)
        return said + self._begin_line()

    def finish(self) -> str:
        """The rest."""
        rest, self._held = self._held, ""
        return self._end_line(rest)

    def _end_line(self, line: str) -> str:
        """A whole line, or what is left of it."""
        is_apart = self._is_line_start and _SET_APART.match(line) is not None
        said = self._say(line, "\n\n" if is_apart else "")
        self._gap = "\n\n" if is_apart or not line.strip() else self._gap or "\n"
        self._is_line_start = True
        return said

    def _begin_line(self) -> str:
        """As much as may be said of the line that is being written."""
        if self._is_line_start and (not self._held.strip() or _SET_APART.match(self._held)):
            return self._say_overlong()
        spaces = [space.start() for space in _SPACE.finditer(self._held)]
        for cut in reversed(spaces):
            if self._held[:cut].strip() and not _OPEN.search(self._held[:cut]):
                return self._say_up_to(cut)
        return self._say_overlong()

    def _say_up_to(self, cut: int) -> str:
        said = self._say(self._held[:cut], "")
        self._held = self._held[cut:]
        self._is_line_start = False
        return said

    def _say_overlong(self) -> str:
        return self._say_up_to(len(self._held)) if len(self._held) > MAX_HELD else ""

    def _say(self, text: str, gap: str) -> str:
        """The words of some text, after the white space that is due."""
        # Inside a line nothing is a bullet or a heading: a letter before it says so.
        words = clean_text(text) if self._is_line_start else clean_text("a" + text)[1:]
        if not words.strip():
            return ""
        due = max(self._gap, gap, key=len) if self._has_begun else ""
        self._gap, self._has_begun = "", True
        return due + words
