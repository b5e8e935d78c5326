"""Names of HTML elements: a tag with another name is text, such as `<username>`."""

from __future__ import annotations

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
