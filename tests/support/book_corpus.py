"""Generates pages with unusual markup, and the words of each page that must be spoken, in order.

Words to be spoken begin with `w`, words to be skipped with `x`. Every word occurs once.
"""

from __future__ import annotations

import itertools
import random
import re
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import ZipFile

WORD = re.compile(r"\bw[a-z]{4}\b")
CONTAINER = '<container><rootfiles><rootfile full-path="book.opf"/></rootfiles></container>'
XHTML = (
    '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops">'
    "<head><title>Not spoken</title><style>p {{ color: red }}</style></head><body>{}</body></html>"
)


@dataclass
class Words:
    """Unique words; `spoken` collects those that must reach the voice."""

    random: random.Random
    spoken: list[str] = field(default_factory=list)
    _names: itertools.product[tuple[str, ...]] = field(
        default_factory=lambda: itertools.product(string.ascii_lowercase, repeat=4)
    )

    def some(self, most: int = 6) -> str:
        words = [f"w{''.join(next(self._names))}" for _ in range(self.random.randint(1, most))]
        self.spoken += words
        return " ".join(words)

    def silent(self) -> str:
        return f"x{''.join(next(self._names))}"


def spoken_words(texts: list[str]) -> list[str]:
    return WORD.findall(" \n ".join(texts))


# -- HTML --------------------------------------------------------------------------------------


def html_inline(words: Words) -> str:
    draw = words.random.choice
    kinds: list[Callable[[], str]] = [
        lambda: f"<em>{words.some()}</em>",
        lambda: f"<b><i>{words.some()}</i></b>",
        lambda: f"<a href='#n'>{words.some()}</a>",
        lambda: f"<a epub:type='noteref' href='#n'>{words.some()}</a>",  # words, not a mark
        lambda: (
            f"{words.some()}<a epub:type='noteref' href='#n'>{draw(['1', '[12]', '*', 'iv'])}</a>"
        ),
        lambda: f"{words.some()}<span epub:type='pagebreak' title='9'>9</span>",
        lambda: f"<ruby>{words.some(1)}<rp>(</rp><rt>{words.silent()}</rt><rp>)</rp></ruby>",
        lambda: f"<![CDATA[{words.some()} < & ]]>",
        lambda: f"<!-- {words.silent()} > -->{words.some()}",
        lambda: f"{words.some()}&nbsp;&eacute;&#160;{words.some()}&unknown; {words.some()}",
        lambda: f"<a id='a{words.silent()}'/><span class='a > b'>{words.some()}</span>",
        lambda: f"<svg><title>{words.silent()}</title></svg>{words.some()}",
        lambda: f"{words.some()}<br/>{words.some()}",
    ]
    return " ".join([words.some(), draw(kinds)(), words.some()])


def html_block(words: Words) -> str:
    draw = words.random.choice
    inline = lambda: html_inline(words)  # noqa: E731
    kinds: list[Callable[[], str]] = [
        lambda: f"<p>{inline()}</p>",
        lambda: f"<h1>{words.some()}<br/>{words.some()}</h1><h2>{inline()}</h2>",
        lambda: (
            f"<ul><li>{inline()}</li><li><p>{inline()}</p><ol><li>{words.some()}</li></ol></li></ul>"
        ),
        lambda: f"<table><tr><th>{words.some(2)}</th><td><p>{words.some(2)}</p></td></tr></table>",
        lambda: f"<blockquote><div>{inline()}</div></blockquote>",
        lambda: f"<pre>{words.some()}\n{words.some()}</pre>",
        lambda: f"<script>{words.silent()}('<p>')</script><p>{inline()}</p>",
        lambda: f"{'<div>' * 300}{inline()}{'</div>' * 300}",
        lambda: f"<dl><dt>{words.some()}</dt><dd>{inline()}</dd></dl>",
    ]
    return draw(kinds)()


DAMAGES: list[Callable[[Words], str]] = [
    lambda words: f"<p><ruby>{words.some(1)}<rt>{words.some()}</p><p>{words.some()}</p>",
    lambda words: (
        f"<p>{words.some()}<a epub:type='noteref'>1 {words.some()}</p><p>{words.some()}</p>"
    ),
    lambda words: f"<head><p>{words.some()}</p>{words.some()}",
    lambda words: f"<p>{words.some()} <![CDATA[{words.some()}]]></b>",
    lambda words: f"<p>{words.some()}<!-- {words.some()} <p>{words.some()}</p>",
    lambda words: f'<p class="x>{words.some()}</p><p class="y">{words.some()}</p>',
    lambda words: f"<p>{words.some()} < {words.some()} & {words.some()} <{words.some()}",
    lambda words: f"<svg><text>{words.some()}<p>{words.some()}</p>",
    lambda words: f"<nav epub:type='toc'><a href='x'>{words.some()}</a><p>{words.some(30)}</p>",
    lambda words: f"<textarea>{words.some()}<p>{words.some()}",
    lambda words: f"<b><i><a><u>{words.some()}",
    lambda words: f"</p></div></body></html>{words.some()}",
    lambda words: (
        f"<ul><li>{words.some()}<li>{words.some()}<table><tr><td>{words.some()}<td>{words.some()}"
    ),
]
ENCODINGS: list[tuple[str, str]] = [  # declared, used
    ("utf-8", "utf-8"),
    ("iso-8859-1", "utf-8"),
    ("utf-8", "utf-16-le"),
    ("utf-16", "utf-8"),
    ("utf-8", "utf-16-be"),
    ("utf-8", "utf-8-sig"),
]


def html_page(seed: int) -> tuple[bytes, list[str]]:
    """Two of three pages are well-formed except for entities. The third is damaged."""
    words = Words(random.Random(seed))
    blocks = [html_block(words) for _ in range(words.random.randint(3, 12))]
    if seed % 3 == 2:
        blocks += [DAMAGES[seed // 3 % len(DAMAGES)](words), html_block(words)]
    declared, encoding = ENCODINGS[seed % len(ENCODINGS)]
    source = f'<?xml version="1.0" encoding="{declared}"?>{XHTML.format("".join(blocks))}'
    return source.encode(encoding), words.spoken


def damaged_page(seed: int) -> tuple[str, list[str]]:
    """A well-formed page without one of its tags, or without one character of its markup."""
    content, words = html_page(6 * seed)
    source, draw = content.decode(), random.Random(seed).choice
    pattern = draw([r"</?[a-z][^<>]*>", r"[<>\"'&;/\[\]!-]"])
    start, end = draw([found.span() for found in re.finditer(pattern, source)])
    return source[:start] + source[end:], words


def write_epub(path: Path, pages: list[bytes]) -> None:
    names = [f"p{number}.xhtml" for number in range(len(pages))]
    items = "".join(
        f'<item id="i{number}" href="{name}" media-type="application/xhtml+xml"/>'
        for number, name in enumerate(names)
    )
    spine = "".join(f'<itemref idref="i{number}"/>' for number in range(len(names)))
    with ZipFile(path, "w") as archive:
        archive.writestr("META-INF/container.xml", CONTAINER)
        package = f"<package><manifest>{items}</manifest><spine>{spine}</spine></package>"
        archive.writestr("book.opf", package)
        for name, page in zip(names, pages, strict=True):
            archive.writestr(name, page)


# -- markdown ----------------------------------------------------------------------------------


def markdown_inline(words: Words) -> str:
    draw = words.random.choice
    kinds: list[Callable[[], str]] = [
        lambda: f"**{words.some()}**",
        lambda: f"_{words.some()}_ ***{words.some()}*** ~~{words.some()}~~",
        lambda: (
            f"[{words.some()}](https://{words.silent()}.org/{words.silent()} '{words.silent()}')"
        ),
        lambda: f"[**{words.some()}**][{words.silent()}]",
        lambda: f"![{words.some()}]({words.silent()}.png)",
        lambda: f"`{words.some()}`",
        lambda: f"{words.some()}[^1] <b>{words.some()}</b> <span class='{words.silent()}'>z</span>",
        lambda: f"{words.some()} <!-- {words.silent()} --> {words.some()}",
        lambda: f"{words.some()} \\* 2 * 3 < 4 & {words.some()} | {words.some()} #{words.some(1)}",
        lambda: f"[{words.some()}] ({words.some()}) [{words.some()}",
    ]
    return " ".join([words.some(), draw(kinds)(), words.some()])


def markdown_block(words: Words) -> str:
    draw = words.random.choice
    inline = lambda: markdown_inline(words)  # noqa: E731
    kinds: list[Callable[[], str]] = [
        inline,
        lambda: f"{inline()}\n{inline()}",
        lambda: f"{draw(['#', '##', '###'])} {inline()} {draw(['', '##'])}",
        lambda: f"{words.some()}\n{draw(['---', '==='])}",
        lambda: f"- {inline()}\n  - {inline()}\n- [ ] {words.some()}\n  {words.some()}",
        lambda: f"1. {inline()}\n2. {inline()}\n\n   {words.some()}",
        lambda: f"> {inline()}\n>\n> {inline()}\n>> {words.some()}",
        lambda: (
            f"| {words.some()} | {words.some()} |\n|---|:-:|\n| {inline().replace('|', '/')} | |"
        ),
        lambda: f"{words.some()} | {words.some()}\n--- | ---\n{words.some()} | {words.some()}",
        lambda: f"{words.some()}  \n{words.some()}\\\n{words.some()}",
        lambda: f"```python\n# {words.silent()}\n```",
        lambda: f"<div align='center'>\n<p>{words.some()}</p>\n</div>",
        lambda: f"[{words.silent()}]: https://{words.silent()}.org",
        lambda: f"[^1]: {inline()}",
        lambda: f"* * *\n\n    {words.some()}",
    ]
    return draw(kinds)()


def markdown_page(seed: int) -> tuple[bytes, list[str]]:
    words = Words(random.Random(seed))
    start = f"---\ntitle: {words.silent()}\n---\n" if seed % 4 == 0 else ""
    blocks = [markdown_block(words) for _ in range(words.random.randint(3, 15))]
    return (start + "\n\n".join(blocks) + "\n").encode(), words.spoken
