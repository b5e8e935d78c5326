"""Tests of reading EPUB 2 and 3, and of rejecting bombs, DRM, unsafe paths and entities."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.books.test_html import MAX_GROWTH, growth
from vivace.books import epub
from vivace.books.book import Book, Chapter, Paragraph
from vivace.books.open import join_silent, open_book
from vivace.books.page import PageBuilder
from vivace.errors import RequestError

CONTAINER = '<container><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>'
JPEG = b"\xff\xd8\xff\xe0cover"
PACKAGE = """<?xml version="1.0"?>
<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">
<metadata><dc:title>The &amp; Book</dc:title><dc:creator>An Author</dc:creator>
<meta name="cover" content="pic"/></metadata>
<manifest>
<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" {nav}/>
<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>
<item id="pic" href="img/c.jpg" media-type="image/jpeg"/>
<item id="cover" href="cover.xhtml" media-type="application/xhtml+xml"/>
<item id="a" href="text/a%20b.xhtml" media-type="application/xhtml+xml"/>
<item id="b" href="text/b.xhtml" media-type="application/xhtml+xml"/>
<item id="c" href="text/c.xhtml" media-type="application/xhtml+xml"/>
<item id="n" href="text/notes.xhtml" media-type="application/xhtml+xml"/>
</manifest>
<spine toc="ncx"><itemref idref="cover"/><itemref idref="nav"/><itemref idref="a"/>
<itemref idref="b"/><itemref idref="c"/><itemref idref="n" linear="no"/></spine></package>"""
NAV = """<html xmlns:epub="x"><body><nav epub:type="toc"><ol>
<li><a href="text/a%20b.xhtml">First <i>one</i></a></li>
<li><a href="text/b.xhtml#two">Second</a><ol><li><a href="text/b.xhtml#three">Third</a></li></ol>
</li></ol></nav><nav epub:type="page-list"><a href="text/c.xhtml">77</a></nav></body></html>"""
NCX = """<!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "http://example.invalid/ncx.dtd">
<ncx><navMap><navPoint><navLabel><text>Eins</text></navLabel><content src="text/a%20b.xhtml"/>
<navPoint><navLabel><text>Zwei</text></navLabel><content src="text/b.xhtml#two"/></navPoint>
</navPoint></navMap></ncx>"""
FILES: dict[str, str | bytes] = {
    "META-INF/container.xml": CONTAINER,
    "OPS/nav.xhtml": NAV,
    "OPS/toc.ncx": NCX,
    "OPS/img/c.jpg": JPEG,
    "OPS/cover.xhtml": "<html><head><title>Cover</title></head><body><img src='c'/></body></html>",
    "OPS/text/a b.xhtml": (
        "<html><head><style>p {}</style></head><body><h1>First one</h1><p>Caf&eacute;&nbsp;is"
        "<a epub:type='noteref' href='#n'>1</a> open.<br/>Now.</p><script>no()</script></body>"
    ),
    "OPS/text/b.xhtml": (
        "<html><body><p>Still first.</p><h2 id='two'>Second</h2><p>Two <b>bold</b>.</p>"
        "<div><a id='three'></a><h3>Third</h3>Three<span epub:type='pagebreak'>12</span>.</div>"
        "</body></html>"
    ),
    "OPS/text/c.xhtml": "<html><body><p>Still third.</p></body></html>",
    "OPS/text/notes.xhtml": "<html><body><p>Not read.</p></body></html>",
}


def write_epub(folder: Path, changes: Mapping[str, str | bytes | None] | None = None) -> Path:
    path = folder / "book.epub"
    files: dict[str, str | bytes | None] = {
        "OPS/book.opf": PACKAGE.format(nav='properties="nav"'),
        **FILES,
        **(changes or {}),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            if content is not None:
                archive.writestr(name, content)
    return path


def outline(book: Book) -> list[tuple[str, list[str]]]:
    return [(each.title, [part.text for part in each.paragraphs]) for each in book.chapters]


FIRST = ["First one", "Café is open.", "Now.", "Still first."]


def test_epub_3_chapters_follow_navigation_page(tmp_path: Path) -> None:
    book = open_book(write_epub(tmp_path))
    assert (book.title, book.author, book.cover) == ("The & Book", "An Author", JPEG)
    assert outline(book) == [
        ("First one", FIRST),
        ("Second", ["Second", "Two bold."]),
        ("Third", ["Third", "Three.", "Still third."]),
    ]


def test_navigation_with_further_attributes_is_found(tmp_path: Path) -> None:
    single = NAV.replace('epub:type="toc"', "id='x' epub:type='bodymatter toc' class=\"c\"")
    book = open_book(write_epub(tmp_path, {"OPS/nav.xhtml": single}))
    assert [each.title for each in book.chapters] == ["First one", "Second", "Third"]


def test_nested_or_unclosed_silent_elements_hide_no_text(tmp_path: Path) -> None:
    page = "<p>One</p><svg><svg><text>no</text></svg>no</svg><p>Two<script>no<p>no</p></script></p>"
    book = open_book(write_epub(tmp_path, {"OPS/text/c.xhtml": f"{page}<p>Three</p><style>no"}))
    words = [each.text for each in book.chapters[-1].paragraphs]
    assert words[-3:] == ["One", "Two", "Three"]


def test_epub_2_chapters_follow_ncx(tmp_path: Path) -> None:
    changes = {"OPS/book.opf": PACKAGE.format(nav=""), "OPS/nav.xhtml": "<html/>"}
    book = open_book(write_epub(tmp_path, changes))
    rest = ["Second", "Two bold.", "Third", "Three.", "Still third."]
    assert outline(book) == [("Eins", FIRST), ("Zwei", rest)]


def test_epub_without_contents_has_one_chapter_per_page(tmp_path: Path) -> None:
    changes = {"OPS/book.opf": PACKAGE.format(nav=""), "OPS/nav.xhtml": None, "OPS/toc.ncx": None}
    package = str(changes["OPS/book.opf"]).replace('<itemref idref="nav"/>', "")
    book = open_book(write_epub(tmp_path, {**changes, "OPS/book.opf": package}))
    assert [each.title for each in book.chapters] == ["First one", "Second", "Chapter 3"]


ENCRYPTED = (
    '<encryption><EncryptedData><EncryptionMethod Algorithm="{}"/>'
    '<CipherReference URI="OPS/text/b.xhtml"/></EncryptedData></encryption>'
)
ENTITY = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
LAUGHS = (
    '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><package><metadata>&b;</metadata></package>'
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"META-INF/encryption.xml": ENCRYPTED.format("http://www.w3.org/aes128")}, "DRM"),
        ({"META-INF/encryption.xml": "<encryption><EncryptedData/></encryption>"}, "DRM"),
        ({"META-INF/container.xml": None}, "is missing in the EPUB"),
        ({"META-INF/container.xml": "<container/>"}, "no package"),
        ({"META-INF/container.xml": "<container>"}, "damaged"),
        ({"META-INF/container.xml": ENTITY + CONTAINER}, "entities"),
        ({"META-INF/container.xml": (ENTITY + CONTAINER).encode("utf-16")}, "entities"),
        ({"META-INF/container.xml": CONTAINER.replace("OPS/book", "../../book")}, "is missing"),
        (
            {"META-INF/container.xml": CONTAINER.replace("OPS/book.opf", "/etc/passwd")},
            "is missing",
        ),
        ({"OPS/book.opf": LAUGHS}, "entities"),
        ({"OPS/book.opf": "<package/>"}, "spine"),
        ({"OPS/text/b.xhtml": None}, "the file 'OPS/text/b.xhtml' is missing"),
        ({"OPS/text/b.xhtml": b"\xff\xff"}, "not UTF-8"),
        ({name: "<html/>" for name in FILES if "/text/" in name}, "no words"),
    ],
)
def test_invalid_epub_raises_error_with_reason(
    tmp_path: Path, changes: dict[str, str | bytes | None], words: str
) -> None:
    path = write_epub(tmp_path, changes)
    with pytest.raises(RequestError, match=words):
        open_book(path)


def test_obfuscated_fonts_are_accepted(tmp_path: Path) -> None:
    fonts = ENCRYPTED.format("http://www.idpf.org/2008/embedding")
    assert open_book(write_epub(tmp_path, {"META-INF/encryption.xml": fonts})).chapters


@pytest.mark.parametrize(("name", "limit"), [("MAX_PAGE_BYTES", 1_900), ("MAX_TOTAL_BYTES", 5_000)])
def test_epub_over_size_limit_raises_request_error(
    tmp_path: Path, name: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = [name for name in FILES if "/text/" in name]
    path = write_epub(tmp_path, dict.fromkeys(pages, b"<p>" + b"a" * 2_000))
    assert open_book(path).chapters  # control: accepted with the default limit
    monkeypatch.setattr(epub, name, limit)
    with pytest.raises(RequestError, match="the unpacked size exceeds the limit"):
        open_book(path)


def test_page_over_16_mib_raises_request_error(tmp_path: Path) -> None:
    path = write_epub(tmp_path, {"OPS/text/c.xhtml": bytes(epub.MAX_PAGE_BYTES + 1)})
    assert path.stat().st_size < 100_000
    with pytest.raises(RequestError, match="the unpacked size exceeds the limit"):
        open_book(path)


def test_wrong_size_in_zip_header_raises_request_error(tmp_path: Path) -> None:
    """The header declares 10 bytes, but more are read."""
    path = write_epub(tmp_path, {"OPS/text/c.xhtml": b"<p>" + b"word " * 1_000_000})
    content = bytearray(path.read_bytes())
    real = struct.pack("<I", 5_000_003)
    assert content.count(real) == 2
    path.write_bytes(bytes(content).replace(real, struct.pack("<I", 10)))
    with pytest.raises(RequestError, match=r"damaged|not an EPUB"):
        open_book(path)


def test_unsupported_compression_raises_request_error(tmp_path: Path) -> None:
    path = tmp_path / "book.epub"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("META-INF/container.xml", CONTAINER)
    with pytest.raises(RequestError, match="unsupported compression of 'META-INF"):
        open_book(path)


@pytest.mark.parametrize("num_bytes", [0, 10, 200, 900])
def test_truncated_epub_raises_request_error(tmp_path: Path, num_bytes: int) -> None:
    path = write_epub(tmp_path)
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(RequestError, match="not an EPUB"):
        open_book(path)


# -- pages -------------------------------------------------------------------------------------


def test_words_outside_reading_order_and_in_contents_are_counted(tmp_path: Path) -> None:
    page = FILES["OPS/text/notes.xhtml"]
    book = open_book(write_epub(tmp_path, {"OPS/text/notes.xhtml": page}))
    assert dict(book.left_out) == {
        "tables of contents": 5,
        "note marks": 1,
        "page numbers": 1,
        "outside the reading order": 2,
    }


def test_text_beside_contents_is_spoken(tmp_path: Path) -> None:
    nav = NAV.replace("<body>", "<body><h1>Title</h1><p>For my reader.</p>")
    book = open_book(write_epub(tmp_path, {"OPS/nav.xhtml": nav}))
    assert outline(book)[0] == ("The & Book", ["Title", "For my reader."])


def test_image_in_spine_is_skipped(tmp_path: Path) -> None:
    package = PACKAGE.format(nav='properties="nav"').replace('idref="cover"', 'idref="pic"')
    assert outline(open_book(write_epub(tmp_path, {"OPS/book.opf": package})))[0][1] == FIRST


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<p>a <ruby>b<rt>c</p><p>d</p>", ["a b c", "d"]),
        (b"<p>a<a epub:type='noteref'>1 b</p><p>c</p>", ["a 1 b", "c"]),
        (b"<html><head><p>a</p>", ["a"]),
        (b"<p><![CDATA[a]]> b</p>", ["a b"]),
        ("<html><body><p>Größe</p></body></html>".encode("utf-16-le"), ["Größe"]),
        ('<?xml version="1.0" encoding="utf-16"?><p>Größe</p>'.encode(), ["Größe"]),
    ],
)
def test_damaged_page_in_epub_loses_no_text(
    tmp_path: Path, content: bytes, words: list[str]
) -> None:
    book = open_book(write_epub(tmp_path, {"OPS/text/c.xhtml": content}))
    assert outline(book)[-1][1][2:] == words


def test_error_names_page_that_loses_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_epub(tmp_path)
    data = PageBuilder.data
    monkeypatch.setattr(PageBuilder, "data", lambda self, text: data(self, text.replace("Two", "")))
    with pytest.raises(RequestError, match=r"page 'OPS/text/b.xhtml': .* difference is at 'Two'"):
        open_book(path)


def test_chapters_that_lose_paragraph_raise_request_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_epub(tmp_path)
    split = epub._split
    monkeypatch.setattr(epub, "_split", lambda *arguments: split(*arguments)[:-1])
    with pytest.raises(RequestError, match="the chapters have"):
        open_book(path)


def nested_points(num_points: int) -> str:
    """Nested points of an NCX without targets."""
    start = "<navPoint><navLabel><text>x</text></navLabel>" * num_points
    return f"<ncx><navMap>{start}{'</navPoint>' * num_points}</navMap></ncx>"


def test_nested_contents_run_time_is_linear() -> None:
    def read(source: str) -> None:
        list(epub._points(ElementTree.fromstring(nested_points(len(source))), "toc.ncx"))

    assert growth(read, "x", 2_000) < MAX_GROWTH


def test_join_silent_run_time_is_linear() -> None:
    def join(source: str) -> None:
        chapter = Chapter("x", (Paragraph("x", is_heading=True),))
        join_silent((chapter,) * len(source))

    assert growth(join, "x", 10_000) < MAX_GROWTH
