"""Pauses and markup: what is taken out of a text, and what must stay."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.test_split import takes_at_most
from tests.text.test_tokenizer import SENTENCES
from vivace.errors import RequestError
from vivace.text import markup
from vivace.text.markup import Pause, clean_text, parse_pauses, remove_markup
from vivace.text.split import split_sentences


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. [pause 0.5s] Two.", ["One. ", Pause(0.5), " Two."]),
        ("[pause 500ms]Go", [Pause(0.5), "Go"]),
        ("Stop[PAUSE 10 s]", ["Stop", Pause(10.0)]),
        ("[pause 1s][pause 2s]", [Pause(1.0), Pause(2.0)]),
        ("[pause 1ms]", [Pause(0.001)]),
        ("No mark [here], no [pauses] and no pause 1s.",) * 2,
        ("",) * 2,
    ],
)
def test_a_pause_is_taken_out_of_the_text_around_it(
    text: str, parts: list[str | Pause] | str
) -> None:
    expected = [parts] if isinstance(parts, str) else parts
    assert parse_pauses(text) == [part for part in expected if part != ""]


@pytest.mark.parametrize(
    "mark",
    [
        *("[pause]", "[pause 1]", "[pause s]", "[pause 0,5s]", "[pause -1s]", "[pause 1 min]"),
        *("[pause for effect]", "[pause 1s", "[pause nans]", "[pause 1e3ms]", "[pause: 1s]"),
    ],
)
def test_what_is_no_pause_stays_in_the_text(mark: str) -> None:
    assert parse_pauses(f"Wait {mark} here.") == [f"Wait {mark} here."]


@pytest.mark.parametrize("mark", ["[pause 0s]", "[pause 0ms]", "[pause 10.001s]", "[pause 20s]"])
def test_a_pause_of_no_time_or_too_much_is_refused(mark: str) -> None:
    with pytest.raises(RequestError, match="more than 0 and at most 10 seconds, not"):
        parse_pauses(mark)


@pytest.mark.parametrize("seconds", [0, -1, 10.5, float("nan"), float("inf")])
def test_no_pause_can_be_made_that_cannot_be_written(seconds: float) -> None:
    with pytest.raises(RequestError, match="at most 10 seconds"):
        Pause(seconds)


@given(
    parts=st.lists(
        st.builds(Pause, st.integers(1, 10_000).map(lambda ms: ms / 1000))
        | st.text(st.characters(exclude_characters="["), min_size=1)
    )
)
def test_pauses_come_out_as_they_were_written(parts: list[str | Pause]) -> None:
    written = [f"[pause {part.seconds}s]" if isinstance(part, Pause) else part for part in parts]
    read = parse_pauses("".join(written))
    again = [f"[pause {part.seconds}s]" if isinstance(part, Pause) else part for part in read]
    assert "".join(again) == "".join(written)
    assert [p for p in read if isinstance(p, Pause)] == [p for p in parts if isinstance(p, Pause)]


CLEANED = {
    "headings": ("# Title #\nText\n### More", "Title\n\nText\n\nMore"),
    "emphasis": ("**bold**, *it*, __b__, _i_, ***both***, ~~gone~~", "bold, it, b, i, both, gone"),
    "inline code": ("Run `ls -l` or ``a`b``.", "Run ls -l or ab."),
    "a fence": ("So:\n```python\nx = 1\n```\nDone.", "So:\n\nx = 1\n\nDone."),
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
    "emoji": ("Hi 😀! 👍🏽 ok 🇧🇷 👩\u200d💻 1️⃣ ❤️.", "Hi! ok 1."),
    "a URL": ("Go to https://www.example.com/a?b=c#d.", "Go to example.com."),
    "a URL in brackets": ("(see www.example.org) <https://a.org/x>", "(see example.org) a.org"),
    "a URL with a user and a port": ("ftp://me:pw@files.example.com:21/x", "files.example.com"),
    "a URL in Chinese": ("请看https://例子.com/路，好。", "请看例子.com，好。"),
    "a URL without a name": ("at http://10.0.0.1/x or http://localhost:80!", "at or !"),
    "white space": ("a  b \t c\r\n\r\n\r\n\r\nd  ", "a b c\n\nd"),
    "an escape": (r"\*not\* \_this\_", "not this"),
    "a line break": ("a<br>b<BR />c", "a\nb\nc"),
    "markup around a pause": ("**a [pause 1s] b** [pause  2s]", "a [pause 1s] b [pause  2s]"),
    "a link after a pause": ("[pause 1s](x) [y](z)", "[pause 1s](x) y"),
}
KEPT = {
    "sums and names": "2*3*4 = 24, 5 * 6, snake_case, a_b_c, x - y, C#, #1, 3 > 2",
    "brackets": "array[0] (see above) [sic] f(x)",
    "a list of numbers": "1. one\n2. two",
    "a hyphen and a dash": "well-known — and – so",
    "a bar": "either | or",
    "an e-mail and a domain": "x.y@z.org, example.com, 10:30, https, www",
    "one line end": "a\nb\n\nc",
    "signs": "5 % of 3 € © ™ № § ½ → ①",
    "a broken pause": "[pause] [pause x]",
}


@pytest.mark.parametrize("rule", CLEANED)
def test_markup_is_taken_out(rule: str) -> None:
    text, cleaned = CLEANED[rule]
    assert clean_text(text) == cleaned


@pytest.mark.parametrize("rule", KEPT)
def test_what_only_looks_like_markup_stays(rule: str) -> None:
    assert clean_text(KEPT[rule]) == KEPT[rule]


@pytest.mark.parametrize("language", SENTENCES)
def test_the_words_of_every_language_stay(language: str) -> None:
    for sentence in SENTENCES[language]:
        letters = [letter for letter in sentence.partition("https")[0] if letter.isalpha()]
        assert [letter for letter in clean_text(sentence) if letter.isalpha()][
            : len(letters)
        ] == letters


def test_each_item_of_a_cleaned_list_is_a_sentence_of_its_own() -> None:
    cleaned = clean_text("Buy\n- milk\n- eggs\n# Then\ngo")
    assert split_sentences(cleaned) == ["Buy", "milk", "eggs", "Then", "go"]


def test_markup_nested_deeper_than_people_write_is_all_taken_out() -> None:
    assert clean_text("> - " * 9 + "a") == "a"
    assert "[" not in clean_text("[" * 9 + "a" + "](b)" * 9)


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
    *("\ue000", "<br>", "<", ">", "•", "+", "\u2028", "!", "."),
]
TEXTS = st.lists(st.sampled_from(MARKUP) | st.text(max_size=4)).map("".join)


@settings(deadline=None, max_examples=1000)
@given(text=TEXTS)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    cleaned = clean_text(text)
    assert clean_text(cleaned) == cleaned


@settings(deadline=None, max_examples=1000)
@given(text=TEXTS)
def test_the_last_resort_leaves_nothing_to_clean(text: str) -> None:
    stripped = markup._outside_marks(
        markup._outside_marks(text, markup._clean_once), markup._strip_markup
    )
    assert remove_markup(stripped) == stripped


def test_the_control_of_a_single_pass_is_not_enough() -> None:
    once = markup._clean_once("> - > - a")
    assert markup._clean_once(once) != once


@settings(deadline=None, max_examples=300)
@given(text=TEXTS)
def test_cleaning_never_touches_a_pause(text: str) -> None:
    marks = markup.PAUSE_MARK.findall(text.replace("\ue000", ""))
    left = iter(markup.PAUSE_MARK.findall(clean_text(text)))
    assert all(mark in left for mark in marks)  # in order; removing markup may bring out more


@pytest.mark.parametrize(
    "unit",
    [
        *(*MARKUP, "[a](", "[a][", "[a](()", "- - ", "* *", "a@", "| ", " \n", "_a", "*1", "`a"),
        *("[pause ", "[pause 1s] ", "https://a@", "😀 ", "> - ", "<br ", "\\*", " " * 50 + "x"),
    ],
)
def test_100_000_hostile_characters_take_linear_time(unit: str) -> None:
    text = (unit * 100_000)[:100_000]
    assert takes_at_most(0.5, lambda: clean_text(text))
    assert takes_at_most(0.5, lambda: parse_pauses(text.replace("pause", "pausing")))
