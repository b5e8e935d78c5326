"""Chapters of plain text and of markdown, found by their headings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from vivace.books.book import Book, Chapter, Paragraph
from vivace.errors import RequestError

MAX_HEADING_CHARS = 80
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
FENCE = re.compile(r" {0,3}(```+|~~~+)")
ATX = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*\Z")
SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*\Z")
FIELD = re.compile(r"(title|author):\s*(.*?)\s*\Z", re.IGNORECASE)


def decode(path: Path) -> str:
    content = path.read_bytes()
    try:
        if content.startswith((b"\xff\xfe", b"\xfe\xff")):
            text = content.decode("utf-16")
        else:
            text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not UTF-8: {error}") from error
    if "\0" in text:
        raise RequestError(f"{path} has NUL characters; it is no text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


# -- plain text --------------------------------------------------------------------------------


def read_plain(text: str, name: str) -> Book:
    """A line such as `Chapter 3` or `Prologue`, alone in its paragraph, begins a chapter."""
    chapters: list[tuple[str, list[Paragraph]]] = [(name, [])]
    for block in _blocks(text):
        lines = block.split("\n")
        is_heading = len(block) <= MAX_HEADING_CHARS and HEADING.match(lines[0].strip()) is not None
        words = " ".join(line.strip() for line in lines)
        if is_heading and len(lines) <= 2:
            chapters.append((words, [Paragraph(words, is_heading=True)]))
        else:
            chapters[-1][1].append(Paragraph(words))
    return Book(title=name, chapters=_freeze(chapters))


def _blocks(text: str) -> list[str]:
    """Paragraphs: parted by blank lines, or where there are none, by every line."""
    stripped = text.strip("\n")
    parts = re.split(r"\n[ \t\u3000]*\n\s*", stripped)
    if len(parts) == 1:
        parts = stripped.split("\n")
    return [part.strip() for part in parts if part.strip()]


# -- markdown ----------------------------------------------------------------------------------


def read_markdown(text: str, name: str) -> Book:
    """Chapters are at the highest level of headings that comes more than once, or at the first."""
    fields, text = _front_matter(text)
    blocks = list(_markdown_blocks(text))
    levels = Counter(level for level, _ in blocks if level)
    repeated = [level for level in sorted(levels) if levels[level] > 1]
    level_of_chapters = (repeated or sorted(levels) or [0])[0]
    title = fields.get("title") or next((words for level, words in blocks if level == 1), name)
    chapters: list[tuple[str, list[Paragraph]]] = [(title, [])]
    for level, words in blocks:
        if level and level <= level_of_chapters:
            chapters.append((words, []))
        chapters[-1][1].append(Paragraph(words, is_heading=bool(level)))
    return Book(
        title=title, author=fields.get("author"), chapters=_freeze(chapters), is_markdown=True
    )


def _markdown_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Headings by their level, and paragraphs with level 0; code is left out."""
    lines: list[str] = []
    fence = ""
    for line in [*text.split("\n"), ""]:
        mark = FENCE.match(line)
        if fence:
            fence = "" if mark and mark[1].startswith(fence) else fence
            continue
        heading = ATX.match(line)
        underline = SETEXT.match(line) if len(lines) == 1 else None
        if underline:
            yield (1 if "=" in underline[1] else 2), lines[0].strip()
            lines = []
        elif heading or mark or not line.strip():
            if lines:
                yield 0, "\n".join(lines)
            lines, fence = [], mark[1] if mark else ""
            if heading and heading[2]:
                yield len(heading[1]), heading[2]
        else:
            lines.append(line)


def _front_matter(text: str) -> tuple[dict[str, str], str]:
    """`title` and `author` of a YAML block at the top, without a YAML reader."""
    found = re.match(r"---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*\n", text, re.DOTALL)
    if not found:
        return {}, text
    matches = (FIELD.match(line) for line in found[1].split("\n"))
    fields = {match[1].lower(): match[2].strip("\"'") for match in matches if match}
    return fields, text[found.end() :]


def _freeze(chapters: list[tuple[str, list[Paragraph]]]) -> tuple[Chapter, ...]:
    return tuple(Chapter(title, tuple(paragraphs)) for title, paragraphs in chapters)
