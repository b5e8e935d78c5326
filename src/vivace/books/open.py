"""Opens a .txt, .md, .html or .epub file as a book."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from vivace.books.book import Book, Chapter, Paragraph
from vivace.books.epub import read_epub
from vivace.books.text import decode, read_html, read_markdown, read_plain
from vivace.disk import why_not_regular
from vivace.errors import RequestError
from vivace.text.letters import is_speakable

MAX_FILE_BYTES = 256 * 2**20
MAX_TITLE_CHARS = 200


def open_book(path: str | os.PathLike[str]) -> Book:
    """Read a .txt, .md, .html or .epub file.

    Raises RequestError if the file is not a book, or if any of its words would be lost.
    """
    path = Path(path)
    if reason := why_not_regular(path):
        raise RequestError(f"{path}: {reason}")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise RequestError(f"{path}: larger than the limit of {MAX_FILE_BYTES >> 20} MiB")
    try:
        book = _read(path)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror or error}") from error
    chapters = join_silent(book.chapters)
    num_found = sum(chapter.num_letters for chapter in chapters)
    if book.num_letters is not None and num_found != book.num_letters:
        raise RequestError(
            f"{path}: the chapters have {num_found:,} letters and digits, the pages "
            f"{book.num_letters:,}; this is a bug in vivace, please report it"
        )
    if not chapters:
        raise RequestError(f"{path}: the file has no words")
    return replace(book, title=tidy_title(book.title) or path.stem, chapters=chapters)


def _read(path: Path) -> Book:
    kind = path.suffix.lower()
    if kind == ".epub":
        return read_epub(path)
    if kind in (".html", ".htm", ".xhtml"):
        return read_html(path)
    if kind in (".md", ".markdown"):
        return read_markdown(decode(path), path.stem)
    if kind in (".txt", ".text", ""):
        return read_plain(decode(path), path.stem)
    raise RequestError(f"{path.name}: not a book; use a .txt, .md, .html or .epub file")


def join_silent(chapters: tuple[Chapter, ...]) -> tuple[Chapter, ...]:
    """Merge chapters that have only headings, such as `Part Two`, into the next chapter."""
    joined: list[Chapter] = []
    headings: list[Paragraph] = []
    for chapter in chapters:
        spoken = [each for each in chapter.paragraphs if is_speakable(each.text)]
        if all(each.is_heading for each in spoken):
            headings += spoken
            continue
        title = tidy_title(chapter.title) or f"Chapter {len(joined) + 1}"
        joined.append(Chapter(title, (*headings, *chapter.paragraphs)))
        headings = []
    if headings:
        joined.append(Chapter(tidy_title(headings[0].text), tuple(headings)))
    return tuple(joined)


def tidy_title(title: str) -> str:
    return re.sub(r"\s+", " ", title).strip()[:MAX_TITLE_CHARS]
