"""A book: chapters of paragraphs, and what is known about it; opened by its file's ending."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from vivace.disk import why_not_regular
from vivace.errors import RequestError
from vivace.text.letters import is_speakable

MAX_FILE_BYTES = 256 * 2**20
MAX_TITLE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str
    is_heading: bool = False


@dataclass(frozen=True, slots=True)
class Chapter:
    title: str
    paragraphs: tuple[Paragraph, ...]

    @property
    def num_chars(self) -> int:
        return sum(len(each.text) for each in self.paragraphs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    title: str
    chapters: tuple[Chapter, ...]
    author: str | None = None
    cover: bytes | None = None  # an image file
    is_markdown: bool = False  # its marks have to be taken out

    @property
    def num_chars(self) -> int:
        return sum(chapter.num_chars for chapter in self.chapters)


def open_book(path: str | os.PathLike[str]) -> Book:
    """Read a .txt, .md or .epub; what cannot be read aloud is a RequestError."""
    path = Path(path)
    if reason := why_not_regular(path):
        raise RequestError(f"{path}: {reason}")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise RequestError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        book = _read(path)
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror or error}") from error
    chapters = join_silent(book.chapters)
    if not chapters:
        raise RequestError(f"{path} has no words in it; there is nothing to read")
    return replace(book, title=tidy_title(book.title) or path.stem, chapters=chapters)


def _read(path: Path) -> Book:
    from vivace.books import epub, text

    kind = path.suffix.lower()
    if kind == ".epub":
        return epub.read_epub(path)
    if kind in (".md", ".markdown"):
        return text.read_markdown(text.decode(path), path.stem)
    if kind in (".txt", ".text", ""):
        return text.read_plain(text.decode(path), path.stem)
    raise RequestError(f"{path.name} is no book that can be read; try .txt, .md or .epub")


def join_silent(chapters: tuple[Chapter, ...]) -> tuple[Chapter, ...]:
    """Chapters with words in them; one of headings alone begins the next, as `Part Two`."""
    joined: list[Chapter] = []
    waiting: tuple[Paragraph, ...] = ()
    for chapter in chapters:
        spoken = tuple(each for each in chapter.paragraphs if is_speakable(each.text))
        if all(each.is_heading for each in spoken):
            waiting += spoken
            continue
        title = tidy_title(chapter.title) or f"Chapter {len(joined) + 1}"
        joined.append(Chapter(title, waiting + chapter.paragraphs))  # `* * *` is a silence
        waiting = ()
    if waiting:
        joined.append(Chapter(tidy_title(waiting[0].text), waiting))
    return tuple(joined)


def tidy_title(title: str) -> str:
    return re.sub(r"\s+", " ", title).strip()[:MAX_TITLE_CHARS]
