"""Tests of TeX formulas in a text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.text_stages import cut, plan_utterances
from vivace.text.options import ScriptOptions
from vivace.text.spans import SpannedText
from vivace.text.tex import MAX_FORMULA, TexReader, read_formulas

FORMULAS = {
    r"The value $\frac{1}{2}$ is small.": "The value 1/2 is small.",
    r"\(a^2+b^2=c^2\)": "a² + b² = c²",
    r"$$E = mc^2$$": "E = mc²",
    r"\[ x = \frac{-b \pm \sqrt{b^2-4ac}}{2a} \]": "x = (-b ± √(b² − 4ac)) ÷ 2a",
    r"$\pi r^2$": "π r²",
    r"\(\left. x^2 \right|_0^1\)": "x² |_0^1",
    r"\(\left\{ a \right.\)": "{ a",
    r"$\alpha \le \beta$": "α ≤ β",
    r"$x_1 \times x_{12}$": "x_1 × x_12",
    r"$90^\circ$, $45^{\circ}$": "90°, 45°",
    r"$\text{speed} = 5\,\text{m/s}$": "speed = 5 m/s",
    r"$\sum_{i=1}^{n} i$": "∑[i=1→n] i",
    r"$\int\limits_0^1 x^2 \, dx$": "∫[0→1] x² dx",
    r"$\lim_{x \to 0} \sin x$": "lim[x→0] sin(x)",
    r"$\frac{d}{dx}\sin x + \frac{\partial f}{\partial x}$": "d/dx sin(x) + ∂f/∂x",
    r"$\log_2 8 + \sin^2\theta + n \log n$": "log₂(8) + sin²(θ) + n log(n)",
    r"$\bar{x} = \frac{1}{n}\sum_i x_i$": "x bar = 1/n ∑[i] x_i",
    r"$a \equiv 1 \pmod{7}$": "a ≡ 1 mod 7",
    r"$10^{-3} + e^{-x} + x^{n+1} + e^{-x^2}$": "10^-3 + e^-x + x^(n+1) + e^(-x²)",
    r"$2\frac{1}{2} = \frac{5}{2}$": "2 1/2 = 5 ÷ 2",
    r"$G\frac{m_1 m_2}{r^2}$": "G m_1 m_2 ÷ r²",
    r"$\frac{a+b}{2}$": "(a + b) ÷ 2",
    r"$\sqrt[3]{27} = \sqrt[n]{x}$": "∛27 = x^(1/n)",
    r"$\binom{n}{k}$": "C(n, k)",
    r"$\vec{F} = m\mathbf{a}$": "vector F = ma",
    r"$\begin{aligned} x &= 1 \\ y &= 2 \end{aligned}$": "x = 1, y = 2",
    r"$\left( x \right)$": "( x )",
    r"$50\% \{a\}$": "50% {a}",
    r"$1{,}000$": "1,000",
    "For $n$ items, $-5$ and $10$ boxes, $n!$": "For n items, -5 and 10 boxes, n!",
    r"\frac{3}{4} cup of \text{milk}": "3/4 cup of milk",
    r"$\foo{x}$": "foox",
    r"$\text{in [0, 1)}$ or \text{a \} b}": r"in [0, 1) or a \} b",
    r"$5x + 3 = 8$": "5x + 3 = 8",
}
TEXTS = [
    "It costs $5 and $6, $5-$10 or $5/month.",
    "It is $5k or $5M.",
    "US$5 = CA$6",
    "I paid $20 for $HOME and $PATH.",
    "use `$PATH`, `$HOME`.",
    r"a \[link\] here \(or there\)",
    r"C:\new\text{a} and \\server\frac{a}{b}",
    r"\frac{1}",
    r"\frac{1}{2",
    r"\sqrt and \text",
    "$x^2\n\nnext$",
    "a $ b $ c",
    "$",
    "\\",
    r"\(",
    "$$x^2" + "x" * MAX_FORMULA + "$$",
]


@pytest.mark.parametrize(("text", "expected"), FORMULAS.items())
def test_formula_becomes_signs(text: str, expected: str) -> None:
    assert read_formulas(text) == expected


@pytest.mark.parametrize("text", TEXTS)
def test_other_text_stays(text: str) -> None:
    assert read_formulas(text) == text


@pytest.mark.parametrize("text", [*FORMULAS, *TEXTS])
def test_formula_in_single_characters_reads_the_same(text: str) -> None:
    reader = TexReader()
    assert "".join(map(reader.feed, text)) + reader.finish() == read_formulas(text)


UNITS = [
    "$",
    "$$",
    "\\",
    "\\frac",
    "\\(",
    "\\)",
    "\\[",
    "{",
    "}",
    "^",
    "_",
    "x",
    "5",
    " ",
    "\n",
    ".",
    "=",
]


@given(st.lists(st.sampled_from(UNITS), max_size=30).map("".join), st.lists(st.integers(0, 99)))
@examples(400)
def test_any_text_in_any_pieces_reads_the_same(text: str, places: list[int]) -> None:
    reader = TexReader()
    assert "".join(map(reader.feed, cut(text, places))) + reader.finish() == read_formulas(text)


@pytest.mark.parametrize("text", ["It costs $5 and", "Set $PATH. Then", "a $1,000 sofa"])
def test_price_or_name_is_not_held_back(text: str) -> None:
    assert TexReader().feed(text) == text


def test_words_keep_their_places() -> None:
    text = r"so $x + \frac{1}{2}$ is"
    spoken = read_formulas(SpannedText.read(text, 0))
    assert isinstance(spoken, SpannedText)
    assert spoken == "so x + 1/2 is"
    assert text[slice(*spoken[-2:].span)] == "is"
    assert text[slice(*spoken[3:4].span)] == "x"


@pytest.mark.parametrize("sign", ["^", "_", r"\sqrt", r"\frac", r"\vec ", r"\sum_"])
def test_commands_without_braces_do_not_nest_without_end(sign: str) -> None:
    assert read_formulas(f"$${sign * (500 // len(sign))}x$$")


def test_deep_nesting_is_read() -> None:
    assert read_formulas("$$" + r"\sqrt{" * 40 + "x" + "}" * 40 + "^2$$").endswith("²")


@pytest.mark.parametrize("sign", ["\\frac{", "$", "$x ", "\\(", "\\sqrt[", "$$", "{\\frac"])
def test_time_is_linear_in_hostile_text(sign: str) -> None:
    began = time.process_time()
    read_formulas(sign * 20_000)
    assert time.process_time() - began < 5


def test_formula_is_spoken() -> None:
    options = ScriptOptions(clean=True, normalize=True)
    text = r"We get $\sum_{i=1}^{n} i = \frac{n(n+1)}{2}$, or $e^{-x} \le \frac{1}{2}$."
    assert plan_utterances(text, options) == [
        "We get the sum from i equals one to n of i equals n times n plus one divided by two, or "
        "e to the power of minus x is at most one half."
    ]
