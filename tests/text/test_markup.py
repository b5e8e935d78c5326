"""Tests of the removal of markdown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.text.test_split import takes_at_most
from tests.text.test_tokenizer import SENTENCES
from vivace.text import markup
from vivace.text.markup import remove_markup
from vivace.text.pauses import PAUSE_MARK, parse_pauses
from vivace.text.split import split_sentences

CLEANED = {
    "headings": ("# Title #\nText\n### More", "Title\n\nText\n\nMore"),
    "emphasis": ("**bold**, *it*, __b__, _i_, ***both***, ~~gone~~", "bold, it, b, i, both, gone"),
    "inline code": ("Run `ls -l` or ``a`b``.", "Run ls -l or ab."),
    "a fence": ("So:\n```python\nx = 1\n```\nDone.", "So:\n\nx = 1\n\nDone."),
    "fences with attributes": (
        "```js {1,3} title=a.js\nx\n```\n~~~~ c++\ny\n~~~~\n``` It is said.",
        "x\n\ny\n\nIt is said.",
    ),
    "a link": ("See [the docs](https://x.org/a_(b)?c=d), ok.", "See the docs, ok."),
    "a link of reference": ("See [the docs][1] and this[^2].", "See the docs and this."),
    "an image in a link": ("[![a cat](cat.png)](https://x.org)", "a cat"),
    "a table": ("| a | b |\n|:--|--:|\n| 1 | 2 |", "a, b\n\n1, 2"),
    "bullets": (
        "- one\n* two\n  + three\n• four\n- [x] five",
        "one\n\ntwo\n\nthree\n\nfour\n\nfive",
    ),
    "a quotation": ("> Hello\n> > there\n>", "Hello\nthere"),
    "a rule": ("a\n\n---\n\nb\n* * *\nc\n___\nd\n===", "a\n\nb\n\nc\n\nd"),
    "a URL": ("Go to https://www.example.com/a?b=c#d.", "Go to example.com."),
    "a URL in brackets": ("(see www.example.org) <https://a.org/x>", "(see example.org) a.org"),
    "a URL with a user and a port": ("ftp://me:pw@files.example.com:21/x", "files.example.com"),
    "a URL in Chinese": ("请看https://例子.com/路，好。", "请看例子.com，好。"),
    "a URL without a name": ("at http://10.0.0.1/x or http://localhost:80!", "at or !"),
    "white space": ("a  b \t c\r\n\r\n\r\n\r\nd  ", "a b c\n\nd"),
    "an escape": (r"\*not\* \_this\_", "not this"),
    "entities": ("Tom &amp; Ann&nbsp;B &mdash; &quot;x&quot; &amp;amp;", 'Tom & Ann B — "x" &'),
    "references": ("caf&eacute; &#8364;5&#x21; a &lt;3 &foo; AT&T", "café €5! a <3 &foo; AT&T"),
    "references to white space": ("&nbsp;a &nbsp; b,&nbsp;&#32;c&emsp;", "a b, c"),
    "references to signs of markup": ("5 &#42; 6 &#42; 7, &#91;x&#93;(y)", "5 * 6 * 7, [x](y)"),
    "a line break in a table": ("| a<br>b | c |", "a b, c"),
    "an escaped bar in a table": (r"| a \| b | c\\ |", "a | b, c\\"),
    "tags": (
        '<p class="x">A <a href="u">link</a><!-- no --></p><img src=a.png alt=\'b\'>.',
        "A link .",
    ),
    "comments": ("a <!-- one\n\n# <b>two</b> [pause 1s] -->b<!----> [pause 2s]", "a b [pause 2s]"),
    "a line break": ("a<br>b<BR />c", "a\nb\nc"),
    "markup around a pause": ("**a [pause 1s] b** [pause  2s]", "a [pause 1s] b [pause  2s]"),
    "a link after a pause": ("[pause 1s](x) [y](z)", "[pause 1s](x) y"),
}
KEPT = {
    "sums and names": "2*3*4 = 24, 5 * 6, ~5 or ~$9, snake_case, a_b_c, x - y, C#, #1, 3 > 2",
    "brackets": "array[0] (see above) [sic] f(x)",
    "a list of numbers": "1. one\n2. two",
    "a hyphen and a dash": "well-known — and – so",
    "a bar": "either | or",
    "an e-mail and a domain": "x.y@z.org, example.com, 10:30, https, www",
    "one line end": "a\nb\n\nc",
    "signs of text that resemble tags": "<username> a <b and c> d <3 x<y",
    "a comment that is not closed": "a <!-- b c",
    "signs": "5 % of 3 € © ™ № § ½ → ①",
    "a broken pause": "[pause] [pause x]",
}


@pytest.mark.parametrize("rule", CLEANED)
def test_remove_markup_removes_markup(rule: str) -> None:
    text, cleaned = CLEANED[rule]
    assert remove_markup(text) == cleaned


@pytest.mark.parametrize("rule", KEPT)
def test_remove_markup_keeps_text_that_resembles_markup(rule: str) -> None:
    assert remove_markup(KEPT[rule]) == KEPT[rule]


@pytest.mark.parametrize("language", SENTENCES)
def test_remove_markup_keeps_words_of_every_language(language: str) -> None:
    for sentence in SENTENCES[language]:
        letters = [letter for letter in sentence.partition("https")[0] if letter.isalpha()]
        assert [letter for letter in remove_markup(sentence) if letter.isalpha()][
            : len(letters)
        ] == letters


def test_cleaned_list_item_is_its_own_sentence() -> None:
    cleaned = remove_markup("Buy\n- milk\n- eggs\n# Then\ngo")
    assert split_sentences(cleaned) == ["Buy", "milk", "eggs", "Then", "go"]


def test_remove_markup_removes_deeply_nested_markup() -> None:
    assert remove_markup("> - " * 9 + "a") == "a"
    assert "[" not in remove_markup("[" * 9 + "a" + "](b)" * 9)


MARKUP = [
    *("*", "**", "_", "`", "```\n", "~~", "#", "# ", "> ", "- ", "|", "---", "[", "]", "(", ")"),
    *(
        "](",
        "![",
        "[^1]",
        "http://",
        "https://www.",
        "www.",
        "://",
        "/",
        ":",
        "a.b",
        "w",
        "\\",
        "=",
    ),
    *("[pause 1s]", "[pau", "se 1s]", "[pause", "\n", "\r", " ", "\xa0", "😀", "\ufe0f", "é", "9"),
    *("&nbsp;", "&amp;", "&#8364;", "&lt"),
    *("\ue000", "<br>", "<", ">", "•", "+", "\u2028", "!", "."),
]
TEXTS = st.lists(st.sampled_from(MARKUP) | st.text(max_size=4)).map("".join)


@examples(1_000)
@given(text=TEXTS)
def test_cleaning_a_cleaned_text_does_not_change_it(text: str) -> None:
    cleaned = remove_markup(text)
    assert remove_markup(cleaned) == cleaned


@examples(1_000)
@given(text=TEXTS)
def test_strip_markup_leaves_nothing_to_clean(text: str) -> None:
    stripped = markup._outside_marks(
        markup._outside_marks(text, markup._clean_once), markup._strip_markup
    )
    assert remove_markup(stripped) == stripped


def test_control_single_pass_leaves_markup() -> None:
    once = markup._clean_once("> - > - a")
    assert markup._clean_once(once) != once


@examples(300)
@given(text=TEXTS)
def test_remove_markup_keeps_pause_marks(text: str) -> None:
    marks = PAUSE_MARK.findall(text.replace("\ue000", ""))
    left = iter(PAUSE_MARK.findall(remove_markup(text)))
    assert all(mark in left for mark in marks)  # removing markup may reveal more marks


@pytest.mark.parametrize(
    "unit",
    [
        *(*MARKUP, "[a](", "[a][", "[a](()", "- - ", "* *", "a@", "| ", " \n", "_a", "*1", "`a"),
        *("[pause ", "[pause 1s] ", "https://a@", "😀 ", "> - ", "<br ", "\\*", " " * 50 + "x"),
    ],
)
def test_100_000_hostile_characters_take_linear_time(unit: str) -> None:
    text = (unit * 100_000)[:100_000]
    assert takes_at_most(5, lambda: remove_markup(text))
    assert takes_at_most(5, lambda: parse_pauses(text.replace("pause", "pausing")))
