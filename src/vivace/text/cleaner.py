"""Removes markdown from a text in pieces."""

from __future__ import annotations

import re

from vivace.text.comments import CommentDropper
from vivace.text.markup import (
    LINE_BREAK,
    is_row,
    join_row,
    line_kind,
    remove_inline_markup,
    remove_markup,
)
from vivace.text.spans import join, split, substitute

# The start of a line that may be a heading, list item, quotation, table row, rule or fence. Only
# the end of the line decides. Emphasis at the start does not count.
_MAY_BE_BLOCK = re.compile(r"[^\S\n]*(?:[-+•>#|`~=\\]|\*(?!\*?\w)|_(?!_?[^\W_])|<)")
_LINE_END = re.compile(r"\r\n?|\u2028")  # `remove_markup` has its own use for U+2028
# White space or signs that `remove_markup` may change in the middle of a text.
_MAY_CHANGE = re.compile(
    r"[\[\]*_`~#<>|\\=&\ue000]|\A[-+•]|\A\s|\s\Z|\s\s|[^\S ]|://|www\.", re.IGNORECASE
)
MAX_HELD = 2_000  # characters; longer open markup is treated as text


class _OpenMarkup:
    """Whether a link, a link target or a tag, which may contain spaces, is still open."""

    def __init__(self) -> None:
        self._is_bracket = self._is_tag = False
        self._depths: frozenset[int] = frozenset()  # parentheses of every link target begun
        self._last = ""

    def read(self, character: str) -> None:
        if character in "[]":
            self._is_bracket = character == "["
        elif character in "<>":
            self._is_tag = character == "<"
        elif character == "(":
            # A link target may contain parentheses, but none inside those.
            deeper = {depth + 1 for depth in self._depths if depth < 2}
            self._depths = frozenset(deeper | ({1} if self._last == "]" else set()))
        elif character == ")":
            self._depths = frozenset(depth - 1 for depth in self._depths if depth > 1)
        self._last = character

    def __bool__(self) -> bool:
        return self._is_bracket or self._is_tag or bool(self._depths)


class MarkdownCleaner:
    """`remove_markup` for a text in pieces."""

    def __init__(self, *, item_end: str = "\n\n") -> None:
        self._item_end = item_end
        self._comments = CommentDropper()
        self._begin()

    def _begin(self) -> None:
        self._is_after_return = False  # the last character was "\r"
        self._is_after_item = False
        self._is_line_start = True
        self._gap = ""  # white space to return before the next word
        self._has_begun = self._has_dropped = False
        self._has_words = False  # in this line
        self._hold("")

    def feed(self, piece: str) -> str:
        return self._read(self._comments.feed(piece))

    def _read(self, piece: str) -> str:
        if self._is_after_return:
            piece, self._is_after_return = piece[piece.startswith("\n") :], not piece
        self._is_after_return |= piece.endswith("\r")
        *lines, rest = split(substitute(_LINE_END, "\n", piece), "\n")
        cleaned = []
        for line in lines:
            cleaned.append(self._end_lines(self._held + line))
            self._hold("")
        self._held += rest
        if ">" in rest and not self._may_be_row():
            *lines, rest = split(substitute(LINE_BREAK, "\n", self._held), "\n")
            cleaned += [self._end_line(line) for line in lines]
            if lines:
                self._hold(rest)
        return join([*cleaned, self._begin_line()])

    def finish(self, piece: str = "") -> str:
        rest = self._read(self._comments.finish(piece))
        rest += self._end_lines(self._held)
        self._begin()
        return rest

    def settle(self) -> str | None:
        """Return all words so far, in the middle of a line; None if markup may be open."""
        if self._comments or self._open or self._may_be_block(len(self._held)):
            return None
        return self._clean_up_to(len(self._held)) if self._held.strip() else ""

    def _hold(self, text: str) -> None:
        """Hold text in which no markup is open."""
        self._held, self._open = text, _OpenMarkup()
        self._num_read = 0  # characters of `_held` that were searched for open markup

    def _may_be_row(self) -> bool:
        return self._is_line_start and self._held.lstrip().startswith("|")

    def _end_lines(self, line: str) -> str:
        """Clean a written line, which `<br>` may end several times."""
        if self._is_line_start and is_row(line.strip()):
            return self._end_line(join_row(line))
        lines = split(substitute(LINE_BREAK, "\n", line), "\n")
        return join([self._end_line(one) for one in lines])

    def _end_line(self, line: str) -> str:
        kind = line_kind(line) if self._is_line_start else "text"
        gap = {"item": self._item_end, "block": "\n\n", "text": ""}[kind]
        if kind == "item" and self._is_after_item:
            self._gap = gap  # blank lines between items do not end a paragraph
        cleaned = self._clean(line, gap)
        is_blank = kind == "text" and not self._has_words  # also a line of markup only
        self._gap = "\n\n" if is_blank else gap or self._gap or "\n"
        self._is_after_item = kind == "item" or (self._is_after_item and is_blank)
        self._is_line_start, self._has_words = True, False
        return cleaned

    def _begin_line(self) -> str:
        """Clean as much of an unfinished line as is certain."""
        is_block = self._is_line_start and _MAY_BE_BLOCK.match(self._held) is not None
        cut = 0 if is_block else self._find_cut()
        if cut and not self._may_be_block(cut):
            return self._clean_up_to(cut)
        return self._clean_overlong()

    def _may_be_block(self, end: int) -> bool:
        """Whether the line may be a heading, list item or other block.

        The first `end` characters decide. The sign may follow inline markup: `[^1]# A heading`.
        """
        start = self._held[:end]
        if not self._is_line_start or not start.strip():
            return False
        if _MAY_BE_BLOCK.match(start):
            return True
        words = remove_inline_markup(start) if _MAY_CHANGE.search(start) else start
        return not words or _MAY_BE_BLOCK.match(words) is not None

    def _find_cut(self) -> int:
        """The last space after a word and with no open markup, or 0.

        Other white space is no cut: beside markup without words it becomes a space.
        """
        cut = 0
        for place in range(self._num_read, len(self._held)):
            is_start = place == 0 or not self._held[place - 1].isspace()
            if not self._open and is_start and self._held[place] == " ":
                cut = place
            self._open.read(self._held[place])
        self._num_read = len(self._held)
        return cut if self._held[:cut].strip() else 0

    def _clean_up_to(self, cut: int) -> str:
        cleaned = self._clean(self._held[:cut], "")
        # No markup is open at the cut, so the state after it stays valid.
        self._held, self._num_read = self._held[cut:], self._num_read - cut
        self._is_line_start = False
        return cleaned

    def _clean_overlong(self) -> str:
        if len(self._held) <= MAX_HELD:
            return ""
        cleaned = self._clean_up_to(len(self._held))
        self._hold("")
        return cleaned

    def _clean(self, text: str, gap: str) -> str:
        """The words of `text` after the white space before them."""
        words = self._words(text)
        if not words.strip():
            self._has_dropped = not self._is_line_start and text.strip() != ""
            return ""
        if not self._has_words:
            words = words.lstrip()
        elif self._has_dropped and words[0].isspace():
            words = " " + words[1:]  # markup without words stood between two spaces
        self._has_dropped = False
        ranks = ("", "\n", self._item_end, "\n\n")
        space = max(self._gap, gap, key=ranks.index) if self._has_begun else ""
        self._gap, self._has_begun, self._has_words = "", True, True
        return space + words

    def _words(self, text: str) -> str:
        if self._is_line_start and not _MAY_CHANGE.search(text):
            return text
        # A letter in front: the middle of a line is no bullet and no heading.
        before = "" if self._is_line_start else "a"
        return remove_markup(before + text, item_end=self._item_end)[len(before) :]
