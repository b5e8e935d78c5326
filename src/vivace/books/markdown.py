"""Splits markdown into paragraphs and counts the text that is left out.

Code, comments, front matter and link addresses are left out. If cleaning would lose words of a
block, only its markup characters are removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from vivace.books.book import Paragraph
from vivace.books.count import LeftOutText, check_letters, is_within
from vivace.books.markup import scan
from vivace.text.html_elements import BLOCK_ELEMENTS, INLINE_ELEMENTS
from vivace.text.markup import remove_markup, resolve_references
from vivace.text.tex import read_formulas

CODE, COMMENTS, FRONT_MATTER, ADDRESSES = "code", "comments", "front matter", "link addresses"
FIELDS = ("title", "author")
_FENCE = re.compile(r" {0,3}(?:> ?)*(```+|~~~+)")
_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+|\Z)")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*\Z")
_ITEM = re.compile(r"[\s>]*(?:[-*+•][ \t]+|\d{1,9}[.)][ \t]+)")
_BULLET = re.compile(r"\s*[-*+•][ \t]+(?:\[[ xX]\][ \t]+)?(?=\S)")
_ROW = re.compile(r"\s*\|.*\|\s*\Z")
_TABLE_RULE = re.compile(r"[\s>]*\|?(?:[ \t]*:?-{1,99}:?[ \t]*\|){1,99}(?:[ \t]*:?-{1,99}:?)?\s*\Z")
_BLANK = re.compile(r"[\s>]*\Z")
_DEFINITION = re.compile(r" {0,3}\[[^\]^\n]{1,200}\]:[ \t]+\S")
_ADDRESS = re.compile(
    r"\]\((?:[^()\n]|\([^()\n]*\))*\)|\]\[[^\[\]\n]*\]|\[\^\w{1,40}\]:?"
    r"|(?:https?://|ftp://|www\.)[^\s<>\"'，。！？、；：（）【】「」『』]*",
    re.IGNORECASE,
)
_MARKS = re.compile(r"[*_`~#>|\[\]{}\\]+")
_HARD_BREAK = re.compile(r"(?: {2,}|\\)\Z")


@dataclass(slots=True)
class Document:
    blocks: list[tuple[int, Paragraph]] = field(default_factory=list)  # heading level, or 0
    fields: dict[str, str] = field(default_factory=dict)
    left_out: LeftOutText = field(default_factory=LeftOutText)


def read_blocks(text: str, name: str) -> Document:
    """Split a document into blocks. Raises RequestError if a line would be lost."""
    document = Document()
    body = _drop_comments(_front_matter(text, document), document.left_out)
    num_before = document.left_out.num_letters
    sources = list(_split(body, document.left_out))
    num_code = document.left_out.num_letters - num_before
    check_letters(name, body, (source for _, source, _ in sources), num_code)
    for level, source, is_line in sources:
        spoken = _clean(source, document.left_out)
        for number, words in enumerate(spoken, start=1):
            is_inside = is_line and number == len(spoken)
            block = Paragraph(words, is_heading=level > 0, is_line=is_inside)
            document.blocks.append((level, block))
    return document


# -- blocks ------------------------------------------------------------------------------------


def _split(text: str, left_out: LeftOutText) -> Iterator[tuple[int, str, bool]]:
    """Blocks as (heading level, source, whether the paragraph continues)."""
    lines: list[str] = []
    code: list[str] = []
    fence = ""
    for line in [*text.split("\n"), ""]:
        mark = _FENCE.match(line)
        if fence:
            code.append(line)
            fence = "" if mark and mark[1].startswith(fence) else fence
            continue
        heading = _ATX.match(line)
        underline = _SETEXT.match(line) if len(lines) == 1 else None
        if underline and not _ITEM.match(lines[0]):
            yield (1 if "=" in underline[1] else 2), lines[0].strip(), False
            lines = []
        elif heading or mark or _BLANK.match(line):
            yield from _paragraph(lines)
            lines, fence = [], mark[1] if mark else ""
            if mark:
                code.append(line)
            if heading:
                yield len(heading[1]), _heading_text(line[heading.end() :]), False
        else:
            lines.append(line)
    left_out.add(CODE, "\n".join(code))


def _heading_text(rest: str) -> str:
    """Remove the closing hashes of a heading."""
    rest = rest.strip()
    bare = rest.rstrip("#")
    return bare.rstrip() if not bare or bare[-1] in " \t" else rest


def _paragraph(lines: list[str]) -> Iterator[tuple[int, str, bool]]:
    """Split into list items, table rows and hard-broken lines. Other lines are joined."""
    is_table = any(_TABLE_RULE.match(line) and "|" in line for line in lines[1:2])
    waiting: list[str] = []
    for line in lines:
        is_row = is_table or _ROW.match(line) is not None
        is_begun = is_row or _ITEM.match(line) or any(map(_DEFINITION.match, [line, *waiting[:1]]))
        if waiting and is_begun:
            yield 0, "\n".join(waiting), False
            waiting = []
        if is_row:
            yield 0, line if _ROW.match(line) else f"| {line.strip()} |", False
            continue
        waiting.append(line)
        if _HARD_BREAK.search(line):
            yield 0, "\n".join([*waiting[:-1], _HARD_BREAK.sub("", line)]), True
            waiting = []
    if waiting:
        yield 0, "\n".join(waiting), False


# -- cleaning ----------------------------------------------------------------------------------


def _clean(source: str, left_out: LeftOutText) -> list[str]:
    """The text of a block without markup, split at blank lines."""
    if _DEFINITION.match(source) and "\n" not in source:
        left_out.add(ADDRESSES, source)
        return []
    text = _drop_tags(_BULLET.sub("", source, 1) if _BULLET.match(source) else source)
    text = read_formulas(text)
    wanted = resolve_references(_ADDRESS.sub(" ", text))
    cleaned = remove_markup(text)
    if not is_within(wanted, cleaned):
        cleaned = _MARKS.sub(" ", resolve_references(text))
    for address in _ADDRESS.finditer(text):
        left_out.add(ADDRESSES, address[0])
    parts = re.split(r"\n\s*\n", cleaned)
    return [words for part in parts if (words := " ".join(part.split()))]


def _drop_tags(source: str) -> str:
    """Remove HTML tags. A tag with an unknown element name is text."""
    if "<" not in source:
        return source
    parts: list[str] = []
    gap = " " if _ROW.match(source) else "\n\n"  # blocks in a cell do not end the row
    for token in scan(source, is_well_formed=False, has_raw=False):
        if token.kind == "tag" and token.name in BLOCK_ELEMENTS:
            parts.append(gap)
        elif token.kind != "tag" or token.name not in INLINE_ELEMENTS:
            parts.append(token.source)
    return "".join(parts)


def _drop_comments(text: str, left_out: LeftOutText) -> str:
    parts: list[str] = []
    position = 0
    while (start := text.find("<!--", position)) >= 0:
        end = text.find("-->", start)
        if end < 0:
            break
        left_out.add(COMMENTS, text[start:end])
        parts += [text[position:start], "\n" * text.count("\n", start, end)]
        position = end + 3
    return "".join([*parts, text[position:]])


def _front_matter(text: str, document: Document) -> str:
    """Read `title` and `author` from a YAML block at the top and return the rest of the text."""
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        return text
    ends = [number for number, line in enumerate(lines) if line.rstrip() in ("---", "...")]
    if len(ends) < 2:
        return text
    end = ends[1]
    for line in lines[1:end]:
        key, _, value = line.partition(":")
        if key.strip().lower() in FIELDS:
            document.fields[key.strip().lower()] = value.strip().strip("\"'")
    document.left_out.add(FRONT_MATTER, "\n".join(lines[1:end]))
    return "\n".join(lines[end + 1 :])
