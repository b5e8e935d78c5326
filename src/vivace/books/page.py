"""Builds a page from the events of an lxml parser: paragraphs, and text that is left out.

Note marks, page numbers, ruby readings, pictures, formulas and navigation are left out. The
decision is made at the end of an element and depends on its content. A link to a note that
contains words instead of a mark is spoken. So is text that an unclosed element contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vivace.books.book import Paragraph
from vivace.books.count import LeftOutText, count_letters, letters_of
from vivace.books.markup import BLOCKS, RAW

HEADINGS = {f"h{level}": level for level in range(1, 7)}
CELLS = {"td", "th"}
FIGURES = {"svg", "math", "audio", "video", "canvas", "object", "template"}
READINGS = {"rt", "rtc", "rp"}
RUBY_PARTS = {"rb", *READINGS}
CONTENTS = {"toc", "doc-toc"}
NOTE_KINDS = {"noteref", "doc-noteref"}
PAGE_BREAK_KINDS = {"pagebreak", "doc-pagebreak"}
NAVIGATION_KINDS = {*CONTENTS, "landmarks", "page-list", "doc-pagelist", "lot", "loi"}
NOTE, PAGE_NUMBER, READING = "note marks", "page numbers", "ruby readings"
FIGURE, NAVIGATION = "pictures and formulas", "tables of contents"
MAX_MARK_CHARS = 24
MAX_READING_CHARS = 60
MAX_FIGURE_CHARS = 2_000
MAX_CELLS, MAX_ROW_CHARS = 50, 300  # of a row that is spoken as one paragraph
BREAK, CELL = "\0", "\1"  # separators in the text of a block; pages have no control characters
_ENDED = tuple(".,;:!?…。！？，、；：")
_MARK = re.compile(  # 12, [12], (iv), *, †, note 3, p. 12
    r"[\W_]*(?:(?:notes?|fn|footnote|endnote|page|pp?|pg)\b[\W_]*)?"
    r"(?:\d{1,5}[a-z]?|[ivxlcdm]{1,8}|[a-z])?[\W_]*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Link:
    address: str
    text: str
    is_contents: bool  # in a table of contents


@dataclass(slots=True)
class Page:
    paragraphs: list[Paragraph] = field(default_factory=list)
    levels: dict[int, int] = field(default_factory=dict)  # heading levels by paragraph
    anchors: dict[str, int] = field(default_factory=dict)  # the paragraph after each id
    links: list[Link] = field(default_factory=list)
    left_out: LeftOutText = field(default_factory=LeftOutText)


@dataclass(slots=True)
class _Skip:
    """An open element that may be left out. The counts mark the start of its content."""

    category: str
    name: str
    num_paragraphs: int
    num_parts: int  # of the open block
    num_links: int
    is_over: bool = False  # decided, or the element turned out to be unclosed

    @property
    def is_navigation(self) -> bool:
        return self.category == NAVIGATION


class PageBuilder:
    """A parser target for lxml."""

    def __init__(self, *, is_well_formed: bool, num_open: Mapping[str, int] | None = None) -> None:
        """`num_open`: number of unclosed elements by name."""
        self._num_open = num_open or {}
        self._is_well_formed = is_well_formed
        self._has_open_readings = bool(self._num_open.get("ruby") and self._num_open.get("rt"))
        self._page = Page()
        self._anchors: list[tuple[str, int]] = []
        self._parts: list[str] = []  # text of the open block
        self._open: list[_Skip | None] = []  # one entry per open element
        self._skip: _Skip | None = None  # the outermost
        self._num_raw = self._num_pre = 0  # open elements
        self._headings: list[int] = []  # levels of open headings
        self._rubies: list[bool] = []  # whether the open ruby elements have base text
        self._rows: list[int] = []  # number of paragraphs before each open row
        self._num_contents = 0  # open tables of contents
        self._link: tuple[str, bool] | None = None
        self._link_parts: list[str] = []

    # -- parser events ---------------------------------------------------------------------------

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        name, fields = _local(tag), {_local(key): value for key, value in attributes.items()}
        kinds = {*fields.get("type", "").split(), *fields.get("role", "").split()}
        self._num_raw += name in RAW
        self._end_implied(name)
        if name in BLOCKS:
            self._start_block(name)
        for key in (fields.get("id"), fields.get("name") if name == "a" else None):
            if key:
                self._anchors.append((key, len(self._page.paragraphs)))
        self._open.append(self._start_skip(name, kinds))
        self._start_inline(name, fields, kinds)

    def end(self, tag: str) -> None:
        name, skip = _local(tag), self._open.pop()
        self._num_raw -= name in RAW
        if skip is not None and not skip.is_over and not skip.is_navigation:
            self._end_skip(skip)
        if name in BLOCKS:
            self._end_block_element(name)
        if skip is not None and not skip.is_over:
            self._end_navigation(skip)
        self._end_inline(name)

    def data(self, text: str) -> None:
        if self._num_raw:
            return
        if self._num_pre:
            text = text.replace("\r\n", "\n").replace("\n", BREAK)
        self._parts.append(text)
        if self._rubies and self._skip is None and not self._rubies[-1]:
            self._rubies[-1] = bool(letters_of(text))
        if self._link is not None:
            self._link_parts.append(text)

    def close(self) -> Page:
        self._end_block()
        for name, number in self._anchors:
            self._page.anchors.setdefault(name, number)
        return self._page

    # -- elements --------------------------------------------------------------------------------

    @property
    def _is_in_figure(self) -> bool:
        """Whether the parser is inside a picture or formula, where blocks are not paragraphs."""
        return self._skip is not None and not self._skip.is_navigation

    def _end_implied(self, name: str) -> None:
        """End the elements that the start of this element ends implicitly."""
        skip, is_block = self._skip, name in BLOCKS
        if skip and skip.name in RUBY_PARTS and name in RUBY_PARTS:
            self._end_skip(skip)  # HTML omits the end tags inside ruby
        elif skip and is_block and not self._holds_blocks(skip):
            self._keep(skip)  # unclosed
        if is_block and name != "div" and not self._is_well_formed:
            self._end_block()
            self._headings = []

    def _start_block(self, name: str) -> None:
        if self._is_in_figure:
            self._parts.append(" ")
            return
        self._end_block()
        if level := HEADINGS.get(name):
            self._headings.append(level)
        elif name == "tr":
            self._rows.append(len(self._page.paragraphs))
        elif name == "pre":
            self._num_pre += 1

    def _end_block_element(self, name: str) -> None:
        if self._is_in_figure:
            return
        self._end_block()
        if name in HEADINGS and self._headings:
            self._headings.pop()
        elif name == "pre" and self._num_pre:
            self._num_pre -= 1
        elif name == "tr" and self._rows:
            self._join_row(self._rows.pop())

    def _start_inline(self, name: str, fields: Mapping[str, str], kinds: set[str]) -> None:
        if name == "br":
            self._parts.append(" " if self._rows else BREAK)
        elif name in CELLS:
            self._parts.append(CELL)
        elif name == "ruby":
            self._rubies.append(False)
        elif name == "nav":
            self._num_contents += bool(self._num_contents or kinds & CONTENTS)
        elif name == "a" and "href" in fields:
            self._link, self._link_parts = (fields["href"], self._num_contents > 0), []

    def _end_inline(self, name: str) -> None:
        if name == "ruby" and self._rubies:
            self._rubies.pop()
        elif name == "nav" and self._num_contents:
            self._num_contents -= 1
        elif name == "a" and self._link is not None:
            text = " ".join(_plain("".join(self._link_parts)).split())
            self._page.links.append(Link(self._link[0], text, self._link[1]))
            self._link = None

    def _end_block(self) -> None:
        text, self._parts = "".join(self._parts), []
        level = self._headings[-1] if self._headings else 0
        lines = _one_line(text) if level else _lines(text)
        for number, line in enumerate(lines, start=1):
            if level:
                self._page.levels[len(self._page.paragraphs)] = level
            is_line = number < len(lines)
            self._page.paragraphs.append(Paragraph(line, is_heading=level > 0, is_line=is_line))

    def _join_row(self, start: int) -> None:
        """Join the cells of a short row, which may contain blocks, into one paragraph."""
        cells = self._page.paragraphs[start : start + MAX_CELLS + 1]
        if len(cells) > MAX_CELLS:
            return
        is_short = sum(len(cell.text) for cell in cells) <= MAX_ROW_CHARS
        if len(cells) > 1 and is_short and not any(cell.is_heading for cell in cells):
            self._cut(start)
            self._page.paragraphs.append(Paragraph(_join_cells(cell.text for cell in cells)))

    # -- text that is left out -------------------------------------------------------------------

    def _start_skip(self, name: str, kinds: set[str]) -> _Skip | None:
        category = _category(name, kinds)
        if category is None or self._skip is not None:
            return None
        if category in (FIGURE, NAVIGATION) and self._num_open.get(name):
            return None  # an unclosed element may contain the rest of the page
        page = self._page
        sizes = (len(page.paragraphs), len(self._parts), len(page.links))
        self._skip = _Skip(category, name, *sizes)
        return self._skip

    def _holds_blocks(self, skip: _Skip) -> bool:
        """Whether blocks inside the element belong to it."""
        return skip.is_navigation or (self._is_well_formed and skip.category == FIGURE)

    def _end_skip(self, skip: _Skip) -> None:
        skip.is_over, self._skip = True, None
        content = _plain("".join(self._parts[skip.num_parts :]))
        if self._is_left_out(skip, content):
            self._page.left_out.add(skip.category, content)
            del self._parts[skip.num_parts :]
        else:
            self._keep(skip)

    def _keep(self, skip: _Skip) -> None:
        """Speak the content of an element, separated from the word before."""
        skip.is_over, self._skip = True, None
        first = next((part for part in self._parts[skip.num_parts :] if part), "")
        if skip.category in (READING, FIGURE) or first[:1].isdigit():
            self._parts.insert(skip.num_parts, " ")

    def _is_left_out(self, skip: _Skip, content: str) -> bool:
        if skip.category in (NOTE, PAGE_NUMBER):
            text = content.strip()
            return len(text) <= MAX_MARK_CHARS and _MARK.fullmatch(text) is not None
        if skip.category == FIGURE:
            return len(content) <= MAX_FIGURE_CHARS
        if skip.name == "rp":
            return not letters_of(content)
        has_base = bool(self._rubies) and self._rubies[-1]
        return has_base and len(content) <= MAX_READING_CHARS and not self._has_open_readings

    def _end_navigation(self, skip: _Skip) -> None:
        """Leave navigation out if at least half of its letters are in links."""
        skip.is_over, self._skip = True, None
        text = "\n".join(each.text for each in self._page.paragraphs[skip.num_paragraphs :])
        links = self._page.links[skip.num_links :]
        if 2 * sum(count_letters(link.text) for link in links) >= count_letters(text):
            self._page.left_out.add(skip.category, text)
            self._cut(skip.num_paragraphs)

    def _cut(self, num_paragraphs: int) -> None:
        """Remove paragraphs. Their anchors move to the next paragraph."""
        for number in range(num_paragraphs, len(self._page.paragraphs)):
            self._page.levels.pop(number, None)
        del self._page.paragraphs[num_paragraphs:]
        for number in range(len(self._anchors) - 1, -1, -1):
            name, place = self._anchors[number]
            if place <= num_paragraphs:
                break
            self._anchors[number] = (name, num_paragraphs)


def _category(name: str, kinds: set[str]) -> str | None:
    if kinds & NOTE_KINDS:
        return NOTE
    if kinds & PAGE_BREAK_KINDS:
        return PAGE_NUMBER
    if name in READINGS:
        return READING
    if name in FIGURES:
        return FIGURE
    return NAVIGATION if name == "nav" and kinds & NAVIGATION_KINDS else None


def _local(name: str) -> str:
    """A name without namespace and prefix."""
    return name.rpartition("}")[2].rpartition(":")[2].lower()


def _plain(text: str) -> str:
    return text.replace(BREAK, " ").replace(CELL, " ")


def _lines(text: str) -> list[str]:
    return _join_continued(
        _join_cells(" ".join(cell.split()) for cell in line.split(CELL))
        for line in text.split(BREAK)
    )


def _one_line(text: str) -> list[str]:
    parts = text.replace(CELL, BREAK).split(BREAK)
    line = _join_cells(" ".join(part.split()) for part in parts)
    return [line] if line else []


def _join_cells(cells: Iterable[str]) -> str:
    """Join the cells of a row with commas, unless a cell ends with punctuation."""
    parts: list[str] = []
    for cell in filter(None, cells):
        if parts:
            parts.append(" " if parts[-1].endswith(_ENDED) else ", ")
        parts.append(cell)
    return "".join(parts)


def _join_continued(lines: Iterable[str]) -> list[str]:
    """Join a line that starts in lower case with the line before; keep other lines separate."""
    found: list[list[str]] = []
    for line in filter(None, lines):
        if found and line[0].islower() and not found[-1][-1].endswith(_ENDED):
            found[-1].append(line)
        else:
            found.append([line])
    return [" ".join(parts) for parts in found]
