"""Tests of splitting markdown into blocks and of counting text that is left out."""

from __future__ import annotations

import pytest

from vivace.books import markdown
from vivace.books.markdown import read_blocks


def blocks(text: str) -> list[str]:
    return [block.text for _, block in read_blocks(text, "a file").blocks]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# One\ntext\nmore", ["One", "text more"]),
        ("One\n===\ntext", ["One", "text"]),
        ("- a\n- b\n  goes on\n- c", ["a", "b goes on", "c"]),
        ("1. a\n2. b", ["1. a", "2. b"]),
        ("* [x] done\n* [ ] open", ["done", "open"]),
        ("| a | b |\n|---|---|\n| c | d |", ["a, b", "c, d"]),
        ("a | b\n--- | ---\nc | d", ["a, b", "c, d"]),
        ("> a\n>\n> b\n> c", ["a", "b c"]),
        (
            "Roses are red,  \nViolets are blue\\\nend",
            ["Roses are red,", "Violets are blue", "end"],
        ),
        ("a <b>bold</b> word<br/>and <John Smith>", ["a bold word", "and <John Smith>"]),
        ("The <title> tag, <style> and <x> too", ["The <title> tag, <style> and <x> too"]),
        ("<div>\n<p>a</p>\n<p>b</p></div>", ["a", "b"]),
        ("[a](http://no.org/no 'no') b [c][no]\n\n[no]: http://no.org", ["a b c"]),
        ("[c]: http://no.org\na [b][c] d", ["a b d"]),
        ("| a<br>b | <p>c</p> |\n|---|---|\n| d | e |", ["a b, c", "d, e"]),
        ("a[^1]\n\n[^1]: b", ["a", "b"]),
        ("# a #\n## b#", ["a", "b#"]),
        ("a &amp; b &lt;3 &eacute; &x AT&T", ["a & b <3 é &x AT&T"]),
        ("5 &#42; 6 &#42; 7 &#91;x&#93;(y)", ["5 * 6 * 7 [x](y)"]),
        ("a\n\n---\n\nb", ["a", "b"]),
    ],
)
def test_markdown_is_split_into_blocks(text: str, expected: list[str]) -> None:
    assert blocks(text) == expected


def test_markdown_counts_text_that_is_left_out() -> None:
    text = "---\ntitle: My Book\n---\nword <!-- two words -->\n\n```\nx = 1\n```\n\n[a](http://b)"
    document = read_blocks(text, "a file")
    assert document.fields == {"title": "My Book"}
    assert dict(document.left_out.num_words) == {
        "front matter": 3,
        "comments": 2,
        "code": 2,
        "link addresses": 1,
    }


def test_block_keeps_words_that_cleaning_would_lose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(markdown, "remove_markup", lambda text: text.replace("two", ""))
    assert blocks("**one** two\n\nthree") == ["one two", "three"]


@pytest.mark.parametrize("unit", ["# a   ", "<!--", "[a](", "- ", "|", "title: \t", "```\n", "> "])
def test_markdown_run_time_is_linear(unit: str) -> None:
    from tests.books.test_html import MAX_GROWTH, growth

    assert growth(blocks, unit) < MAX_GROWTH
