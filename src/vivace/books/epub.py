"""Reads EPUB: pages in spine order, chapters from the table of contents.

No file is unpacked to disk: names in the book are looked up in its archive only. Sizes are limited
while reading. Entity declarations and DRM are rejected.
"""

from __future__ import annotations

import posixpath
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from vivace.books.book import Book, Chapter, Paragraph
from vivace.books.count import LeftOutText, count_letters
from vivace.books.decode import decode_page
from vivace.books.html import count_page, read_page
from vivace.books.page import NAVIGATION, Page
from vivace.errors import RequestError

MAX_PAGE_BYTES = 16 * 2**20
MAX_COVER_BYTES = 16 * 2**20
MAX_TOTAL_BYTES = 128 * 2**20  # of all files that are read
MAX_ENTRIES = 20_000
FONT_OBFUSCATION = {  # algorithms that do not encrypt text
    "http://www.idpf.org/2008/embedding",
    "http://ns.adobe.com/pdf/enc#RC",
}
PAGE_KINDS = {
    "application/xhtml+xml",
    "text/html",
    "application/x-dtbook+xml",
    "text/x-oeb1-document",
}
Xml = ElementTree.Element
Location = tuple[str, str]  # a page and an anchor in the page, or ""


def read_epub(path: Path) -> Book:
    try:
        with zipfile.ZipFile(path) as archive:
            return _Epub(path, archive).read()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise RequestError(f"{path}: not an EPUB, or damaged: {error}") from error


@dataclass(frozen=True, slots=True)
class _Item:
    """A file in the manifest of the book."""

    name: str
    kind: str
    properties: frozenset[str]


class _Epub:
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path, self._archive = path, archive
        self._entries = {info.filename: info for info in archive.infolist()}
        self._num_bytes = 0
        self._pages: dict[str, Page] = {}  # cache
        self._left_out = LeftOutText()
        if len(archive.infolist()) > MAX_ENTRIES:
            raise self._error(f"has more than {MAX_ENTRIES:,} files")

    def read(self) -> Book:
        self._check_drm()
        container = self._xml("META-INF/container.xml")
        rootfile = container.find(".//{*}rootfile")
        if rootfile is None:
            raise self._error("META-INF/container.xml names no package document")
        base = _normal("", rootfile.get("full-path", ""))
        package = self._xml(base)
        items = self._items(package, base)
        title, author = (_words(package.find(f".//{{*}}{name}")) for name in ("title", "creator"))
        spine = self._spine(package, items)
        pages = {item.name: self._spoken_page(item) for item in spine}
        names = [item.name for item in spine]
        contents = self._contents(package, items)
        chapters = _split(
            title or self._path.stem, [(name, pages[name]) for name in names], contents
        )
        self._count_others(items, pages)
        return Book(
            title=title or self._path.stem,
            author=author or None,
            cover=self._cover(package, items),
            chapters=tuple(chapters),
            num_letters=sum(
                count_letters(each.text) for name in names for each in pages[name].paragraphs
            ),
            left_out=dict(self._left_out.num_words),
        )

    # -- archive ---------------------------------------------------------------------------------

    def _error(self, reason: str) -> RequestError:
        return RequestError(f"{self._path}: cannot be read: {reason}")

    def _bytes(self, name: str, most: int | None = None) -> bytes:
        most = most or MAX_PAGE_BYTES
        info = self._entries.get(name)
        if info is None:
            raise self._error(f"the file {name[:200]!r} is missing in the EPUB")
        if info.flag_bits & 1:
            raise self._error("the EPUB is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # Other methods are not allowed in EPUB, and zipfile does not limit their memory.
            raise self._error(f"unsupported compression of {name[:200]!r}")
        with self._archive.open(info) as file:
            content = file.read(most + 1)
        self._num_bytes += len(content)
        if len(content) > most or self._num_bytes > MAX_TOTAL_BYTES:
            raise self._error(f"the unpacked size exceeds the limit ({name[:200]!r})")
        return content

    def _text(self, name: str) -> str:
        try:
            return decode_page(self._bytes(name))
        except UnicodeDecodeError as error:
            raise self._error(f"the file {name[:200]!r} is not UTF-8") from error

    def _xml(self, name: str) -> Xml:
        text = self._text(name)
        if "<!ENTITY" in text.upper():
            raise self._error(f"the file {name[:200]!r} declares entities")
        try:
            return ElementTree.fromstring(text)
        except (ElementTree.ParseError, ValueError, RecursionError) as error:
            raise self._error(f"the file {name[:200]!r} is damaged: {error}") from error

    def _check_drm(self) -> None:
        if "META-INF/encryption.xml" not in self._entries:
            return
        root = self._xml("META-INF/encryption.xml")
        methods = [each.get("Algorithm", "") for each in root.findall(".//{*}EncryptionMethod")]
        num_encrypted = len(root.findall(".//{*}EncryptedData"))
        if not set(methods) <= FONT_OBFUSCATION or num_encrypted > len(methods):
            raise self._error("the EPUB is protected by DRM")

    # -- package ---------------------------------------------------------------------------------

    def _items(self, package: Xml, base: str) -> dict[str, _Item]:
        return {
            item.get("id", ""): _Item(
                _normal(base, item.get("href", "")),
                item.get("media-type", ""),
                frozenset(item.get("properties", "").split()),
            )
            for item in package.findall(".//{*}item")
        }

    def _cover(self, package: Xml, items: dict[str, _Item]) -> bytes | None:
        named = {each.get("content") for each in package.findall(".//{*}meta[@name='cover']")}
        for key, item in items.items():
            is_cover = "cover-image" in item.properties or key in named
            if is_cover and item.kind in ("image/jpeg", "image/png") and item.name in self._entries:
                return self._bytes(item.name, MAX_COVER_BYTES)
        return None

    def _spine(self, package: Xml, items: dict[str, _Item]) -> list[_Item]:
        """The pages in reading order, without images."""
        references = [
            each for each in package.findall(".//{*}itemref") if each.get("linear") != "no"
        ]
        found = [items[key] for each in references if (key := each.get("idref", "")) in items]
        pages = [item for item in found if not item.kind.startswith("image/")]
        if not pages:
            raise self._error("the spine has no pages")
        return pages

    # -- pages -----------------------------------------------------------------------------------

    def _page(self, name: str) -> Page:
        if name not in self._pages:
            self._pages[name] = read_page(self._text(name), f"{self._path}, page {name[:200]!r}")
        return self._pages[name]

    def _spoken_page(self, item: _Item) -> Page:
        """A page in reading order. A page with only a table of contents is left out."""
        page = self._page(item.name)
        is_contents = "nav" in item.properties
        if is_contents and all(each.is_heading for each in page.paragraphs):
            self._left_out.add(NAVIGATION, "\n".join(each.text for each in page.paragraphs))
            page = Page(left_out=page.left_out, links=page.links)
        self._left_out.update(page.left_out)
        return page

    def _count_others(self, items: dict[str, _Item], pages: dict[str, Page]) -> None:
        """Count the words of pages outside the reading order. Damaged pages are ignored."""
        for item in items.values():
            is_page = item.kind in PAGE_KINDS and "nav" not in item.properties
            if is_page and item.name not in pages and item.name in self._entries:
                try:
                    self._left_out.update(count_page(self._text(item.name)))
                except RequestError:
                    continue

    def _contents(self, package: Xml, items: dict[str, _Item]) -> list[tuple[Location, str]]:
        """The table of contents: the navigation page of EPUB 3, or the NCX of EPUB 2."""
        for item in items.values():
            if "nav" in item.properties and item.name in self._entries:
                links = self._page(item.name).links
                chosen = [link for link in links if link.is_contents] or links
                return [
                    (_locate(item.name, link.address), link.text) for link in chosen if link.text
                ]
        spine = package.find(".//{*}spine")
        ncx = items.get(spine.get("toc", "") if spine is not None else "")
        ncx = ncx or next((i for i in items.values() if i.kind == "application/x-dtbncx+xml"), None)
        if ncx is None or ncx.name not in self._entries:
            return []
        return list(_points(self._xml(ncx.name), ncx.name))


def _points(ncx: Xml, base: str) -> Iterator[tuple[Location, str]]:
    for point in ncx.findall(".//{*}navPoint"):
        content, words = point.find("{*}content"), _words(point.find("{*}navLabel"))
        if content is not None and words:
            yield _locate(base, content.get("src", "")), words


def _split(
    title: str, pages: list[tuple[str, Page]], contents: list[tuple[Location, str]]
) -> list[Chapter]:
    """Split at the entries of the table of contents. Without entries, every page is a chapter."""
    titles: dict[str, list[tuple[str, str]]] = {}  # by page: anchors and chapter titles
    for (name, anchor), words in contents:
        titles.setdefault(name, []).append((anchor, words))
    chapters: list[tuple[str, list[Paragraph]]] = [(title, [])]
    for name, page in pages:
        starts = sorted(
            (page.anchors.get(anchor, 0) if anchor else 0, order, words)
            for order, (anchor, words) in enumerate(titles.get(name, []))
        )
        if not titles:
            first = next((each.text for each in page.paragraphs if each.is_heading), "")
            starts = [(0, 0, first)]
        done = 0
        for start, _, words in starts:
            chapters[-1][1].extend(page.paragraphs[done:start])
            chapters.append((words, []))
            done = start
        chapters[-1][1].extend(page.paragraphs[done:])
    return [Chapter(words, tuple(paragraphs)) for words, paragraphs in chapters]


def _locate(base: str, href: str) -> Location:
    try:
        parts = urlsplit(href)
    except ValueError:
        return "", ""
    return _normal(base, parts.path) if parts.path else base, unquote(parts.fragment)


def _normal(base: str, href: str) -> str:
    """Resolve `href` in the file `base` to a name in the archive; empty if it leads outside."""
    name = posixpath.normpath(posixpath.join(posixpath.dirname(base), unquote(href)))
    return "" if name.startswith(("/", "..")) else name


def _words(element: Xml | None) -> str:
    return "" if element is None else " ".join("".join(element.itertext()).split())
