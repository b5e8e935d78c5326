"""Tests of the lexicon and of respelling."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.text_stages import cut, plan_utterances
from vivace.errors import LexiconError, TextTooLongError
from vivace.text.lexicon import Lexicon
from vivace.text.markup import remove_markup
from vivace.text.options import ScriptOptions
from vivace.text.pauses import Pause
from vivace.text.pipeline import TextPipeline
from vivace.text.respell import Respeller, respell

WORDS = {
    "vivace": "vee-VAH-chay",
    "vivace music": "lively tunes",
    "GIF": "jif",
    "US": "U S",
    "cat": "kat",
    "don": "dawn",
    "t": "tee",
    "ll": "el el",
    "s": "ess",
    "avion": "ah-vee-ON",
    "C++": "see plus plus",
    ".NET": "dot net",
    "5": "five of them",
    "café": "kah-fay",
    "Dr. Seuss": "Doctor Soyss",
    "U.K.": "you kay",
    "O'Brien": "oh bryan",
    "sql": "[spell: SQL]",
    "重庆": "虫庆",
    "重庆市": "虫庆的市",
    "비바체": "비바췌",
    "กา": "ka",
    "→": "to",
}


def say(text: str, words: dict[str, Any] | None = None, language: str = "english") -> str:
    return respell(text, Lexicon.of(WORDS if words is None else words).tries(language))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Use vivace, now.", "Use vee-VAH-chay, now."),
        ("vivaces avivace vivace_x vivace2", "vivaces avivace vivace_x vivace2"),
        ("vivace-like (vivace) vivace's", "vee-VAH-chay-like (vee-VAH-chay) vee-VAH-chay's"),
        ("Vivace VIVACE vivace", "Vee-VAH-chay Vee-VAH-chay vee-VAH-chay"),
        ("a GIF, a gif, all of us in the US", "a Jif, a gif, all of us in the U S"),
        ("vivace music", "lively tunes"),
        ("Vivace \n music, vivace\n\nmusic", "Lively tunes, vee-VAH-chay\n\nmusic"),
        ("vivace musical", "vee-VAH-chay musical"),
        ("don don't Don's don’t", "dawn don't Dawn's don’t"),
        ("it's, a cat's tail, the cats' food", "it's, a kat's tail, the cats' food"),
        ("l'avion 'avion'", "l'ah-vee-ON 'ah-vee-ON'"),
        ("C++ .NET ASP.NET C+", "See plus plus dot net ASP.NET C+"),
        ("vivace.io, www.vivace.io, vivace. vivace...", "vivace.io, www.vivace.io, {0}. {0}..."),
        ("U.K. U.K., U.K.A. aU.K.", "You kay You kay, U.K.A. aU.K."),
        ("O'Brien O’Brien’s", "Oh bryan Oh bryan’s"),
        ("we'll cat'sup cat's, ll", "we'll cat'sup kat's, el el"),
        ("cafe\u0301cat", "cafe\u0301cat"),
        ("vivace [spell: ab", "vee-VAH-chay [spell: ab"),
        (
            "5 and 5. And 5.5, 1,5, 5:30, 55",
            "five of them and five of them. And 5.5, 1,5, 5:30, 55",
        ),
        ("café Cafe\u0301 CAFÉ cafe", "kah-fay Kah-fay Kah-fay cafe"),
        ("Dr. Seuss dr. seuss", "Doctor Soyss dr. seuss"),
        ("Sql injections", "S Q L injections"),
        ("A → B", "A to B"),
    ],
)
def test_whole_words_are_respelled_and_capitals_kept(text: str, said: str) -> None:
    assert say(text) == said.format("vee-VAH-chay")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("我在重庆。重庆市很大", "我在虫庆。虫庆的市很大"),
        ("用vivace说", "用vee-VAH-chay说"),
        ("비바체는 좋다, 내비바체", "비바췌는 좋다, 내비바체"),
        ("กากา กา\u0e48", "kaka กา\u0e48"),
    ],
    ids=["chinese", "mixed", "korean", "thai"],
)
def test_script_without_spaces_has_no_word_boundaries(text: str, said: str) -> None:
    assert say(text) == said


def test_entry_of_a_language_precedes_entry_for_all_languages() -> None:
    words = {"chat": "chatt", "english": {"chat": "tchat"}, "French": {"chat": "sha"}}
    assert say("chat", words) == "tchat"
    assert say("chat", words, "french") == "sha"
    assert say("chat", words, "auto") == "chatt"
    assert say("重庆", {"chinese": {"重庆": "虫庆"}}, "sichuan_dialect") == "虫庆"


def test_longest_entry_wins_then_the_first_lexicon() -> None:
    own, loaded = Lexicon.of({"cat": "one"}), Lexicon.of({"cat": "two", "cat food": "three"})
    tries = own.tries("") + loaded.tries("")
    assert respell("cat, cat food", tries) == "one, three"


def test_entries_that_refer_to_each_other_are_applied_once() -> None:
    assert say("a b a", {"a": "b", "b": "a"}) == "b a b"
    assert say("x", {"x": "x x"}) == "x x"


# -- marks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "raw", "english"),
    [
        ("[spell: NASA]!", "N A S A!", "N A S A!"),
        ("[Spell: ab-12 c]", "A B - 1 2, C", "A B dash one two, C"),
        ("[digits: 2024].", "2 0 2 4.", "two zero two four."),
        ("[digits:555-0123]", "5 5 5, 0 1 2 3", "five five five, zero one two three"),
        ("[digits: Room 12b]", "Room 1 2 b", "Room one two b"),
        ("[spell: e\u0301ß你]", "E\u0301 ß 你", "E\u0301 ß 你"),
        ("[spell: 5L]", "5 L", "five L"),
        ("[digits: b12]", "b 1 2", "b one two"),
        ("[spell check] [spell:] [spell: ] [digits]",) * 3,
        ("[spell: a\nb] [spell: [x]]",) * 3,
    ],
)
def test_spelling_mark_is_read_character_by_character(text: str, raw: str, english: str) -> None:
    assert respell(text) == raw
    assert respell(text, is_english=True) == english


def test_spelling_mark_is_not_respelled_or_cleaned() -> None:
    words = {"a": "b", "N": "x", "nasa": "y"}
    assert say("[spell: NASA] [spell: a]", words) == "N A S A A"
    assert remove_markup("**see** [spell: a_b*c](x) now") == "see [spell: a_b*c](x) now"


def test_english_normalizer_reads_respellings() -> None:
    tries = Lexicon.of({**WORDS, "price": "$5.50", "STM": "S-T-M", "v8": "[spell: V8]"}).tries("")
    options = ScriptOptions(normalize=True, lexicon=tries)
    said = plan_utterances("Vivace, the price, a v8 and [digits: 90 210].", options)
    assert said == [
        "Vee-vah-chay, the five dollars and fifty cents, a V eight and nine zero, two one zero."
    ]


# -- in pieces ---------------------------------------------------------------------------------

UNITS = [
    *WORDS,
    *("viva", "ce", "mus", "ic", "Dr", ". ", "Seuss", "C+", "+", "'", "'s", "’t", "x", "V", "é"),
    *(" ", "  ", "\n", "\n\n", ", ", ".", "-", "_", "\u0301", "[", "]", ":", "\u200d", "🙂", "市"),
    *(
        "[spell: ab]",
        "[spell",
        "[digits: 12",
        "[pause 1s]",
        "[pause",
        "3",
        ".5",
        "U.",
        "K.",
        "O’",
        "Brien",
        "는",
        "[x]",
    ),
]
texts = st.lists(st.sampled_from(UNITS), max_size=30).map("".join)
places = st.lists(st.integers(0, 10_000), max_size=8)


@given(texts, places, st.booleans())
@examples(200)
@example("Dr. Seu", [3], False)
@example("cat's cat'", [3, 4, 9], True)
@example("vivace \n", [6, 7], False)
@example("5.", [1], True)
@example("a [spell: ab] [digits: 12] [x]", [9], False)
def test_respeller_in_any_pieces_matches_the_whole_text(
    text: str, places: list[int], is_english: bool
) -> None:
    tries = Lexicon.of(WORDS).tries("english")
    whole = respell(text, tries, is_english=is_english)
    for pieces in (cut(text, places), list(text)):
        respeller = Respeller(tries, is_english=is_english)
        assert "".join(map(respeller.feed, pieces)) + respeller.finish() == whole


@given(texts, places, st.booleans())
@examples(150)
def test_live_text_is_respelled_like_the_known_text(
    text: str, places: list[int], is_normalized: bool
) -> None:
    tries = Lexicon.of(WORDS).tries("english")
    options = ScriptOptions(max_chars=None, normalize=is_normalized, lexicon=tries)
    events: list[str] = []
    reader = TextPipeline(options)
    for event in [e for piece in cut(text, places) for e in reader.feed(piece)] + reader.finish():
        events.append(event if isinstance(event, str) else "|")
    whole = ["|" if isinstance(p, Pause) else p for p in plan_utterances(text, options)]
    assert letters("".join(events)) == letters("".join(whole))


def letters(text: str) -> str:
    return "".join(letter for letter in text if letter.isalnum())


def test_respeller_holds_text_only_while_an_entry_may_follow() -> None:
    respeller = Respeller(Lexicon.of(WORDS).tries(""))
    assert [respeller.feed(piece) for piece in ("he", "llo vi", "vac", "id viva", "ce")] == [
        "he", "llo ", "", "vivacid ", "",
    ]  # fmt: skip
    assert respeller.feed(" ") == ""  # "vivace music" may follow
    assert respeller.feed("m") + respeller.feed("an") == "vee-VAH-chay man"
    assert respeller.feed("[spe") + respeller.feed("ed]") == "[speed]"
    assert respeller.finish() == ""


# -- files -------------------------------------------------------------------------------------

TOML = """# for all languages
vivace = "vee-VAH-chay"
"node.js" = "node jay ess"

[english]
GIF = 'jif'
"""
CSV = """word,respelling,language
vivace,vee-VAH-chay
# a comment, of two cells

"node.js","node jay ess",
GIF, jif ,English
"""


@pytest.mark.parametrize(("name", "content"), [("a.toml", TOML), ("b.CSV", CSV)])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_toml_and_csv_files_are_read(name: str, content: str, start: str, tmp_path: Path) -> None:
    for line_end in ("\n", "\r\n"):
        path = tmp_path / name
        path.write_bytes((start + content.replace("\n", line_end)).encode())
        lexicon = Lexicon.load(path)
        assert len(lexicon) == 3
        assert respell("Vivace node.js GIF", lexicon.tries("english")) == (
            "Vee-VAH-chay node jay ess Jif"
        )
        assert respell("GIF", lexicon.tries("french")) == "GIF"


def test_csv_header_is_only_in_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("Word,Respelling\nword,respelling\n")
    assert respell("word Word", Lexicon.load(path).tries("")) == "respelling Respelling"


@pytest.mark.parametrize(
    ("name", "content", "line", "reason"),
    [
        ("a.toml", 'a = "b"\nc = \n', 2, "not valid TOML"),
        ("a.toml", 'a = "b"\na = "c"\n', 2, "not valid TOML"),
        ("a.toml", 'a = "b"\n\nc = 5\n', 3, "respelling of 'c' is a string, not int 5"),
        ("a.toml", '[english]\n"c d" = ""\n', 2, "respelling of 'c d' is empty"),
        ("a.toml", 'a = "b"\n"" = "c"\n', 2, "word is empty"),
        ("a.toml", '# x\n[english]\nb = ["x"]\n', 3, "is a string, not list"),
        ("a.toml", '[english.x]\nb = "x"\n', 1, "is a string, not dict"),
        ("a.toml", 'a = "b\n', 1, "not valid TOML"),
        ("a.toml", 'x = "y"\na = "b [pause 1s]"\n', 2, "cannot have a pause mark"),
        ("a.toml", '"e\u0301" = "b"\n"é" = "c"\n', 2, "'é' is a duplicate of .*line 1"),
        ("a.csv", "a,b\nc\n", 2, "this has 1 cells"),
        ("a.csv", "a,b\n\nc,d,english,e\n", 3, "this has 4 cells"),
        ("a.csv", 'a,b\nc,"d\n', 2, "not valid CSV"),
        ("a.csv", "a,b\na ,c\n", 2, "'a' is a duplicate of .*line 1"),
        ("a.csv", "a,b\n,c\n", 2, "word is empty"),
        ("a.csv", f"{'a' * 101},b\n", 1, "has 101 characters and the limit is 100"),
        ("a.csv", f"a,{'b' * 201}\n", 1, "has 201 characters and the limit is 200"),
        ("a.csv", "a,b\x07\n", 1, r"U\+0007"),
    ],
)
def test_invalid_file_is_rejected_with_file_line_and_reason(
    name: str, content: str, line: int, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", newline="")
    with pytest.raises(LexiconError, match=rf"{name}, line {line}: .*{reason}"):
        Lexicon.load(path)


def test_file_that_is_no_lexicon_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,b\nc,\xff\n")
    (tmp_path / "a.txt").write_text("a = b")
    for path, reason in [
        (tmp_path / "a.csv", "line 2: not UTF-8"),
        (tmp_path / "a.txt", "a .toml or a .csv file"),
        (tmp_path / "none.toml", "cannot be read: No such file"),
        (tmp_path / "a\0.toml", "cannot be read"),
    ]:
        with pytest.raises(LexiconError, match=reason):
            Lexicon.load(path)
    for source in (5, ["a"], b"a.toml"):
        with pytest.raises(LexiconError, match="a file path, a mapping or a Lexicon"):
            Lexicon.of(source)  # type: ignore[arg-type]


def test_unknown_language_is_rejected_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('vivace = "x"\nnode.js = "node jay ess"\n')
    lexicon = Lexicon.load(path)
    with pytest.raises(LexiconError, match=r"a\.toml, line 2: no language named 'node'.*quoted"):
        lexicon.check_languages(["english"])
    lexicon.check_languages(["node"])
    Lexicon.of({"chinese": {"重庆": "虫庆"}}).check_languages(["english"])


# -- many --------------------------------------------------------------------------------------


def seconds(text: str, lexicon: Lexicon) -> float:
    began = time.process_time()
    respell(text, lexicon.tries(""))
    return time.process_time() - began


def test_10_000_entries_cost_a_text_no_more_than_a_few() -> None:
    """One pass per entry would take a thousand times as long."""
    few = {f"word{n}": f"other{n}" for n in range(10)}
    many = {f"word{n}": f"other{n}" for n in range(10_000)}
    text = " ".join(f"word{n % 10} and this" for n in range(1_500))
    lexicons = [Lexicon.of(few), Lexicon.of(many)]
    assert [len(lexicon) for lexicon in lexicons] == [10, 10_000]
    quick, slow = (min(seconds(text, lexicon) for _ in range(3)) for lexicon in lexicons)
    assert slow < 20 * quick
    assert respell("Word9999!", lexicons[1].tries("")) == "Other9999!"


def test_work_grows_linearly_when_every_word_almost_matches() -> None:
    lexicon = Lexicon.of({"a " * 40 + "b": "x"})
    short, long = "a " * 400, "a " * 3_200
    quick, slow = (min(seconds(text, lexicon) for _ in range(3)) for text in (short, long))
    assert slow < 40 * quick  # eight times the text


def test_lexicon_with_one_entry_too_many_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vivace.text.lexicon.MAX_ENTRIES", 3)
    words = {"a": "b", "c": "d", "english": {"a": "e"}}
    assert len(Lexicon.of(words)) == 3
    with pytest.raises(LexiconError, match="at most 3 entries"):
        Lexicon.of({**words, "f": "g"})


def test_respelled_text_with_one_character_too_many_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ScriptOptions(lexicon=Lexicon.of({"a": "bbbb"}).tries(""))
    said = ["bbbb", Pause(1), " bbbb, ok"]  # 13 characters in two parts
    monkeypatch.setattr("vivace.text.pipeline.MAX_TEXT_CHARS", 13)
    assert plan_utterances("a[pause 1s] a, ok", options) == said
    monkeypatch.setattr("vivace.text.pipeline.MAX_TEXT_CHARS", 12)
    with pytest.raises(TextTooLongError, match="13 characters, respelled, and the limit is 12"):
        plan_utterances("a[pause 1s] a, ok", options)


def _nested(depth: int) -> Any:
    words: Any = "x"
    for _ in range(depth):
        words = {"a": words}
    return words


def test_deeply_nested_lexicon_raises_lexicon_error(tmp_path: Path) -> None:
    with pytest.raises(LexiconError, match="a deeply nested dict"):
        Lexicon.of(_nested(3000))
    path = tmp_path / "words.toml"
    for text in (f'{".".join("a" * 3000)} = "x"', f"[{'.'.join('a' * 3000)}]\nb = 'x'"):
        path.write_text(text)
        with pytest.raises(LexiconError, match="a deeply nested dict"):
            Lexicon.load(path)
    path.write_text(f"a = {'[' * 3000}{']' * 3000}")
    with pytest.raises(
        LexiconError, match=r"words\.toml, line 1: not valid TOML: nested too deeply"
    ):
        Lexicon.load(path)
