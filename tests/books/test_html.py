"""Tests of reading HTML pages: blocks, text that is left out, damaged pages and run time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest

from vivace.books import page as page_module
from vivace.books.html import read_page
from vivace.books.page import PageBuilder
from vivace.errors import RequestError

XHTML = (
    '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops">'
    "<head><title>no</title></head><body>{}</body></html>"
)


def blocks(source: str) -> list[str]:
    return [each.text for each in read_page(source, "a page").paragraphs]


# -- blocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<h1>One</h1><p>Two</p>", ["One", "Two"]),
        ("<h1>Chapter 1<br/>The Garden</h1>", ["Chapter 1, The Garden"]),
        ("<ul><li>a</li><li>b<ol><li>c</li></ol></li></ul>", ["a", "b", "c"]),
        ("<table><tr><th>a</th><td>b</td></tr><tr><td>c</td></tr></table>", ["a, b", "c"]),
        ("<table><tr><td><p>a</p></td><td><p>b.</p></td><td>c</td></tr></table>", ["a, b. c"]),
        ("<p>Roses are red<br/>Violets are blue</p>", ["Roses are red", "Violets are blue"]),
        ("<p>so much<br/>depends</p>", ["so much depends"]),
        ("<pre>One\nTwo</pre>", ["One", "Two"]),
        ("<p>un<b>believ</b>able <i> x </i></p>", ["unbelievable x"]),
        ("<dl><dt>a</dt><dd>b</dd></dl>", ["a", "b"]),
        ("<div>a<p>b</p>c</div>", ["a", "b", "c"]),
    ],
)
def test_page_is_split_into_blocks(body: str, expected: list[str]) -> None:
    assert blocks(XHTML.format(body)) == expected
    assert blocks(f"{body}<br>") == expected  # not well-formed


def test_page_marks_headings_and_verse_lines() -> None:
    page = read_page(XHTML.format("<h2><div>One</div></h2><p>Two,<br/>three</p>"), "a page")
    kinds = [(each.text, each.is_heading, each.is_line) for each in page.paragraphs]
    assert kinds == [("One", True, False), ("Two,", False, True), ("three", False, False)]
    assert page.levels == {0: 2}


# -- text that is left out ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected", "left_out"),
    [
        ("<p>a<a epub:type='noteref'>[12]</a>.</p>", ["a."], {"note marks": 1}),
        ("<p>a<sup role='doc-noteref'>iv</sup>.</p>", ["a."], {"note marks": 1}),
        ("<p>a <a epub:type='noteref'>quick fox</a>.</p>", ["a quick fox."], {}),
        ("<p>a<span epub:type='pagebreak'>12</span> b</p>", ["a b"], {"page numbers": 1}),
        ("<div epub:type='pagebreak'>Page 12</div><p>b</p>", ["b"], {"page numbers": 2}),
        ("<div epub:type='pagebreak'>Many words here</div>", ["Many words here"], {}),
        ("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp></ruby>字", ["漢字"], {"ruby readings": 1}),
        ("<p><ruby><rt>alone</rt></ruby></p>", ["alone"], {}),
        (f"<p><ruby>a<rt>{'b ' * 40}</rt></ruby></p>", ["a " + "b " * 39 + "b"], {}),
        ("<p>a<svg><text>b</text></svg></p>", ["a"], {"pictures and formulas": 1}),
        ("<video><p>b</p></video><p>a</p>", ["a"], {"pictures and formulas": 1}),
        ("<nav epub:type='toc'><p><a href='x'>b</a></p></nav>", [], {"tables of contents": 1}),
        ("<nav epub:type='toc'>Four words <a href='x'>b</a></nav>", ["Four words b"], {}),
        ("<script>a</script><style>b</style><p>c<!-- d --><?e f?></p>", ["c"], {}),
    ],
)  # fmt: skip
def test_page_leaves_out_and_counts_marks(
    body: str, expected: list[str], left_out: dict[str, int]
) -> None:
    page = read_page(XHTML.format(body), "a page")
    assert [each.text for each in page.paragraphs] == expected
    assert dict(page.left_out.num_words) == left_out


# -- damaged pages -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<p>a <ruby>b<rt>c d</p><p>e</p>", ["a b c d", "e"]),
        ("<p>a<ruby>漢<rt>かん</ruby> b</p><p>c", ["a漢 b", "c"]),
        ("<p>a <a epub:type='noteref'>1 b</p><p>c</p>", ["a 1 b", "c"]),
        ("<head><title>no</title><p>a</p><p>b</p>", ["a", "b"]),
        ("<head>a <b>b", ["a b"]),
        ("<p>a <![CDATA[b < c]]></p>", ["a b < c"]),
        ("<p>a <![CDATA[b < c]]><br></p>", ["a b < c"]),
        ("<p>a <![CDATA[b<p>c", ["a b", "c"]),
        ("<p>a &nbsp;&foo; caf&eacute;&nbsp", ["a &foo; café"]),
        ("<p>a <!-- b <p>c", ["a b", "c"]),
        ("<p>a <!-- b <p>c <!-- no --> d", ["a b", "c d"]),
        ('<p class="x>a</p><p class="y">b</p>', ["a", "b"]),
        ("<p><img alt='no <b> no'>a<p>b", ["a", "b"]),
        ("<p>a <b and c> d <John Smith> e < f", ["a <b and c> d <John Smith> e < f"]),
        ("<script src='x'/><title/>a<p>b", ["a", "b"]),
        ("<style>no {}<p>a<script>no", ["a"]),
        ("<script>no('<p>')<p>a<script>no</script>b", ["')", "ab"]),
        ("<script>no('<p>')</script<p>a", ["a"]),
        ("<title>no<p>a<svg><title>no</title></svg>b<br>", ["ab"]),
        ("<svg><text>a</text><p>b", ["a", "b"]),
        ("<p>a <svg><title>no</title><svg>b</p>", ["a b"]),
        ("<nav epub:type='toc'><a href='x'>a</a><p>b</p>", ["a", "b"]),
        ("<textarea>a<p>b</textarea><plaintext>c<p>d", ["a", "b", "c", "d"]),
        ("a</p></div></body></html>b", ["a", "b"]),
        ('<?xml version="1.0"><p>a<?b?>c', ["ac"]),
        ('<!DOCTYPE html PUBLIC "-//W3C><p>a</p><p class="b">c', ["a", "c"]),
        ("<!DOCTYPE html [<p>a</p>]><p>b", ["a", "]>", "b"]),
        ("<!DOCTYPE html [<!ENTITY a 'b>]><html><p>don't</p>it's</html>", ["]>", "don't", "it's"]),
        ("<!-- a <p>b</p><!-- no --><p>c", ["a", "b", "c"]),
        ("<span e:t='x'/>a", ["a"]),  # undeclared prefix
        ("<table><tr>a<td>b<td>c</table>d", ["a, b, c", "d"]),
        ("<div>" * 5_000 + "deep", ["deep"]),
        ("", []),
    ],
)
def test_damaged_page_loses_no_text(source: str, expected: list[str]) -> None:
    assert blocks(source) == expected


def test_short_text_entities_are_resolved() -> None:
    source = "<!DOCTYPE html [<!-- it's --><!ENTITY pub 'Acme &#38; Co'><!ENTITY nbsp '&#160;'>]>"
    assert blocks(f"{source}<p>&pub;&nbsp;Ltd</p>") == ["Acme & Co Ltd"]


@pytest.mark.parametrize(
    "declaration",
    [
        '<!ENTITY a "ha"><!ENTITY b "&a;&a;">',
        '<!ENTITY a SYSTEM "file:///etc/passwd">',
        '<!ENTITY % a "b">',
        f'<!ENTITY a "{"x" * 2_000}">',
        '<!ENTITY a "<p>b</p>">',
    ],
)
def test_other_entities_raise_request_error(declaration: str) -> None:
    with pytest.raises(RequestError, match="a page: the page declares entities"):
        blocks(f"<!DOCTYPE html [{declaration}]><p>&a;&b;</p>")


def test_entities_that_expand_too_much_raise_request_error() -> None:
    source = f'<!DOCTYPE html [<!ENTITY a "{"x" * 1_000}">]><p>{"&a;" * 20_000}</p>'
    with pytest.raises(RequestError, match="expand to too much text"):
        blocks(source)


# -- letter count ------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [XHTML.format("<p>One two three.</p>"), "<p>One two three."])
def test_page_that_loses_text_in_parser_raises_request_error(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert blocks(source) == ["One two three."]  # the control
    data = PageBuilder.data
    monkeypatch.setattr(PageBuilder, "data", lambda self, text: data(self, text.replace("two", "")))
    with pytest.raises(RequestError, match=r"a page: 11 letters .* but 8 would be .* at 'two'"):
        blocks(source)


def test_page_that_loses_cells_raises_request_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "_join_cells", lambda cells: next(iter(cells), ""))
    with pytest.raises(RequestError, match="2 letters"):
        blocks(XHTML.format("<table><tr><td>a</td><td>b</td></tr></table>"))


def test_missing_lxml_raises_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lxml", None)
    with pytest.raises(RequestError, match=r"needs lxml; run: pip install '\.\[books\]'"):
        blocks("<p>a</p>")


# -- run time ----------------------------------------------------------------------------------

MAX_GROWTH = 9.0  # of run time for four times the input; quadratic growth is sixteen
PATTERNS = [
    *("<", "<!--", "<![CDATA[", "<?", "<p ", '<p class="', "<nav ", "<nav epub:type='toc'>"),
    *("<script>", "</script ", "<div>w ", "<i>w </b>", "<ruby>k<rt>r", "<ruby>a<p>", "&", "&a;"),
    *("<table><tr><td>a<td>b ", "<a href='x' id='y'>w ", "<svg>t ", "<h1>x", "a<br/>", "<pre>a\n"),
    *("<!DOCTYPE [", "<a \"'<a '\"", "<p a='<b>' ", "<b><i><a href=x><p>w ", "<p" + " " * 50),
]


def growth(run: Callable[[str], object], unit: str, size: int = 8_000) -> float:
    """Ratio of CPU times for four times the text; the best of some attempts."""
    best = float("inf")
    for _ in range(4):
        times = []
        for factor in (1, 4):
            source = unit * (factor * size // len(unit))
            began = time.process_time()
            run(source)
            times.append(time.process_time() - began)
        best = min(best, times[1] / max(times[0], 0.001))
        if best < MAX_GROWTH:
            break
    return best


@pytest.mark.default_cases(8)
@pytest.mark.parametrize("unit", PATTERNS)
def test_page_run_time_is_linear(unit: str) -> None:
    assert growth(blocks, unit) < MAX_GROWTH


def test_growth_of_quadratic_function_exceeds_limit() -> None:
    def quadratic(source: str) -> int:
        return sum(source.count("x", start) for start in range(0, len(source), 10))

    assert growth(quadratic, "abcde") > MAX_GROWTH
