"""Scans the source of a page into text and tags without a parser.

The scanner counts text independently of the parser, and rewrites a page that is not well-formed so
that an HTML parser loses no text. Scans are linear in the length of the page: a failed search is
not repeated.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vivace.errors import RequestError

MAX_ENTITY_CHARS = 1_000
MAX_ADDED_CHARS = 2**24  # by entities that a page declares
KEPT = {"amp", "lt", "gt", "quot", "apos"}
RAW = ("script", "style", "title")  # not part of the text of a page
SWALLOWING = ("iframe", "noembed", "noframes", "noscript", "plaintext", "textarea", "xmp")
VOID = {
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param"),
    *("source", "track", "wbr"),
}
BLOCKS = {
    *("address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details"),
    *("dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hgroup", "hr", "html", "legend", "li"),
    *("main", "menu", "nav", "ol", "optgroup", "option", "p", "pre", "search", "section"),
    *("summary", "table", "tbody", "tfoot", "thead", "tr", "ul"),
}
BARE_ATTRIBUTES = {  # attributes without a value; `<John Smith>` is text
    *("async", "autofocus", "autoplay", "checked", "compact", "controls", "default", "defer"),
    *("disabled", "hidden", "ismap", "itemscope", "loop", "multiple", "muted", "nohref", "noshade"),
    *("novalidate", "nowrap", "open", "readonly", "required", "reversed", "selected"),
}
_START = r"</?([A-Za-z][\w:.-]*)"
_NO_TAG_INSIDE = r"(?:[^{0}<]|<(?![A-Za-z/!?]))*"
_SIMPLE_TAG = re.compile(
    rf"""{_START}[^<>"']*(?:"{_NO_TAG_INSIDE.format('"')}"[^<>"']*|'{_NO_TAG_INSIDE.format("'")}'[^<>"']*)*>"""
)
_TAG_WITH_TAGS_IN_QUOTES = re.compile(
    rf"{_START}(?:\s{{1,9}}[\w:.-]{{1,80}}(?:\s{{0,9}}=\s{{0,9}}"
    r"""(?:"[^"]{0,400}"|'[^']{0,400}'|[^\s"'<>]{1,400}))?){1,32}\s{0,9}/?>"""
)
_BROKEN_TAG = re.compile(rf"{_START}[^<>]*>")  # with an odd number of quotes
_TAG_START = re.compile(r"<(?=[A-Za-z/!?])")
_ELEMENT_START = re.compile(r"<(?=[A-Za-z/])")
_REFERENCE = re.compile(
    r"&(#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{0,31}|[A-Za-z_][\w.-]{0,99});"
)
_PROLOGUE_START = re.compile(r"\s*(<\?|<!--|<!DOCTYPE\b)", re.IGNORECASE)
_DTD_TOKEN = re.compile(r"<!--|[\"'\[\]>]|<(?![!?])")
_ENTITY = re.compile(r"<!ENTITY\s+([\w.-]+)\s+(?:\"([^\"]*)\"|'([^']*)')\s*>")
_BOUNDED_DECLARATION = re.compile(
    r"<!(?:DOCTYPE|ENTITY|ELEMENT|ATTLIST|NOTATION)\b[^<>]*>?|<[!?][^<>]*>", re.IGNORECASE
)
_NAMED_REFERENCE = re.compile(r"&(?!(?:amp|lt|gt|quot|apos);)[A-Za-z_]")


@dataclass(frozen=True, slots=True)
class MarkupToken:
    kind: Literal["text", "tag"]
    source: str  # character references in text are resolved
    name: str = ""  # of a tag, in lower case, without prefix
    is_broken: bool = False  # unbalanced quotes in the attributes

    @property
    def is_end(self) -> bool:
        return self.source.startswith("</")

    @property
    def is_empty(self) -> bool:
        return self.source.endswith("/>")


def prepare(source: str) -> str:
    """Remove declarations and resolve all references except the five of XML.

    Raises RequestError for entities that are not short text: they could expand to any size.
    """
    doctype, end = _prologue(source)
    declared = _entities(doctype)
    source = source[end:]
    num_added = 0

    def resolve(reference: re.Match[str]) -> str:
        nonlocal num_added
        if reference[1] in KEPT:
            return reference[0]
        if reference[1] not in declared:
            return html.escape(html.unescape(reference[0]), quote=True)
        num_added += len(declared[reference[1]])
        if num_added > MAX_ADDED_CHARS:
            raise RequestError("the entities of the page expand to too much text")
        return html.escape(declared[reference[1]], quote=True)

    return _REFERENCE.sub(resolve, source)


def _prologue(source: str) -> tuple[str, int]:
    """The document type declaration, and the end of everything before the page.

    Stops at an unclosed comment, instruction or declaration, which the scanner handles.
    """
    doctype, position = "", 0
    while found := _PROLOGUE_START.match(source, position):
        start = found.end()
        if found[1] == "<?":
            end = _end_without(source, start, "?>", "<")
        elif found[1] == "<!--":
            end = _end_without(source, start, "-->", "<!--")
        else:
            end = _doctype_end(source, start)
            doctype = source[start:end] if end else ""
        if end is None:
            break
        position = end
    return doctype, position


def _end_without(source: str, start: int, mark: str, forbidden: str) -> int | None:
    """The position after the next `mark`; None if `forbidden` comes first."""
    end = source.find(mark, start)
    return None if end < 0 or source.find(forbidden, start, end) >= 0 else end + len(mark)


def _doctype_end(source: str, start: int) -> int | None:
    """The end of a document type declaration; None if it is not closed before the page starts."""
    is_inside = False  # in the internal subset
    while token := _DTD_TOKEN.search(source, start):
        end: int | None = token.end()
        if token[0] == "<!--":
            end = _end_without(source, token.end(), "-->", "<!--")
        elif token[0] in ('"', "'"):
            end = _end_without(source, token.end(), token[0], "<html" if is_inside else "<")
        elif token[0] in "[]":
            is_inside = token[0] == "["
        elif token[0] == "<":
            return None
        elif not is_inside:
            return end
        if end is None:
            return None
        start = end
    return None


def _entities(subset: str) -> dict[str, str]:
    found = {match[1]: match[2] or match[3] or "" for match in _ENTITY.finditer(subset)}
    is_plain = all(
        len(value) <= MAX_ENTITY_CHARS
        and not set(value) & {"<", "%"}
        and not _NAMED_REFERENCE.search(value)
        for value in found.values()
    )
    if len(found) < subset.upper().count("<!ENTITY") or not is_plain:
        raise RequestError("the page declares entities that are not short text")
    return {name: html.unescape(value) for name, value in found.items()}


def scan(source: str, *, is_well_formed: bool, has_raw: bool = True) -> Iterator[MarkupToken]:
    """Text and tags in order, without comments. `has_raw` also skips scripts, styles and titles.

    `is_well_formed` applies the rules of XML. Otherwise an unclosed comment, script or attribute
    ends at the next tag, so that it cannot hide the rest of the page.
    """
    return _Scanner(source, is_well_formed, RAW if has_raw else ()).scan()


class _Scanner:
    def __init__(self, source: str, is_well_formed: bool, raw: tuple[str, ...]) -> None:
        self._source, self._is_well_formed, self._raw = source, is_well_formed, raw
        self._absent: set[str] = set()  # marks that do not occur in the rest of the page
        self._found: dict[str, int] = {}  # last position of each mark

    def scan(self) -> Iterator[MarkupToken]:
        position, source = 0, self._source
        while found := _TAG_START.search(source, position):
            if text := source[position : found.start()]:
                yield MarkupToken("text", html.unescape(text))
            start = found.start()
            if source.startswith("<![CDATA[", start):
                position = self._end("]]>", start + 9) or start + 9
                if position > start + 9:
                    yield MarkupToken("text", source[start + 9 : position - 3])
            elif source[start + 1] in "!?":
                position = self._skip_comment(start)
            elif tag := self._tag(start):
                name = tag[1].rpartition(":")[2].lower()
                token = MarkupToken("tag", tag[0], name, is_broken=tag.re is _BROKEN_TAG)
                position = tag.end()
                if token.name in self._raw and not token.is_end and not token.is_empty:
                    position = self._skip_raw(token.name, position)
                else:
                    yield token
            else:
                yield MarkupToken("text", "<")
                position = start + 1
        if text := source[position:]:
            yield MarkupToken("text", html.unescape(text))

    def _tag(self, start: int) -> re.Match[str] | None:
        source = self._source
        if self._is_well_formed:
            return _SIMPLE_TAG.match(source, start)
        patterns = (_SIMPLE_TAG, _TAG_WITH_TAGS_IN_QUOTES, _BROKEN_TAG)
        found = next((tag for each in patterns if (tag := each.match(source, start))), None)
        if found is None:
            return None
        rest = source[found.end(1) : found.end() - 1]
        is_tag = "=" in rest or BARE_ATTRIBUTES.issuperset(rest.lower().strip("/ ").split())
        return found if is_tag else None

    def _end(self, mark: str, start: int) -> int | None:
        """The position after the next `mark`."""
        if mark in self._absent:
            return None
        if (found := self._found.get(mark, -1)) < start:
            found = self._found[mark] = self._source.find(mark, start)
        if found < 0:
            self._absent.add(mark)
            return None
        return found + len(mark)

    def _skip_comment(self, start: int) -> int:
        """The end of a comment, declaration or processing instruction."""
        if self._source.startswith("<!--", start):
            end = self._end("-->", start + 4) or start + 4
            is_nested = self._source.find("<!--", start + 4, end) >= 0
            return start + 4 if is_nested and not self._is_well_formed else end
        if self._is_well_formed:
            return self._end("?>", start + 2) or start + 2
        bounded = _BOUNDED_DECLARATION.match(self._source, start)
        return bounded.end() if bounded else start + 2

    def _skip_raw(self, name: str, start: int) -> int:
        """The end of an element whose content is not text.

        In a damaged page the end tag may be missing. Styles and titles then end at the next tag,
        because they contain no tags, and scripts at the next script.
        """
        tag = _ELEMENT_START.search(self._source, start)
        if self._is_well_formed or name == "script":
            tag = self._find_tag(name, start) or tag
        if tag is None:
            return len(self._source)
        own = re.compile(rf"</(?:[\w.-]+:)?{name}\b[^<>]*>?", re.IGNORECASE)
        end = own.match(self._source, tag.start())
        return end.end() if end else tag.start()

    def _find_tag(self, name: str, start: int) -> re.Match[str] | None:
        """The end tag of a raw element; None if it is missing or another start tag comes first."""
        if name in self._absent:
            return None
        slash = "/" if self._is_well_formed else "/?"
        pattern = re.compile(rf"<({slash})(?:[\w.-]+:)?{name}\b", re.IGNORECASE)
        found = pattern.search(self._source, start)
        if found is None:
            self._absent.add(name)
        return found if found and found[1] else None


@dataclass(frozen=True, slots=True)
class Repaired:
    """A page that was rewritten for an HTML parser."""

    source: str
    num_open: Counter[str]  # start tags without an end tag, by name


def repair(source: str) -> Repaired:
    """Rewrite a page so that every tag is complete and every other character is text.

    An empty XML element gets an end tag, because HTML would leave the element open. An end tag
    without a start tag is removed, because a parser would search all open elements for it.
    """
    parts: list[str] = []
    num_open: Counter[str] = Counter()
    for token in scan(source, is_well_formed=False):
        if token.kind == "text":
            parts.append(html.escape(token.source, quote=False))
            continue
        name, tag = token.name, token.source
        if name in SWALLOWING:
            name, tag = "div", "</div>" if token.is_end else "<div>"
        elif token.is_broken:
            tag = f"</{name}>" if token.is_end else f"<{name}>"
        if token.is_end:
            if num_open[name] <= 0:
                parts.append("<hr>" if name in BLOCKS else "")  # keeps blocks separate
                continue
            num_open[name] -= 1
        elif name not in VOID:
            if token.is_empty:
                tag += f"</{_full_name(token.source)}>"
            else:
                num_open[name] += 1
        parts.append(tag)
    return Repaired("".join(parts), +num_open)


def _full_name(tag: str) -> str:
    found = re.match(_START, tag)
    assert found is not None
    return found[1]
