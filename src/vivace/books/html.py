"""The paragraphs of an XHTML page, and where its anchors are. Nothing in it is fetched or run."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from vivace.books.book import Paragraph

BLOCKS = {
    *("address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd", "div"),
    *("dl", "dt", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6"),
    *("header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "td", "th", "tr"),
    "ul",
}
INLINE_BREAKS = {"br", "td", "th"}
HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
SILENT = {"head", "script", "style", "svg", "math", "rt", "rp", "template", "audio", "video"}
VOID = {"br", "hr", "img", "input", "link", "meta", "col", "area", "base", "source", "wbr"}
NOTES = {"pagebreak", "noteref", "doc-pagebreak", "doc-noteref"}  # numbers, in the middle of words


class Page(HTMLParser):
    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.paragraphs: list[Paragraph] = []
        self.anchors: dict[str, int] = {}  # ids, by the paragraph that comes next
        self.links: list[tuple[str, str]] = []  # of a table of contents: address and words
        self._words: list[str] = []
        self._silent = ""  # the open tag whose content is not read
        self._depth = 0  # of tags of that name inside each other
        self._is_heading = False
        self._address: str | None = None
        self._link_words: list[str] = []
        self.feed(content)
        self.close()
        self._end_paragraph()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fields = {name: value or "" for name, value in attrs}
        if tag in BLOCKS and not self._silent:
            if tag in INLINE_BREAKS:
                self._words.append(" ")
            else:
                self._end_paragraph()
                self._is_heading = tag in HEADINGS
        for name in (fields.get("id"), fields.get("name") if tag == "a" else None):
            if name:
                self.anchors.setdefault(name, len(self.paragraphs))
        kinds = {*fields.get("epub:type", "").split(), *fields.get("role", "").split()}
        is_silent = tag not in VOID and bool(tag in SILENT or kinds & NOTES)
        if tag == self._silent or (is_silent and not self._silent):
            self._silent, self._depth = tag, self._depth + 1
        if tag == "a" and "href" in fields:
            self._address, self._link_words = fields["href"], []

    def handle_endtag(self, tag: str) -> None:
        if self._silent:
            self._depth -= tag == self._silent
            self._silent = self._silent if self._depth else ""
            return
        if tag == "a" and self._address is not None:
            self.links.append((self._address, " ".join("".join(self._link_words).split())))
            self._address = None
        if tag in BLOCKS - INLINE_BREAKS:
            self._end_paragraph()

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self._words.append(data)
            self._link_words.append(data)

    def _end_paragraph(self) -> None:
        words = re.sub(r"\s+", " ", "".join(self._words)).strip()
        self._words = []
        if words:
            self.paragraphs.append(Paragraph(words, is_heading=self._is_heading))
        self._is_heading = False
