"""Counts word errors of a transcript, independent of the spelling of numbers.

A recogniser writes "$5" or "five dollars", and "1984" has three readings. Both texts are spelled
out in every possible reading, and the closest pair counts. Uses the standard library only.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)
TENS = (
    *("zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"),
)
SCALES = ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth",
    "nine": "ninth", "twelve": "twelfth",
}  # fmt: skip
SPELLINGS = {
    "dr": "doctor", "mr": "mister", "mrs": "missus", "ms": "miss", "vs": "versus", "oh": "zero",
    "ok": "okay", "alright": "all right", "colour": "color", "colours": "colors",
    "grey": "gray", "centre": "center", "favourite": "favorite", "neighbours": "neighbors",
    "harbour": "harbor", "metres": "meters", "kilometres": "kilometers", "theatre": "theater",
    "travelled": "traveled", "realise": "realize", "programme": "program", "email": "e mail",
    "cannot": "can not", "oclock": "o clock", "no.": "number",
}  # fmt: skip
SIGNS = {
    "&": " and ",
    "%": " percent ",
    "+": " plus ",
    "=": " equals ",
    "°": " degrees ",
    "@": " at ",
}


@dataclass(frozen=True, slots=True)
class Count:
    errors: int
    words: int


def count_errors(text: str, transcript: str) -> Count:
    """Words that are missing, added or replaced in the transcript."""
    pairs = [(wanted, found) for wanted in spellings(text) for found in spellings(transcript)]
    counts = [Count(distance(wanted, found), len(wanted)) for wanted, found in pairs]
    return min(counts, key=lambda count: (count.errors, count.words))


def spellings(text: str) -> list[list[str]]:
    """The words of a text, once for each reading of its numbers."""
    readings = READINGS if re.search(r"\d", text) else READINGS[:1]
    found = [list(_words(text, read)) for read in readings]
    return [words for index, words in enumerate(found) if words not in found[:index]]


def distance(wanted: list[str], found: list[str]) -> int:
    """Edit distance in words. Two words written as one, or one as two, are no edit."""
    return _edit_table(wanted, found)[-1][-1]


def split_errors(text: str, transcript: str, num_first: int) -> tuple[Count, Count]:
    """Errors in the first `num_first` words of the text, and in the words after them.

    An added word counts where the next word of the text is.
    """
    pairs = [(wanted, found) for wanted in spellings(text) for found in spellings(transcript)]
    wanted, found = min(pairs, key=lambda pair: (distance(*pair), len(pair[0])))
    places = _edit_places(wanted, found)
    num_early = sum(place < num_first for place in places)
    words = min(num_first, len(wanted))
    return Count(num_early, words), Count(len(places) - num_early, len(wanted) - words)


def _edit_table(wanted: list[str], found: list[str]) -> list[list[int]]:
    """Entry [i][j] is the distance between the first i wanted and the first j found words."""
    table = [[i + j for j in range(len(found) + 1)] for i in range(len(wanted) + 1)]
    for i in range(1, len(wanted) + 1):
        for j in range(1, len(found) + 1):
            table[i][j] = min(table[a][b] + cost for a, b, cost in _edit_steps(wanted, found, i, j))
    return table


def _edit_steps(wanted: list[str], found: list[str], i: int, j: int) -> list[tuple[int, int, int]]:
    """Earlier entries from which entry [i][j] is reached, with the cost."""
    steps = []
    if i and j:
        steps.append((i - 1, j - 1, int(wanted[i - 1] != found[j - 1])))
        if i > 1 and "".join(wanted[i - 2 : i]) == found[j - 1]:
            steps.append((i - 2, j - 1, 0))
        if j > 1 and "".join(found[j - 2 : j]) == wanted[i - 1]:
            steps.append((i - 1, j - 2, 0))
    if i:
        steps.append((i - 1, j, 1))
    if j:
        steps.append((i, j - 1, 1))
    return steps


def _edit_places(wanted: list[str], found: list[str]) -> list[int]:
    """The wanted word of every edit, by its index. Added words count at the next word."""
    table, places = _edit_table(wanted, found), []
    i, j = len(wanted), len(found)
    while i or j:
        steps = _edit_steps(wanted, found, i, j)
        a, b, cost = next(one for one in steps if table[one[0]][one[1]] + one[2] == table[i][j])
        if cost:
            places.append(a if a < i else min(i, len(wanted) - 1))
        i, j = a, b
    return places[::-1]


def _words(text: str, read: Callable[[str], str]) -> Iterator[str]:
    parts = unicodedata.normalize("NFKD", text.lower())
    text = "".join(part for part in parts if not unicodedata.combining(part))
    text = re.sub(r"['’‘`]", "", text)
    text = re.sub(r"\b(?:[a-z]\.){2,}", lambda match: match[0].replace(".", ""), text)
    text = re.sub(r"[$£€]\s?(\d[\d,]*)(?:\.(\d\d))?", _money, text)
    for sign, word in SIGNS.items():
        text = text.replace(sign, word)
    text = re.sub(r"(?<=\d),(?=\d\d\d)", "", text)
    text = re.sub(r"(\d+)(?:st|nd|rd|th)\b", lambda match: f" {ordinal(int(match[1]))} ", text)
    text = re.sub(r"(\d+)\.(\d+)", lambda match: f"{match[1]} point {' '.join(match[2])}", text)
    text = re.sub(r"(\d+):00\b", r"\1", text)
    text = re.sub(r"\d+", lambda match: f" {read(match[0])} ", text)
    for word in re.sub(r"[^a-z ]", " ", text).split():
        yield from SPELLINGS.get(word, word).split()


def _money(match: re.Match[str]) -> str:
    cents = f" and {match[2]} cents" if match[2] and match[2] != "00" else ""
    return f"{match[1]} dollar{'s' if match[1] != '1' else ''}{cents}"


def cardinal(number: int) -> str:
    if number < 20:
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens] + (f" {ONES[ones]}" if ones else "")
    for size, name in SCALES:
        if number >= size:
            head, rest = divmod(number, size)
            return f"{cardinal(head)} {name}" + (f" {cardinal(rest)}" if rest else "")
    raise AssertionError(number)


def ordinal(number: int) -> str:
    *head, last = cardinal(number).split()
    last = f"{last[:-1]}ieth" if last.endswith("y") else ORDINALS.get(last, f"{last}th")
    return " ".join([*head, last])


def _as_number(digits: str) -> str:
    return _one_by_one(digits) if len(digits) > 12 else cardinal(int(digits))


def _one_by_one(digits: str) -> str:
    return " ".join(ONES[int(digit)] for digit in digits)


def _in_pairs(digits: str) -> str:
    """Years, hours and minutes: 1984, 905, 05."""
    if len(digits) not in (2, 3, 4) or digits.endswith("000") or digits[-3:-1] == "00":
        return _as_number(digits)
    head, pair = digits[:-2], digits[-2:]
    hundreds = f"{cardinal(int(head))} " if head else ""
    if pair == "00":
        return f"{hundreds}hundred"
    return hundreds + (f"zero {ONES[int(pair[1])]}" if pair[0] == "0" else cardinal(int(pair)))


READINGS = (_as_number, _in_pairs, _one_by_one)
