"""Reads an XHTML or HTML page: paragraphs, anchors and links. No resources or scripts are loaded.

lxml parses the page as XML. A page that is not well-formed is repaired and parsed as HTML, so that
an unclosed element cannot hide the text after it. The module `markup` counts the letters of the
source independently; a page that would lose letters is rejected.
"""

from __future__ import annotations

from typing import Any

from vivace.books.count import LeftOutText, check_letters
from vivace.books.markup import prepare, repair, scan
from vivace.books.page import Page, PageBuilder
from vivace.errors import RequestError, install_command


def read_page(source: str, where: str) -> Page:
    """Parse a decoded page. Raise RequestError with `where` if any of its text would be lost."""
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
    """All text of a prepared page, with a space for every tag. Does not use a parser."""
    tokens = scan(source, is_well_formed=is_well_formed)
    return "".join(token.source if token.kind == "text" else " " for token in tokens)


def count_page(source: str) -> LeftOutText:
    """Count the text of a page outside the reading order."""
    left_out = LeftOutText()
    left_out.add("outside the reading order", source_text(source, is_well_formed=False))
    return left_out


def _parse_xml(source: str) -> Page | None:
    """Parse as XML. None if the page is not well-formed or nested too deeply for libxml2."""
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
    # With a target, lxml ignores content after the root element if a prefix is undeclared.
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
        raise RequestError(
            f"reading EPUB and HTML needs lxml; run: {install_command('books')}"
        ) from error
    return etree
