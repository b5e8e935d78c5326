"""Functions, mathematical signs, and units with and without numbers."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from vivace.text.normalize import normalize_text

FUNCTIONS = {
    "f(x)": "f of x",
    "The graph of f(x).": "The graph of f of x.",
    "f(x) = x^2 + 3x": "f of x equals x squared plus three x",
    "f(x)=x²+1": "f of x equals x squared plus one",
    "f(x, y) = x + y": "f of x, y equals x plus y",
    "(see g(t))": "see g of t",
    "h(x,y,z)!": "h of x, y, z!",
    "f(g(x))": "f of g of x",
    "f'(x) and f''(x)": "f prime of x and f double prime of x",
    "f⁻¹(y)": "f inverse of y",
    "φ(n)": "phi of n",
    "sin²(x) + cos²(x) = 1": "sine squared of x plus cosine squared of x equals one",
    "sin(2πx)": "sine of two pi x",
    "log₂(8) and exp(-x)": "log base two of eight and exponential of minus x",
    "max(a, b)": "max of a, b",
    "P(A | B) = 0.5": "P of A given B equals zero point five",
    "It is O(n log n).": "It is O of n log n.",
    "f(x₁) / f(x_2)": "f of x one slash f of x two",
    "|x| is small.": "the absolute value of x is small.",
    "|a-b|": "the absolute value of a minus b",
    "x - y = z": "x minus y equals z",
}
NO_FUNCTIONS = {
    "the error(s)": "the error s",
    "a(n) apple": "a n, apple",
    "s(he) said": "s he, said",
    "Rule B(2) applies.": "Rule B two, applies.",
    "It is 3x faster.": "It is three times faster.",
    "I saw a - no, I did not.": "I saw a - no, I did not.",
}
SIGNS = {
    "∑": "the sum",
    "∑ x": "the sum of x",
    "the sign ∏ of products": "the sign the product of products",
    "∫ f(x) dx": "the integral of f of x dx",
    "a ∈ B": "a is in B",
    "x∉A": "x is not in A",
    "A ∪ B ∩ C": "A union B intersection C",
    "∀x ∃y": "for all x there exists y",
    "p ⇒ q": "p implies q",
    "¬p ∨ q": "not p or q",
    "y ∝ x": "y is proportional to x",
    "a ≡ b": "a is equivalent to b",
    "5‰ and ‰": "five per thousand and per thousand",
    "≈": "is about",
    "a ⊞ b": "a squared plus b",  # its Unicode name
}
BOUNDS = {
    "∑[i=1→n] i": "the sum from i equals one to n of i",
    "∑[k] a_k.": "the sum over k of a k.",
    "∫[-∞→∞] f(x) dx": "the integral from minus infinity to infinity of f of x dx",
    "lim[x→0] x²": "the limit as x approaches zero of x squared",
    "∏[k=1→n+1] k": "the product from k equals one to n plus one of k",
    "e^-x and 2^(-n)": "e to the power of minus x and two to the power of minus n",
    "d/dx x² = 2x": "the derivative by x of x squared equals two x",
    "d²y/dx² + ∂f/∂x": "d squared y by d x squared plus partial f by partial x",
    "e^-λ": "e to the power of minus lambda",
    "n(n+1)/2": "n times n plus one over two",
    "k(k+1)(2k+1)": "k times k plus one times two k plus one",
    "a(b+c) but f(x+1) and x(t)": "a times b plus c but f of x plus one and x of t",
    "x = 1/N": "x equals one over N",
    "x^(n+1) or e^(-x²).": "x to the power of n plus one or e to the power of minus x squared.",
    "Results: ≈ 3": "Results: about three",
    "x[0] and lim[3]": "x zero and lim three",
}
UNITS = {
    "The limit in km/h.": "The limit in kilometers per hour.",
    "m/s, mg/dL and W/m²": "meters per second, milligrams per deciliter and watts per square meter",
    "1 kg/m³": "one kilogram per cubic meter",
    "9.81 m/s²": "nine point eight one meters per second squared",
    "10 N·m": "ten newton meters",
    "6 l/100 km": "six liters per one hundred kilometers",
    "50 Mbit/s": "fifty megabits per second",
    "10kΩ": "ten kilohms",
    "two euros per kg": "two euros per kilogram",
    "weights in kg": "weights in kilograms",
    "€/kWh": "euros per kilowatt hour",
    "$/month": "dollars per month",
    "rpm and kHz": "R P M and kilohertz",
    "in °F": "in degrees Fahrenheit",
    "120/80 mmHg": "one hundred twenty over eighty millimeters of mercury",
    # No units
    "w/o": "without",
    "in/out and he/she": "in out and he or she",
    "an mm-hm": "an mm-hm",
    "16 bit": "sixteen bit",
}
CASES = (FUNCTIONS, NO_FUNCTIONS, SIGNS, BOUNDS, UNITS)
ALL = [case for cases in CASES for case in cases.items()]


@pytest.mark.parametrize(("text", "said"), ALL, ids=[text for text, _ in ALL])
def test_formula_is_read_as_spoken(text: str, said: str) -> None:
    assert normalize_text(text) == said


def test_every_mathematical_and_currency_sign_has_words() -> None:
    """A sign between two words is never left out, whatever it is."""
    signs = [chr(code) for code in range(0x80, sys.maxunicode + 1)]
    signs = [sign for sign in signs if unicodedata.category(sign) in ("Sm", "Sc")]
    signs.remove("⁄")  # part of a fraction
    signs = [sign for sign in signs if not unicodedata.normalize("NFKC", sign).isascii()]
    assert len(signs) > 900
    lost = [sign for sign in signs if len(normalize_text(f"word {sign} word").split()) < 3]
    assert lost == []
