"""Reads plain text, markdown and HTML files. Headings start chapters."""

from __future__ import annotations

import codecs
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from vivace.books.book import Book, Chapter, Paragraph
from vivace.books.count import check_letters, count_letters
from vivace.books.decode import decode_page
from vivace.books.html import read_page
from vivace.books.markdown import read_blocks
from vivace.errors import RequestError
from vivace.text.files import decode_utf8

MAX_HEADING_CHARS = 80
MAX_VERSE_CHARS = 60  # of the longest line; wrapped prose has longer lines
_OPENERS = "\"'“‘«„([*_—–- \t\u3000"
_ITEM = re.compile(r"\s*(?:[-*+•‣◦·–—][ \t]+|\(?(?:\d{1,3}|[a-z])[.)][ \t]+)\S")
_NUMBER = r"(?:\d+|[ivxlcdm]+|(?:the\s+)?[a-z]+(?:[- ][a-z]+)?)"
_NAMED = (
    r"chapter|part|book|volume|act|scene|canto|letter|section|kapitel|teil|chapitre|partie|"
    r"capítulo|capitulo|capitolo|parte|глава|часть"
)
_ALONE = (
    r"prologue|epilogue|preface|foreword|introduction|afterword|conclusion|postscript|appendix|"
    r"prolog|epilog|vorwort|nachwort|préface|épilogue|prólogo|epílogo|prefazione|пролог|эпилог"
)
HEADING = re.compile(
    rf"(?:(?:{_NAMED})\s+{_NUMBER}(?:\s*[.:—–-].*|\s*)|(?:{_ALONE})(?:\s*[.:—–-].*|\s*)"
    r"|第\s*[0-9一二三四五六七八九十百千零〇两]{1,8}\s*[章回节節卷部].*"
    r"|제\s*\d{1,4}\s*[장부].*)\Z",
    re.IGNORECASE,
)


def decode(path: Path) -> str:
    """The text of a UTF-8 file, or of a UTF-16 file with a byte order mark."""
    content = path.read_bytes()
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            text = content.decode("utf-16")
        except UnicodeDecodeError as error:
            raise RequestError(f"{path}: not UTF-16: {error.reason}") from error
    else:
        text = decode_utf8(content, str(path), sys.maxsize, RequestError)
    if "\0" in text:
        raise RequestError(f"{path}: contains NUL characters; not a text file")
    return text.replace("\r\n", "\n").replace("\r", "\n")


# -- plain text --------------------------------------------------------------------------------


def read_plain(text: str, name: str) -> Book:
    """A paragraph such as `Chapter 3` or `Prologue` starts a chapter."""
    chapters: list[tuple[str, list[Paragraph]]] = [(name, [])]
    for block in _blocks(text):
        lines = block.split("\n")
        is_heading = len(block) <= MAX_HEADING_CHARS and HEADING.match(lines[0].strip()) is not None
        if is_heading and len(lines) <= 2:
            words = " ".join(line.strip() for line in lines)
            chapters.append((words, [Paragraph(words, is_heading=True)]))
        else:
            chapters[-1][1].extend(as_lines(_split_wrapped(lines)))
    check_letters(name, text, (each.text for _, chapter in chapters for each in chapter))
    return Book(title=name, chapters=_freeze(chapters), num_letters=count_letters(text))


def _blocks(text: str) -> list[str]:
    """Split into paragraphs at blank lines; without blank lines, at every line."""
    stripped = text.strip("\n")
    parts = re.split(r"\n[ \t\u3000]*\n\s*", stripped)
    if len(parts) == 1:
        parts = stripped.split("\n")
    return [part.strip() for part in parts if part.strip()]


def as_lines(lines: list[str]) -> list[Paragraph]:
    """The lines of one paragraph, spoken separately."""
    return [
        Paragraph(line, is_line=number < len(lines)) for number, line in enumerate(lines, start=1)
    ]


def _split_wrapped(lines: list[str]) -> list[str]:
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
    starts = [line.lstrip(_OPENERS)[:1] for line in lines]
    return max(map(len, lines)) <= MAX_VERSE_CHARS and all(map(str.isupper, starts))


# -- markdown and HTML ---------------------------------------------------------------------------


def read_markdown(text: str, name: str) -> Book:
    """Read markdown. Raises RequestError if words would be lost."""
    document = read_blocks(text, name)
    fields = document.fields
    title = fields.get("title") or _first_title(document.blocks) or name
    return Book(
        title=title,
        author=fields.get("author"),
        chapters=_by_headings(title, document.blocks),
        num_letters=sum(count_letters(block.text) for _, block in document.blocks),
        left_out=dict(document.left_out.num_words),
    )


def read_html(path: Path) -> Book:
    try:
        source = decode_page(path.read_bytes())
    except UnicodeDecodeError as error:
        raise RequestError(f"{path}: not UTF-8: {error.reason}; save the text as UTF-8") from error
    page = read_page(source, str(path))
    blocks = [(page.levels.get(number, 0), each) for number, each in enumerate(page.paragraphs)]
    title = _first_title(blocks) or path.stem
    return Book(
        title=title,
        chapters=_by_headings(title, blocks),
        num_letters=sum(count_letters(each.text) for each in page.paragraphs),
        left_out=dict(page.left_out.num_words),
    )


def _first_title(blocks: Iterable[tuple[int, Paragraph]]) -> str | None:
    return next((block.text for level, block in blocks if level == 1), None)


def _by_headings(title: str, blocks: list[tuple[int, Paragraph]]) -> tuple[Chapter, ...]:
    """Start chapters at the highest heading level that occurs more than once, or at the highest.

    Each block has its heading level; 0 is a paragraph.
    """
    levels = Counter(level for level, _ in blocks if level)
    repeated = [level for level in sorted(levels) if levels[level] > 1]
    level_of_chapters = (repeated or sorted(levels) or [0])[0]
    chapters: list[tuple[str, list[Paragraph]]] = [(title, [])]
    for level, block in blocks:
        if level and level <= level_of_chapters:
            chapters.append((block.text, []))
        chapters[-1][1].append(block)
    return _freeze(chapters)


def _freeze(chapters: list[tuple[str, list[Paragraph]]]) -> tuple[Chapter, ...]:
    return tuple(Chapter(title, tuple(paragraphs)) for title, paragraphs in chapters)
