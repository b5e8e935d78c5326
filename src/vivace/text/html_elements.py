"""HTML tags. A tag whose element has another name is text, such as `<username>`."""

from __future__ import annotations

import re

INLINE_ELEMENTS = frozenset(
    (
        *("a", "abbr", "b", "big", "cite", "code", "del", "dfn", "em", "font", "i", "img", "ins"),
        *("kbd", "mark", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup"),
        *("tt", "u", "var", "wbr"),
    )
)
BLOCK_ELEMENTS = frozenset(
    (
        *("blockquote", "br", "center", "dd", "details", "div", "dl", "dt", "figcaption"),
        *("figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "picture", "pre"),
        *("rp", "rt", "ruby", "section", "source", "summary", "table", "tbody", "td", "tfoot"),
        *("th", "thead", "tr", "ul"),
    )
)

_VALUE = r"\"[^\"<>\n]*\"|'[^'<>\n]*'|[^\s\"'<>=]+"
_ATTRIBUTES = rf"(?:\s{{1,3}}[a-z][a-z:-]{{0,40}}=(?:{_VALUE})){{0,20}}"
# `<a and b>` is text: an attribute has a value.
TAG = re.compile(rf"</?([a-z][a-z0-9]*){_ATTRIBUTES}\s?/?>", re.IGNORECASE)


def drop_tag(tag: re.Match[str]) -> str:
    """The replacement of a match of `TAG`."""
    name = tag[1].lower()
    return " " if name in BLOCK_ELEMENTS else "" if name in INLINE_ELEMENTS else tag[0]
