"""Sums of money: `$5.50`, `€3`, `£1.2m`, `$5 million`, `5 USD`, `$20/month`, `50¢`."""

from __future__ import annotations

import re
from dataclasses import replace

from vivace.text.normalize.english.context import is_attribute
from vivace.text.normalize.english.numbers import NUMBER, decimal, is_one, read_digits
from vivace.text.normalize.english.ranges import say_fraction
from vivace.text.normalize.english.tables import word_map
from vivace.text.normalize.english.unit_names import per_words, unit_trail
from vivace.text.normalize.english.units import SCALES, join_groups
from vivace.text.normalize.rules import (
    Reading,
    Token,
    TokenReader,
    core_after,
    word_before,
)

# Singular, plural and hundredth.
_CURRENCIES = {
    "$": ("dollar", "dollars", "cent"),
    "£": ("pound", "pounds", "penny"),
    "€": ("euro", "euros", "cent"),
    "¥": ("yen", "yen", ""),
    "₹": ("rupee", "rupees", ""),
    "₽": ("ruble", "rubles", ""),
    "₩": ("won", "won", ""),
    "₿": ("bitcoin", "bitcoins", ""),
    "₺": ("lira", "lira", ""),
    "₴": ("hryvnia", "hryvnia", ""),
    "₫": ("dong", "dong", ""),
    "₱": ("peso", "pesos", ""),
    "฿": ("baht", "baht", ""),
    "₪": ("shekel", "shekels", ""),
    "₦": ("naira", "naira", ""),
    "円": ("yen", "yen", ""),
    "元": ("yuan", "yuan", ""),
}
_CODES = word_map("currency_codes")
_BEFORE = word_map("currency_origins")
_OF = "|".join(sorted(_BEFORE, key=len, reverse=True))
_SIGN = "".join(_CURRENCIES)
_NAMES = {
    **_CURRENCIES,
    **{code: tuple(names.split("|")) for code, names in word_map("currency_names").items()},
}
_N = rf"{NUMBER}|\.\d+|\d+,\d{{1,2}}"  # the last with a decimal comma: €3,50
_MARKS = word_map("number_signs")  # "-$5", "~$5"
_SCALE_LETTERS = word_map("scale_letters")
_SUM = re.compile(
    rf"(?P<mark>[-−~≈<>≤≥▲▼△▽])?(?P<of>{_OF})?(?P<sign>[{_SIGN}])(?P<number>{_N})"
    rf"(?P<scale>[kKmMbBtT]|[mbt]n)?(?:[-–—](?P<sign2>[{_SIGN}])?(?P<number2>{_N})"
    rf"(?P<scale2>[kKmMbBtT]|[mbt]n)?)?(?:/(?P<per>[A-Za-z]+|\d{{1,4}}[kKMB]?)|(?P<tail>(?:-[a-z]+)+))?(?P<plus>\+)?"
)
_SCALE_SPAN = re.compile(
    rf"({'|'.join(SCALES)})[-–—]([{_SIGN}]?(?:{_N}))"
)  # "$1 million–$2 million"
_AFTER = re.compile(
    rf"(?:(?P<low>{_N})[-–])?(?P<number>{_N})(?P<scale>[kKmM]|[mbt]n)?(?P<sign>[{_SIGN}])"
)
_CENTS = re.compile(rf"({_N})¢(?:/([A-Za-z]+))?")
_WITH_PART = re.compile(rf"([{_SIGN}])(\d+[½⅓⅔¼¾⅛⅜⅝⅞])")  # "$14½"
_FOR = re.compile(rf"(\d{{1,2}})/([{_SIGN}](?:{_N}))")  # "2/$15"
_EVEN = re.compile(r"(.*\d)[.,][-–—]+")  # "€99,–"
_LONE = re.compile(rf"(?:{_OF})?[{_SIGN}]")  # "R$ 50"
_PLAIN = re.compile(_N)
_DECIMAL_COMMA = re.compile(r"\d+,\d{1,2}")


def read_money(reader: TokenReader, token: Token) -> Reading | None:
    if found := _EVEN.fullmatch(token.core):
        return read_money(reader, replace(token, core=found[1]))
    if found := _SUM.fullmatch(token.core):
        return _read_sum(reader, found)
    if (found := _WITH_PART.fullmatch(token.core)) and (part := say_fraction(found[2])) is not None:
        return Reading(f"{part} {_CURRENCIES[found[1]][1]}")
    if (found := _FOR.fullmatch(token.core)) is not None:
        return Reading(f"{decimal(found[1])} for {reader.read_alone(found[2])}")
    if found := _AFTER.fullmatch(token.core):
        scale = _SCALE_LETTERS.get(found["scale"] or "", "")
        low = f"{decimal(_with_point(found['low']))} to " if found["low"] else ""
        return Reading(low + _amount(found["number"], found["sign"], scale, is_many=bool(low)))
    if found := _CENTS.fullmatch(token.core):
        per = f" per {per_words(found[2])}" if found[2] else ""
        return Reading(f"{decimal(found[1])} cent{'' if is_one(found[1]) else 's'}{per}")
    if _PLAIN.fullmatch(token.core):
        number, num_tokens = join_groups(reader, token.core)
        following = core_after(reader, num_tokens)
        sign = _CODES.get(following, following)
        if sign in _NAMES:
            return Reading(_amount(number, sign, ""), num_tokens + 1)
    following = core_after(reader, 1)
    code = _CODES.get(token.core, token.core)
    if code in _NAMES and _PLAIN.fullmatch(following := _EVEN.sub(r"\1", following)):
        return Reading(_amount(following, code, ""), 2)
    even = _EVEN.sub(r"\1", token.core + following)
    if _LONE.fullmatch(token.core) and (found := _SUM.fullmatch(even)):
        return _read_sum(reader, found, num_tokens=2)
    return None


def _read_sum(reader: TokenReader, found: re.Match[str], num_tokens: int = 1) -> Reading | None:
    sign, scale = found["sign"], _SCALE_LETTERS.get(found["scale"] or "", "")
    tail = (
        (found["tail"] or "").replace("-", " ").lstrip()
    )  # "$40-million deal", "$12-an-hour wage"
    if tail in SCALES:
        scale, tail = tail, ""
    is_tailed = found["tail"] is not None
    second = _SCALE_SPAN.fullmatch(core_after(reader, num_tokens))
    if second and core_after(reader, num_tokens + 1) in SCALES:
        first = _amount(found["number"], sign, second[1])
        last = _amount(second[2].lstrip(_SIGN), sign, core_after(reader, num_tokens + 1))
        return Reading(f"{first} to {last}", num_tokens + 2)
    if not scale and (following := core_after(reader, num_tokens)) in SCALES:
        scale, num_tokens = following, num_tokens + 1
    number, low = _with_point(found["number"]), ""
    if num_tokens == 1 and not found["number2"] and not scale:
        number, num_tokens = join_groups(reader, number)
    if found["number2"]:
        low = decimal(number) + (f" {scale}" if found["scale"] else "") + " to "
        number = _with_point(found["number2"])
        scale = _SCALE_LETTERS.get(found["scale2"] or "", scale)
    origin = _BEFORE.get(found["of"] or "", "")
    if origin == "reais":  # R$ is no dollar
        origin, sign = "", "BRL"
    is_single = not found["per"] and not found["plus"] and is_attribute(reader, num_tokens)
    is_single = is_single or (is_tailed and (not tail or word_before(reader) in ("a", "an")))
    words = low + _amount(number, sign, scale, is_many=bool(low), of=origin, is_single=is_single)
    if found["mark"]:
        words = f"{_MARKS[found['mark']]} {words}"
    if found["per"]:
        words += f" per {_per(found['per'])}"
    words = " ".join(filter(None, [words, tail, "plus" if found["plus"] else ""]))
    trail = unit_trail(reader, found["per"], num_tokens - 1) if found["per"] else None
    return Reading(words, num_tokens, trail)


def _per(text: str) -> str:
    """What a sum is paid for: `$5/hr`, `$2/1M tokens`."""
    number = text.rstrip("kKMB")
    if not number.isdecimal():
        return per_words(text)
    return f"{decimal(number)} {_SCALE_LETTERS.get(text[len(number) :], '')}".strip()


def _with_point(number: str) -> str:
    return number.replace(",", ".") if _DECIMAL_COMMA.fullmatch(number) else number


def _amount(
    number: str,
    sign: str,
    scale: str,
    *,
    is_many: bool = False,
    of: str = "",
    is_single: bool = False,
) -> str:
    """The words of a sum. `is_single`: the sum describes a noun, as in `a $20 bill`."""
    number = _with_point(number)
    one, several, hundredth = _NAMES[sign]
    if is_single and (scale or "." not in number):
        several = one
    whole, _, places = number.replace(",", "").partition(".")
    if scale or not hundredth or len(places) not in (0, 2) or is_many:
        name = one if is_one(number) and not scale and not is_many else several
        return f"{decimal(number)} {scale + ' ' if scale else ''}{of}{name}"
    cents = int(places or 0)
    parts = []
    if int(whole or 0) or not cents:
        parts.append(
            f"{read_digits(str(int(whole or 0)))} {of}{one if int(whole or 0) == 1 else several}"
        )
    if cents:
        several_cents = "pence" if hundredth == "penny" else f"{hundredth}s"
        parts.append(f"{read_digits(str(cents))} {hundredth if cents == 1 else several_cents}")
    return " and ".join(parts)
