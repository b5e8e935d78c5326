"""Tests of sentence splitting: each rule with a case to which it must not apply."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.text.test_tokenizer import ALL_SENTENCES
from vivace.errors import RequestError
from vivace.text.split import ABBREVIATIONS, BEFORE_NUMBERS, SentenceSplitter, split_sentences

# A bar marks each split; the white space around it belongs to the text.
RULES = {
    "a stop and a capital": "It rained. |We stayed.",
    "a stop and a small letter": "It rained approx. two days.",
    "questions and exclamations": "Really?! |Yes! |Who?",
    "a shout inside a sentence": 'He cried "Stop!" and ran.',
    "an English title": "Mr. Smith met Dr. Jones vs. Prof. Lee. |They left.",
    "a word like a title": "I took the bus with mister. |Smith came.",
    "an English number": "See No. 5 on p. 12. |It is short.",
    "an English no": "I said no. |Then I left.",
    "what may end a sentence": "Pens, ink, etc. |The rest is here. |Come at 5 p.m. |We wait.",
    "a unit after a number": "It took 10 min. |Then 5 ft. |Then nothing.",
    "initials": "J. R. R. Tolkien and George R.R. Martin write. |They do.",
    "i.e. and e.g.": "Fruit, e.g. Apples, i.e. Malus. |Good.",
    "German": "Hr. Müller kam z.B. Dienstag, d. h. Morgen, ca. Mittag. |Gut.",
    "German with spaces": "Das ist z. B. Obst. |Es ist i. d. R. Rot.",
    "more German ordinals": "Am 2. Spieltag verlor der 1. FC Köln. |Er war im 3. Semester.",
    "a German ordinal": "Am 3. Mai im 19. Jahrhundert begann es. |Es endete 1990. |Dann kam Ruhe.",
    "a number at the end": "Wir sind 12. |Dann kam einer.",
    "German quotes": "„Wie geht’s?“, fragte er. |„Gut.“ |»Ja!« |»Nein!«, rief sie.",
    "French": "M. Dupont, p.ex. Jean, vit av. J.-C. avec Ste. Anne. |Oui.",
    "French quotes": "« Où es-tu ? » demanda-t-elle. |« Ici ! » |Elle rit.",
    "a French dialogue": "— Quoi ? demanda-t-il. |— Rien !",
    "Spanish": "El Sr. López y la Sra. Ruiz, p. ej. Ana, van a EE. UU. |Es lejos.",
    "Spanish openers": "¿Vienes? |¡Claro que sí! |(¿Seguro?) |Sí.",
    "a Spanish question inside": "—¿Vienes? —preguntó él.",
    "a Spanish page": "Mira la pág. 7 y el núm. 3. |No es la pág. |Fin.",
    "Italian": "Il sig. Rossi e la dott.ssa Bianchi con l'avv. Neri. |Bene.",
    "Portuguese": "O Sr. Silva e a Dra. Sousa na Av. Paulista. |Bom.",
    "Russian": "Л. Н. Толстой, т.е. Лев, жил на ул. Ленина, д. 5. |Он умер в 1910 г. |Конец.",
    "a Russian dialogue": "— Что? — спросил он. |— Ничего. |— Она ушла.",
    "Chinese": "今天很好。|我们走吧！|好吗？|好……再见。",
    "Chinese quotes": "他说：“你好。”|“再见！”|她走了。",
    "straight quotes in Chinese": '他说："你好。"|然后走了。|"再见。"',
    "half-width marks in Chinese": "好!|我们走?|走.|我们走。",
    "Japanese": "今日は晴れ。|散歩に行こう！|「そう。」|「うん？」",
    "a Japanese quotation inside": "「行くよ。」と彼は言った。|『はい！』って、言った。",
    "a wide full stop": "円周率は３．１４です．|次へ．",
    "Korean": "안녕하세요. |반갑습니다! |“내일 만나요.”라고 했다. |그래요?",
    "Korean without a space": "갔다.|그리고 왔다.",
    "decimals and thousands": "Pi is 3.14, not 1,000.5 or 3,14 or 1.234,56. |Good.",
    "ellipses": "Wait... |What? |Well... maybe… |No . . . yes.",
    "quotes after the stop": '"This is the end." |She said (at last.) |Then ‘bye.’ |So.',
    "emphasis after the stop": "**Stop.** |Go.",
    "addresses": "See https://a.b/c?d=e.f!g, mail x.y@z.org at 10.30 or 10:30. |Use v1.2.3. |Bye.",
    "a domain in Chinese": "访问www.例子.com吧。|好。",
    "a paragraph": "A title\n\n|and text\nin two lines\r\nor three\r\n \r\n|and an end",
    "wide space": f"left{' ' * 32}|right{' ' * 31}side",
    "a list": "Buy:\n|- milk\n|- eggs\n|1. one\n|2. two\n|a) three\n|• four",
    "a hyphen in a line": "well-\nknown and 3\n4 of them",
    "a numbered item": "1. First we go. |2. Then we stop. |IV. Chapter.\n\n|a. Small.",
}


@pytest.mark.parametrize("rule", RULES)
def test_split_sentences_applies_each_rule_only_where_it_fits(rule: str) -> None:
    marked = RULES[rule]
    assert split_sentences(marked.replace("|", "")) == [part.strip() for part in marked.split("|")]


@pytest.mark.parametrize("rule", RULES)
def test_splitter_applies_each_rule_character_by_character(rule: str) -> None:
    text = RULES[rule].replace("|", "")
    assert live_sentences(list(text)) == split_sentences(text)


@pytest.mark.parametrize("language", ABBREVIATIONS)
def test_abbreviation_does_not_end_a_sentence(language: str) -> None:
    for word in ABBREVIATIONS[language].split():
        for spelling in (word, word.capitalize()):
            text = f"So {spelling}. Xxx"
            assert split_sentences(text) == [text]
        assert len(split_sentences(f"So x{word}x. Xxx")) == 2


@pytest.mark.parametrize("language", BEFORE_NUMBERS)
def test_abbreviation_before_a_number_does_not_end_a_sentence(language: str) -> None:
    for word in set(BEFORE_NUMBERS[language].split()) - {"art"}:
        assert len(split_sentences(f"So {word}. 12 Xxx")) == 1
        assert len(split_sentences(f"So {word}. Xxx")) == 2


LONG = "one two three four, five six; seven eight nine: ten eleven, twelve – thirteen fourteen"


@pytest.mark.parametrize(
    ("text", "max_chars", "parts"),
    [
        (LONG, 50, [LONG[:47], LONG[48:]]),
        (LONG, 40, ["one two three four, five six;", "seven eight nine: ten eleven, twelve –",
                    "thirteen fourteen"]),
        ("one two three, four five", 20, ["one two three,", "four five"]),
        ("at 10:30, 1,000 or 3;4 more", 12, ["at 10:30,", "1,000 or 3;4", "more"]),
        ("we paid two thousand five hundred euros", 34,
            ["we paid", "two thousand five hundred euros"]),
        ("eins zwei drei vier", 9, ["eins zwei", "drei vier"]),
        ("一二三四、五六七八，九十", 8, ["一二三四、", "五六七八，九十"]),
        ("一二三四五六七八九十", 4, ["一二三四", "五六七八", "九十"]),
        ("cafe\u0301s", 4, ["caf", "e\u0301s"]),
        ("exactly ten.", 12, ["exactly ten."]),
    ],
)  # fmt: skip
def test_long_sentence_is_split_at_clauses_then_spaces_then_characters(
    text: str, max_chars: int, parts: list[str]
) -> None:
    assert split_sentences(text, max_chars) == parts
    assert live_sentences(list(text), max_chars) == parts


def test_sentence_within_the_limit_stays_whole() -> None:
    assert split_sentences(LONG) == [LONG]


FRAGMENTS = [
    *(". ", "。", "... ", "?!", "\n\n", "\n", "\r\n", "- ", " " * 31, " " * 33, "z. B. ", "Dr. "),
    *("3. ", "Mai", "J. ", "」", "「", "と", '"', "» ", "«", "…", ", ", "; ", "、", "—", "\u0301"),
    *("\u200d", "\u2029", "．", "３", "A", "b", "漢", "그", "1869 г. ", "!" * 17, ")" * 9, "1) "),
]
TEXTS = st.lists(
    st.sampled_from([*FRAGMENTS, *ALL_SENTENCES, *RULES.values()]) | st.text(max_size=9)
).map("".join)
MAX_CHARS = st.sampled_from([1, 2, 7, 20, 60, 300])


def live_sentences(pieces: list[str], max_chars: int = 300) -> list[str]:
    splitter = SentenceSplitter(max_chars)
    return [part for piece in pieces for part in splitter.feed(piece)] + splitter.finish()


def takes_at_most(seconds: float, call: Callable[[], object]) -> bool:
    """Try three times: the machine may be busy, but quadratic work is always slow."""
    for _ in range(3):
        start = time.process_time()
        call()
        if time.process_time() - start < seconds:
            return True
    return False


@examples(500)
@given(text=TEXTS, max_chars=MAX_CHARS)
def test_split_sentences_drops_only_white_space(text: str, max_chars: int) -> None:
    rest = text
    for part in split_sentences(text, max_chars):
        assert part == part.strip() != ""
        assert len(part) <= max_chars
        assert rest.lstrip().startswith(part)
        rest = rest.lstrip().removeprefix(part)
    assert not rest.strip()


@examples(500)
@given(text=TEXTS, max_chars=MAX_CHARS, places=st.lists(st.integers(0, 200), max_size=20))
def test_splitter_in_any_pieces_gives_the_same_sentences(
    text: str, max_chars: int, places: list[int]
) -> None:
    inside = sorted(place for place in places if place <= len(text))
    pieces = [text[start:end] for start, end in pairwise([0, *inside, len(text)])]
    whole = split_sentences(text, max_chars)
    assert live_sentences(pieces, max_chars) == whole
    assert live_sentences(list(text), max_chars) == whole


def test_control_pieces_split_separately_give_other_sentences() -> None:
    pieces = ["Mr", ". Smith came. We", " left."]
    alone = [part for piece in pieces for part in split_sentences(piece)]
    assert alone != split_sentences("".join(pieces)) == live_sentences(pieces)


def test_sentence_is_returned_when_the_next_begins() -> None:
    splitter = SentenceSplitter()
    assert splitter.feed("It rained. ") == []
    assert splitter.feed("W") == ["It rained."]
    assert splitter.feed("e stayed.\n") == []
    assert splitter.feed("\n") == ["We stayed."]
    assert splitter.feed("好。") == []
    assert splitter.feed("我") == ["好。"]
    assert splitter.finish() == ["我"]
    assert splitter.feed("Again.") + splitter.finish() == ["Again."]


@pytest.mark.parametrize("text", ["", " ", "\n\n\n", " " * 100])
def test_blank_text_has_no_sentences(text: str) -> None:
    assert split_sentences(text) == []


def test_limit_below_one_is_rejected() -> None:
    with pytest.raises(RequestError, match="max_chars must be 1 or more, not 0"):
        split_sentences("Hi.", 0)


@pytest.mark.default_cases(8)
@pytest.mark.parametrize(
    "unit",
    [
        *(
            "a",
            " ",
            ".",
            "!",
            '"',
            "a. ",
            ". ",
            "\n ",
            "。",
            "「。」",
            "A.",
            "1. ",
            "z. B. ",
            "a, ",
        ),
        *("?! ", '。"', ".(", ". (", "\u0301", "a" + " " * 31, "\n- ", ".\xa0»", "Dr. A", "\r\n"),
    ],
)
def test_60_000_hostile_characters_take_linear_time(unit: str) -> None:
    text = (unit * 60_000)[:60_000]
    assert takes_at_most(2.5, partial(split_sentences, text, 10))
    assert takes_at_most(1.5, lambda: live_sentences(list(text[:12_000])))  # 300 characters
