"""Reads an XHTML or HTML page: paragraphs, anchors and links. Nothing in it is fetched or run.

lxml parses the page as XML. A page that is not well-formed is repaired and parsed as HTML; elements
that are not closed then cannot hide more than their own kind of text. The letters of the source are
counted by another path (`markup`), and a page of which any are lost is refused.
"""

from __future__ import annotations

from typing import Any

from vivace.books.count import LeftOut, check_letters
from vivace.books.markup import prepare, repair, scan
from vivace.books.page import Page, PageBuilder
from vivace.errors import RequestError

INSTALL = "pip install 'vivace[books]'"


def read_page(source: str, where: str) -> Page:
    """Read a decoded page; a RequestError names `where` if any of its text would be lost."""
    try:
        source = prepare(source)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from error
    page, is_well_formed = _parse_xml(source), True
    if page is None:
        page, is_well_formed = _parse_html(source), False
    text = source_text(source, is_well_formed=is_well_formed)
    parts = [each.text for each in page.paragraphs]
    check_letters(where, text, parts, page.left_out.num_letters)
    return page


def source_text(source: str, *, is_well_formed: bool) -> str:
    """All text of a prepared page, a space for every tag; no parser is involved."""
    tokens = scan(source, is_well_formed=is_well_formed)
    return "".join(token.source if token.kind == "text" else " " for token in tokens)


def count_page(source: str) -> LeftOut:
    """The text of a page that is not read at all."""
    left_out = LeftOut()
    left_out.add("outside the reading order", source_text(source, is_well_formed=False))
    return left_out


def _parse_xml(source: str) -> Page | None:
    """None if the page is not well-formed, or nested deeper than libxml2 allows."""
    etree = _import_lxml()
    builder = PageBuilder(is_well_formed=True)
    parser = etree.XMLParser(
        target=builder,
        encoding="utf-8",
        resolve_entities=False,
        load_dtd=False,
        no_network=True,
        huge_tree=False,
    )
    try:
        page: Page = etree.fromstring(source.encode(), parser)
    except etree.XMLSyntaxError:
        return None
    # With a target, lxml ignores what follows the root element if a prefix was not declared.
    return None if len(parser.error_log) else page


def _parse_html(source: str) -> Page:
    etree = _import_lxml()
    repaired = repair(source)
    builder = PageBuilder(is_well_formed=False, num_open=repaired.num_open)
    parser = etree.HTMLParser(target=builder, encoding="utf-8", no_network=True, huge_tree=True)
    content = f"<html><body>{repaired.source}</body></html>".encode()
    page: Page = etree.fromstring(content, parser)
    return page


def _import_lxml() -> Any:
    try:
        from lxml import etree
    except ImportError as error:
        raise RequestError(f"reading EPUB and HTML needs lxml: {INSTALL}") from error
    return etree
