"""Tests of the removal of markdown from a text in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.text_stages import cut
from vivace.text.cleaner import MarkdownCleaner
from vivace.text.comments import MAX_COMMENT
from vivace.text.markup import remove_markup

MARKDOWN = """# A heading

Hello **world**, this is [a link](https://a.b/c_(d) "t") and `code here`. See https://www.x.org/y?z.

- one item with **bold**
- [ ] two 😀 items
* three

> quoted *text* here

| a | b |
|---|---|
| 1<br>3 | 2 |

Or:<br>- an item &amp;&nbsp;a pair<br># A title
```python
x = a_b * 3
```
**Sure!** It is 2*3 and snake_case, a [ref][1] and a note[^1]. <br> New <b>line</b> here 🎉 ok
<!-- Left out.

# Also *this*. --> Once <!-- more
--> said. A comment begins with `<!--` only.
1. first
2. second ~~gone~~ __under__ _it_

***
The end [pause 0.5s] now. An open [bracket never closed
next line."""


places = st.lists(st.integers(0, 10_000), max_size=30)


@given(places)
@examples(300)
def test_cleaner_in_any_pieces_matches_remove_markup(places: list[int]) -> None:
    cleaner = MarkdownCleaner()
    cleaned = "".join(map(cleaner.feed, cut(MARKDOWN, places))) + cleaner.finish()
    assert cleaned == remove_markup(MARKDOWN)


@given(st.text(alphabet="ab *_`[]()#-|<>.\n!~😀:/w", max_size=80), places)
@examples(300)
def test_cleaner_in_any_pieces_of_any_text_gives_the_same_result(
    text: str, places: list[int]
) -> None:
    cleaner = MarkdownCleaner()
    cleaned = "".join(map(cleaner.feed, cut(text, places))) + cleaner.finish()
    assert cleaned == cleaner.feed(text) + cleaner.finish()


def test_cleaner_returns_plain_words_at_once() -> None:
    cleaner = MarkdownCleaner()
    assert cleaner.feed("Hello there ") == "Hello there"
    assert cleaner.feed("**my** ") == " my"
    assert cleaner.feed("[long link") == ""
    assert cleaner.feed(" text](http://a.b/c) friend ") == " long link text friend"
    assert cleaner.feed("\n- item\n") == "\n\nitem"


def test_markup_open_for_too_long_becomes_text() -> None:
    cleaner = MarkdownCleaner()
    said = cleaner.feed("[" + "word " * 500)
    assert said.count("word") == 500


def test_comment_that_is_too_long_becomes_text() -> None:
    for num_words, said in ((10, ""), (MAX_COMMENT, " word word")):
        cleaner = MarkdownCleaner()
        assert cleaner.feed("Hello <!--") == "Hello"
        spoken = "".join(cleaner.feed(" word") for _ in range(num_words))
        assert spoken[-len(" word word") :] == said
        assert (spoken == "") == (cleaner.settle() is None)


def test_code_at_the_end_of_a_live_sentence_does_not_wait_for_a_comment() -> None:
    cleaner = MarkdownCleaner()
    assert cleaner.feed("Run `make.`") + (cleaner.settle() or "") == "Run make."


@pytest.mark.parametrize("item_end", ["\n\n", "\u2028"])
@pytest.mark.parametrize(
    "text",
    [
        "One line\r\nand two.\r\n\r\nThree.",
        "A line with a space \nand its end.",
        "See\nhttp://1.2.3.4\nnow.",
        "Tabs\t\tbetween \t words",
        "-\nnot an item",
        "> - a quoted item\n> - another\n\nText",
        "- one\n\n- two\n\nText",
        "__- five dollars",
        "[^1]# A heading",
        "http://¿ | a | b |",
        "u &nbsp;\x0bor",
        "a [](b)\tc",
    ],
)
def test_cleaner_in_one_or_many_pieces_matches_remove_markup(text: str, item_end: str) -> None:
    for pieces in ([text], list(text)):
        cleaner = MarkdownCleaner(item_end=item_end)
        cleaned = "".join(map(cleaner.feed, pieces)) + cleaner.finish()
        assert cleaned == remove_markup(text, item_end=item_end)


@pytest.mark.parametrize("text", ["One ===\n===\nTwo.", "Words.\n# Title\nMore *words*\n- item"])
def test_line_separator_of_the_text_is_a_line_end(text: str) -> None:
    separated, results = text.replace("\n", "\u2028"), set()
    for pieces in ([text], [separated], list(separated)):
        cleaner = MarkdownCleaner(item_end="\u2028")
        results.add("".join(map(cleaner.feed, pieces)) + cleaner.finish())
    assert len(results) == 1
