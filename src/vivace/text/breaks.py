"""Line breaks: distinguishes paragraph ends, item ends and wrapped lines.

A checkpoint that was trained on single sentences stops at a line break. Two steps keep breaks away
from its tokenizer:

1. `BreakReader` reads the written text and replaces each run of white space by one of four marks:
   `WRAP`, `CELL`, `ITEM` and `PARAGRAPH`. List marks and rules at the start of a line are dropped.
2. `vivace.text.plain` runs after normalization, inside one utterance, and replaces the marks by a
   space, a comma or a full stop.

The results do not depend on how the text was cut into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vivace.text.spans import join

BlockEnd = Literal["item", "paragraph"]
WRAP, CELL, ITEM, PARAGRAPH = " ", "\t", "\n\n", "\n\n\n"
MIN_WRAPPED_CHARS = 40  # shorter lines were not wrapped at a right margin
MAX_SPACES = 32  # this much white space separates like a line break and ends a sentence
_MAX_GAP = 256  # characters of list marks and rules between two words; more are words
_MAX_TOKEN = 100  # characters of the next word that a decision waits for

_LINE_ENDS = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"  # as in `str.splitlines`
_LINE_END = re.compile(rf"\r\n|[{_LINE_ENDS}]")
LINE_END_RUN = re.compile(rf"[{_LINE_ENDS}]\s*")
_SPACES = re.compile(r"\s+")
# White space after words, except a single space before another word that is no cell border.
_GAP = re.compile(r"\s(?!(?<= )[^\s|])")
_ANY_SPACES = re.compile(r"\s*")
_TOKEN = re.compile(r"\S+")
_RULE = re.compile(r"([-*_=~+#.·•–—])\1+")
_TABLE_RULE = re.compile(r"[|:+-]{3,}")
_LIST_MARK = re.compile(r"[-*•·▪◦‣●○■–—>|]|#{1,6}|\[[xX]\]")
_NUMBERED = re.compile(r"\(?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,5})[.)]|[①-⑳]\S*")
_OPENERS = "\"'“‘„«‹([{*_`"
_CLOSERS = "\"'”’»›)]}*_`"
_END_OF_SENTENCE = ".!?…。！？"
_GOES_ON = ",;:-–—/&+(["
_LAST_WORD = re.compile(r"[^\W\d_]+(?=\W*\Z)")
_FIRST_WORD = re.compile(r"[^\W\d_]+")
_TAIL = 48  # characters kept from the end of a line
# A line that ends in one of these words continues in the next line.
LINKS = (
    "a an the of to and or nor but in on at for with by from as into onto upon over under about "
    "than that which who whose whom is are was were be been has have had do does did will would "
    "can could shall should may might must not no my your his her its our their this these those "
    "if when because while between through during without within very so such"
)
# The words of `LINKS` that may begin an item: "a knife", "my book".
BEGINNERS = "a an the no my your his her its our their this these those"
_LINKS = frozenset(LINKS.split())
_CONTINUATIONS = _LINKS - frozenset(BEGINNERS.split())


class BreakReader:
    """Replaces the white space of a text by marks; does not change words."""

    def __init__(self) -> None:
        self._held = ""  # from the first undecided white space on
        self._begin()

    def _begin(self) -> None:
        self._line = ""  # end of the current line
        self._line_chars = 0
        self._widest = 0  # of the wrapped lines so far
        self._has_begun = False

    def feed(self, piece: str) -> str:
        self._held += piece
        return self._read(is_final=False)

    def finish(self, piece: str = "") -> str:
        self._held += piece
        rest = self._read(is_final=True)
        self._held = ""
        self._begin()
        return rest

    def _read(self, *, is_final: bool) -> str:
        text, place, out = self._held, 0, list[str]()
        while place < len(text):
            if self._has_begun:
                spaces = _GAP.search(text, place)
                start = spaces.start() if spaces else len(text)
                self._pass(text[place:start], out)
                place = start
                if not spaces:
                    break
            gap = _read_gap(text, place, is_start=not self._has_begun, is_final=is_final)
            if gap is None:
                self._held = text[place:]
                return join(out)
            self._put_mark(gap, out)
            self._has_begun = True
            place = gap.end
        self._held = ""
        return join(out)

    def _pass(self, words: str, out: list[str]) -> None:
        if not words:
            return
        out.append(words)
        self._line = (self._line + words)[-_TAIL:]
        self._line_chars += len(words)

    def _put_mark(self, gap: _Gap, out: list[str]) -> None:
        mark = self._mark(gap)
        if gap.token and (self._has_begun or mark == PARAGRAPH):
            out.append(mark)
        if gap.num_lines:
            self._line, self._line_chars = "", 0
        elif self._has_begun:
            self._pass(" ", [])

    def _mark(self, gap: _Gap) -> str:
        if gap.is_paragraph:
            return PARAGRAPH
        if gap.is_item:
            return ITEM
        if not gap.num_lines:
            return CELL if gap.has_cell and self._line[-1:].isalnum() else WRAP
        return ITEM if self._is_item(gap.token) else WRAP

    def _is_item(self, token: str) -> bool:
        """Whether a single line break before `token` ends an item."""
        end = self._line.rstrip(_CLOSERS)[-1:]
        if not end or end in _END_OF_SENTENCE or end in _GOES_ON:
            return _NUMBERED.fullmatch(token) is not None and bool(end)
        if _NUMBERED.fullmatch(token):
            return True
        last, first = _LAST_WORD.search(self._line), _FIRST_WORD.search(token)
        if last is not None and last[0].lower() in _LINKS:
            return False
        if token.lstrip(_OPENERS)[:1].islower():
            is_wrapped = self._line_chars >= MIN_WRAPPED_CHARS
            if is_wrapped:
                self._widest = max(self._widest, self._line_chars)
            return not is_wrapped and not (first is not None and first[0] in _CONTINUATIONS)
        return not self._would_overflow(token)

    def _would_overflow(self, token: str) -> bool:
        """Whether the text has wrapped lines and `token` did not fit in the current line."""
        is_pronoun = token.split("'")[0].split("’")[0] == "I"
        if self._line_chars < MIN_WRAPPED_CHARS or not (self._widest or is_pronoun):
            return False
        return self._line_chars + 1 + len(token) > self._widest


@dataclass
class _Gap:
    """White space between two words, with list marks and rules in it."""

    end: int  # start of the next word
    spaces: list[str]  # runs of white space, separated by signs
    token: str = ""  # the next word, at most `_MAX_TOKEN` characters; "" at the end
    has_rule: bool = False
    has_list_mark: bool = False
    has_cell: bool = False

    @property
    def num_lines(self) -> int:
        return sum(map(count_line_ends, self.spaces))

    @property
    def is_paragraph(self) -> bool:
        return self.has_rule or max(map(count_line_ends, self.spaces)) >= 2

    @property
    def is_item(self) -> bool:
        num_chars = sum(map(len, self.spaces))
        return self.has_list_mark or num_chars >= MAX_SPACES or "\u2028" in "".join(self.spaces)

    def skip(self, text: str, sign: str, *, at_line_start: bool) -> bool:
        """Skip a sign and the white space after it; return whether a line begins there."""
        after = _SPACES.match(text, self.end + len(sign))
        self.spaces.append(after[0] if after else "")
        self.end += len(sign) + len(self.spaces[-1])
        ends_line = not after or count_line_ends(after[0]) > 0
        if at_line_start:
            self.has_rule |= ends_line or _RULE.fullmatch(sign) is not None
            self.has_list_mark = True
        return at_line_start or ends_line


def _read_gap(text: str, start: int, *, is_start: bool, is_final: bool) -> _Gap | None:
    """Read the gap that begins at `start`; None if later text may change it.

    `is_start`: the text begins here and the gap may be empty.
    """
    first = _SPACES.match(text, start)
    gap = _Gap(first.end() if first else start, [first[0] if first else ""])
    at_line_start = is_start or gap.num_lines > 0
    gap.has_cell = "\t" in gap.spaces[0]
    while True:
        found = _TOKEN.match(text, gap.end, gap.end + _MAX_TOKEN)
        gap.token = found[0] if found else ""
        may_be_sign = at_line_start or gap.token == "|"
        is_open = gap.end + len(gap.token) == len(text) and len(gap.token) < _MAX_TOKEN
        if not is_final and is_open and (may_be_sign or not gap.token):
            return None
        if gap.token == "|":
            gap.has_cell = True
        elif not gap.token or not at_line_start or not _is_mark(gap.token):
            return gap
        if gap.end - start >= _MAX_GAP:
            return gap
        at_line_start = gap.skip(text, gap.token, at_line_start=at_line_start)


def _is_mark(token: str) -> bool:
    """Whether a word at the start of a line is a list mark or a rule."""
    return any(sign.fullmatch(token) for sign in (_LIST_MARK, _RULE, _TABLE_RULE))


def block_end(spaces: str, *, has_marks: bool) -> BlockEnd | None:
    """The block that white space ends; None if it ends no utterance.

    `has_marks`: the text comes from `BreakReader`. In other texts only a blank line ends a block.
    """
    if has_marks:
        return "paragraph" if len(spaces) >= len(PARAGRAPH) else "item"
    return "paragraph" if count_line_ends(spaces) >= 2 else None


def find_blocks(text: str, *, has_marks: bool) -> Iterator[tuple[int, int, BlockEnd | None]]:
    """Start, end and kind of each block of a text; the last block has no kind."""
    start = 0
    for found in LINE_END_RUN.finditer(text):
        if kind := block_end(found[0], has_marks=has_marks):
            yield start, found.start(), kind
            start = found.end()
    yield start, len(text), None


def skip_spaces(text: str, start: int) -> int:
    """The end of the white space that begins at `start`."""
    spaces = _ANY_SPACES.match(text, start)
    assert spaces is not None
    return spaces.end()


def count_line_ends(spaces: str) -> int:
    """The number of line ends in white space; a paragraph separator counts twice."""
    if spaces == " ":  # almost all gaps
        return 0
    return len(_LINE_END.findall(spaces)) + spaces.count("\u2029")
