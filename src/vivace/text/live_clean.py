"""`clean_text` for live text.

All markup begins and ends within a line, so words are passed on as they come, unless they are
inside open markup or in a line that may be a heading, list item, quotation, table row or rule.
"""

from __future__ import annotations

import re

from vivace.text.markup import DEFAULTS, clean_text, is_item
from vivace.text.options import TextOptions

# The start of a line that may be a heading, list item, quotation, table row, rule or fence: this is
# certain only at its end. Emphasis at the start does not count.
_SET_APART = re.compile(r"[^\S\n]*(?:[-+•>#|`~=\\]|\*(?!\*?\w)|_(?!_?\w)|<)")
MAX_HELD = 2_000  # characters; longer open markup is taken as text


class _OpenMarkup:
    """Whether a link, its address or a tag, which may stretch over spaces, is still open."""

    def __init__(self) -> None:
        self._is_bracket = self._is_tag = False
        self._depths: frozenset[int] = frozenset()  # of parentheses, in every address begun
        self._last = ""

    def read(self, character: str) -> None:
        if character in "[]":
            self._is_bracket = character == "["
        elif character in "<>":
            self._is_tag = character == "<"
        elif character == "(":
            # An address may hold parentheses, but none inside those.
            deeper = {depth + 1 for depth in self._depths if depth < 2}
            self._depths = frozenset(deeper | ({1} if self._last == "]" else set()))
        elif character == ")":
            self._depths = frozenset(depth - 1 for depth in self._depths if depth > 1)
        self._last = character

    def __bool__(self) -> bool:
        return self._is_bracket or self._is_tag or bool(self._depths)


class LiveCleaner:
    """`clean_text` for a text in pieces; only white space between words may differ."""

    def __init__(self, options: TextOptions = DEFAULTS, *, item_end: str = "\n\n") -> None:
        self._options, self._item_end = options, item_end
        self._is_after_item = False
        self._held = ""
        self._num_read = 0  # characters of it that were searched for open markup
        self._open = _OpenMarkup()
        self._is_line_start = True
        self._gap = ""  # white space owed before the next word
        self._has_begun = False

    def feed(self, piece: str) -> str:
        """The words that have become certain."""
        *lines, rest = piece.replace("\r", "\n").split("\n")
        said = []
        for line in lines:
            said.append(self._end_line(self._held + line))
            self._hold("")
        self._held += rest
        return "".join(said) + self._begin_line()

    def finish(self) -> str:
        """The rest."""
        rest = self._held
        self._hold("")
        return self._end_line(rest)

    def settle(self) -> str | None:
        """All words so far, in the middle of a line; None if markup in it may go on."""
        if self._open or (self._is_line_start and _SET_APART.match(self._held)):
            return None
        return self._say_up_to(len(self._held)) if self._held.strip() else ""

    def _hold(self, text: str) -> None:
        """Go on with other text in which nothing is open yet."""
        self._held, self._num_read, self._open = text, 0, _OpenMarkup()

    def _end_line(self, line: str) -> str:
        """A whole line, or what is left of it."""
        is_apart = self._is_line_start and _SET_APART.match(line) is not None
        is_own = self._is_line_start and is_item(line)
        gap = self._item_end if is_own else "\n\n" if is_apart else ""
        if is_own and self._is_after_item:
            self._gap = gap  # blank lines between items are no paragraph ends
        said = self._say(line, gap)
        self._gap = "\n\n" if not line.strip() else gap or self._gap or "\n"
        self._is_after_item = is_own or (self._is_after_item and not line.strip())
        self._is_line_start = True
        return said

    def _begin_line(self) -> str:
        """As much as may be said of the line that is being written."""
        if self._is_line_start and (not self._held.strip() or _SET_APART.match(self._held)):
            return self._say_overlong()
        cut = self._find_cut()
        return self._say_up_to(cut) if cut else self._say_overlong()

    def _find_cut(self) -> int:
        """The last space with words before it and nothing open; 0 if there is none."""
        cut = 0
        for place in range(self._num_read, len(self._held)):
            if not self._open and self._held[place].isspace():
                cut = place
            self._open.read(self._held[place])
        self._num_read = len(self._held)
        return cut if self._held[:cut].strip() else 0

    def _say_up_to(self, cut: int) -> str:
        said = self._say(self._held[:cut], "")
        # Nothing is open at the cut, so the state read after it stays valid.
        self._held, self._num_read = self._held[cut:], self._num_read - cut
        self._is_line_start = False
        return said

    def _say_overlong(self) -> str:
        if len(self._held) <= MAX_HELD:
            return ""
        said = self._say_up_to(len(self._held))
        self._hold("")
        return said

    def _say(self, text: str, gap: str) -> str:
        """The words of some text, after the white space that is due."""
        # A letter in front keeps the middle of a line from being taken for a bullet or heading.
        end, before = self._item_end, "" if self._is_line_start else "a"
        cleaned = clean_text(before + text, self._options, item_end=end)
        words = cleaned[len(before) :]
        if not words.strip():
            return ""
        ranks = ("", "\n", end, "\n\n")
        due = max(self._gap, gap, key=ranks.index) if self._has_begun else ""
        self._gap, self._has_begun = "", True
        return due + words
