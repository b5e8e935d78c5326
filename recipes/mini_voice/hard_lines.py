"""Difficult lines that templates.py lacks.

Capitals, acronyms, codes, addresses, Roman numerals, brackets, quotes, foreign words and repeated
sounds. The caller must normalize them, because the talker sees words only.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from recipes.mini_voice.templates import ACRONYMS, CITIES, FIRST, FOODS, LAST, OBJECTS, VERBS

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DOMAINS = ("com", "org", "net", "io", "co.uk", "de", "edu", "gov", "ai", "dev")
ROMAN = ("II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII", "XIV", "XVI", "XX")
FOREIGN = (
    "déjà vu", "croissant", "fiancée", "schadenfreude", "jalapeño", "karaoke", "tsunami", "ballet",
    "bouquet", "gnocchi", "quinoa", "sauerkraut", "zeitgeist", "café au lait", "faux pas",
    "rendezvous", "fjord", "origami", "paella", "tortilla", "espresso", "hors d'oeuvre", "kimono",
    "angst", "kindergarten", "et cetera", "status quo", "ad hoc", "bona fide", "carpe diem",
    "prima donna", "al dente", "haiku", "sushi", "naïve", "façade", "résumé", "piñata", "mañana",
)  # fmt: skip
SOUNDS = (
    "b", "bl", "br", "c", "ch", "cl", "cr", "d", "dr", "f", "fl", "fr", "g", "gl", "gr", "h", "k",
    "l", "m", "n", "p", "ph", "pl", "pr", "qu", "r", "s", "sc", "sh", "sk", "sl", "sm", "sn", "sp",
    "st", "str", "sw", "t", "th", "thr", "tr", "v", "w", "wh", "y",
)  # fmt: skip
UNITS = ("km", "kg", "mph", "GB", "MHz", "°C", "cm", "ml", "lbs", "ft")


class HardLines:
    """`words`, grouped by their first letters, are used for tongue-twisters."""

    def __init__(self, words: list[str], rng: random.Random) -> None:
        self._rng = rng
        self._by_sound = {s: [w for w in words if w.startswith(s)] for s in SOUNDS}
        self._by_sound = {s: found for s, found in self._by_sound.items() if len(found) > 20}
        makers: list[tuple[Callable[[], str], int]] = [
            (self._capitals, 14), (self._code, 12), (self._address, 12), (self._roman, 8),
            (self._brackets, 8), (self._quoted, 12), (self._foreign, 10), (self._twister, 14),
            (self._figures, 14),
        ]  # fmt: skip
        self._makers, self._weights = zip(*makers, strict=True)

    def line(self) -> str:
        return self._rng.choices(self._makers, self._weights)[0]()

    def _caps(self, low: int = 2, high: int = 5) -> str:
        return "".join(self._rng.choices(LETTERS, k=self._rng.randint(low, high)))

    def _capitals(self) -> str:
        rng = self._rng
        one = rng.choice(ACRONYMS) if rng.random() < 0.4 else self._caps(2, 4)
        two = self._caps(2, 4)
        return rng.choice(
            (
                f"The {one} and the {two} signed an agreement in {rng.choice(CITIES)}.",
                f"Plug the {one} cable into the {two} port.",
                f"{one} stands for nothing at all.",
                f"She works at {one} as a {two} engineer.",
                f"DO NOT {rng.choice(VERBS).upper()} {rng.choice(OBJECTS).upper()}!",
                f"Is {one} better than {two}?",
                f"The {one} API returned an error.",
                f"Open the {one} file with {two}.",
            )
        )

    def _code(self) -> str:
        rng, digits = self._rng, lambda k: "".join(self._rng.choices("0123456789", k=k))
        return rng.choice(
            (
                f"Your booking code is {self._caps(2, 3)}{digits(3)}.",
                f"Flight {self._caps(2, 2)} {digits(3)} to {rng.choice(CITIES)} is delayed.",
                f"Version {rng.randint(0, 20)}.{rng.randint(0, 20)}.{rng.randint(0, 9)} is out.",
                f"Enter {digits(4)}-{digits(4)} to confirm.",
                f"The part number is {self._caps(1, 2)}-{digits(3)}{self._caps(1, 1)}.",
                f"Take the {self._caps(1, 1)}{rng.randint(1, 99)} bus from gate "
                f"{self._caps(1, 1)}{rng.randint(1, 40)}.",
                f"The license plate reads {self._caps(3, 3)} {digits(4)}.",
                f"See line {digits(3)} of section {rng.randint(1, 9)}.{rng.randint(1, 9)}.",
            )
        )

    def _address(self) -> str:
        rng = self._rng
        first, last = rng.choice(FIRST), rng.choice(LAST)
        site = rng.choice((last, rng.choice(FOODS), rng.choice(CITIES))).lower().replace(" ", "")
        site = "".join(letter for letter in site if letter.isalnum()) + "." + rng.choice(DOMAINS)
        return rng.choice(
            (
                f"Write to {first.lower()}.{last.lower()}@{site}.",
                f"Write to {first.lower()}{rng.randint(1, 99)}@{site} today.",
                f"Visit www.{site} for more.",
                f"The page is at https://{site}/{rng.choice(FOODS).replace(' ', '-')}.",
                f"Go to {site} and sign in.",
                f"{rng.randint(1, 999)} {last} St., {rng.choice(CITIES)}.",
            )
        )

    def _roman(self) -> str:
        rng, number = self._rng, self._rng.choice(ROMAN)
        return rng.choice(
            (
                f"{rng.choice(FIRST)} {number} was crowned in {rng.choice(CITIES)}.",
                f"Chapter {number} begins with a question.",
                f"King {rng.choice(FIRST)} {number} had no children.",
                f"Read part {number} of the report.",
                f"World War {rng.choice(('I', 'II'))} changed {rng.choice(CITIES)}.",
            )
        )

    def _brackets(self) -> str:
        rng = self._rng
        return rng.choice(
            (
                f"{rng.choice(FIRST)} (my {rng.choice(('uncle', 'sister', 'boss', 'cousin'))}) "
                f"wants to {rng.choice(VERBS)} {rng.choice(OBJECTS)}.",
                f"Add {rng.choice(FOODS)} (if you have any) and {rng.choice(FOODS)}.",
                f"The {rng.choice(ACRONYMS)} ({rng.choice(CITIES)} office) is closed.",
                f"We met in {rng.choice(CITIES)} - or was it {rng.choice(CITIES)}? - years ago.",
                f"{rng.choice(FOODS).capitalize()}/{rng.choice(FOODS)} and/or "
                f"{rng.choice(FOODS)} will do.",
            )
        )

    def _quoted(self) -> str:
        rng = self._rng
        said = rng.choice(("said", "asked", "shouted", "whispered", "replied", "cried"))
        what = f"{rng.choice(VERBS)} {rng.choice(OBJECTS)}"
        return rng.choice(
            (
                f'"Please {what}," {said} {rng.choice(FIRST)}.',
                f'"Did you {what}?" {rng.choice(FIRST)} {said}.',
                f'{rng.choice(FIRST)} {said}: "I will {what}."',
                f'"{rng.choice(FIRST)}!" she {said}. "{what.capitalize()}!"',
                f"Why... why would you {what}?",
                f"Well, um, {what}, I suppose.",
            )
        )

    def _foreign(self) -> str:
        rng, one, two = self._rng, self._rng.choice(FOREIGN), self._rng.choice(FOREIGN)
        return rng.choice(
            (
                f"She ordered {one} and {two} in {rng.choice(CITIES)}.",
                f"What does {one} mean?",
                f"{rng.choice(FIRST)} says {one} far too often.",
                f"A {one}, a {two} and some {rng.choice(FOODS)}.",
                f"It was a case of {one}, not of {two}.",
            )
        )

    def _twister(self) -> str:
        """Words with the same beginning, or with two alternating beginnings."""
        rng = self._rng
        sounds = rng.choices(list(self._by_sound), k=rng.choice((1, 1, 2)))
        words = [rng.choice(self._by_sound[sounds[i % len(sounds)]]) for i in range(7)]
        a, b, c, d, e, f, g = words
        text = rng.choice(
            (
                f"{a} {b} {c} {d} {e}",
                f"the {a} {b} {c} the {d} {e}",
                f"{a} the {b}, {b} the {a}, {a} the {b}",
                f"six {a} {b} and six {c} {b} {d}",
                f"if {a} {b} {c}, then {d} {e} {f} {g}",
                f"{a} {b}, {c} {b}, {a} {b}, {c} {b}",
            )
        )
        return text[0].upper() + text[1:] + rng.choice((".", ".", "!", "?"))

    def _figures(self) -> str:
        rng = self._rng
        return rng.choice(
            (
                f"{rng.randint(1, 999)} {rng.choice(UNITS)}, not {rng.randint(1, 999)}.",
                f"From {rng.randint(1, 50)} to {rng.randint(51, 99)}% of {rng.choice(CITIES)}.",
                f"Pages {rng.randint(1, 90)}-{rng.randint(91, 400)} are missing.",
                f"In the {rng.choice(range(1800, 2030, 10))}s it cost ${rng.randint(1, 999)}.",
                f"On {rng.randint(1, 12)}/{rng.randint(1, 28)}/{rng.randint(1950, 2030)} at "
                f"{rng.randint(0, 23)}:{rng.randint(0, 59):02d}.",
                f"{rng.randint(1, 9)} x {rng.randint(1, 99)} = {rng.randint(1, 999)}.",
                f"No. {rng.randint(1, 99)} is {rng.randint(1, 9)}/{rng.randint(2, 10)} full.",
                f"{rng.randint(10**6, 10**9):,} people, or {rng.randint(2, 99)} thousand?",
            )
        )
