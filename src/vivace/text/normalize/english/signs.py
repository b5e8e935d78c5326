"""Signs: spoken signs become words, other signs become ASCII."""

from __future__ import annotations

import re
import unicodedata

from vivace.text.html_elements import TAG, drop_tag
from vivace.text.normalize.english.capitals import read_word
from vivace.text.normalize.english.numbers import read_digits, spell_digits
from vivace.text.normalize.english.operators import is_menu_path, is_minus, read_key
from vivace.text.normalize.english.tables import word_map, word_set
from vivace.text.normalize.rules import (
    Reading,
    Token,
    TokenReader,
    is_beside_operator,
    word_before,
)

_WORDS = word_map("signs")
# Signs inside a word that are spoken; other signs separate its parts.
INSIDE = {**{sign: _WORDS[sign] for sign in "&+=@±×÷<>≤≥≈≠→°√∞²³%^"}, "/": "slash", "_": ""}
_FACE = re.compile(r"[:;]['’]?-?[()DPpOo/\\|*]+|\^_*\^")  # emoticons are not spoken
_OPERATORS_OF_SEVERAL = ("->", "=>", "<-", "<=", ">=", "<>", "==", "!=", "+/-")
_ONLY_SIGNS = re.compile(r"(?=[^.,;:!?]*[><^_])[<>^_.,;:=~*'’-]{2,}")
_HALF_DAY = re.compile(r"\d*[ap]\.?m", re.IGNORECASE)
# A backslash, and the bracket of `list[int]` and `a[i]`, unlike that of `walk[ed]`, `look[ing]`.
_BETWEEN_WORDS = re.compile(
    r"(?<=\w)(?:\\(?=\w)|\[(?=(?!(?:ing|ies|est)\b)\w{3,}|[ijk]\Z))|(?<=\b\w)\[(?=\w\Z)"
)
_FRACTION = "⁄"  # part of "½"
_GREEK = re.compile("[\u0370-\u03ff\u1f00-\u1fff]+")
_MAX_GREEK = 2  # letters in a row that are symbols, not a Greek word
_OPERATORS = frozenset("+=<>×÷*/−^~≈")
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("“”„«»‹›″", '"'),
        **dict.fromkeys("‘’‚′`´", "'"),
        **dict.fromkeys("–‐‑‒", "-"),
        **dict.fromkeys("®™†‡¶•·*_|{}[]<>~^\\", ""),
        "№": " number ",
        "…": "...",
        "—": " - ",
        "―": " - ",
    }
)
_LETTERS = str.maketrans(word_map("letters"))
_MARKS = re.compile(r"[*_|{}\[\]<>~^\\`]")
_ROW = re.compile(r"([^\w\s.,;:!?'\"-])\1+")
_DIGITS = re.compile(r"(\d+)(?:\.(\d+))?")
_LIMITS = {"≤": "at most", "≥": "at least", "≈": "about"}
_SUM = re.compile(r"[$€£¥]?\d")
_CHANGES = {sign: word_map("number_signs")[sign] for sign in "▲▼△▽"}
_COMPARISONS = {"<": "less than", ">": "more than"}
_WITH_UNIT = re.compile(r"\d+[A-Za-z°].*")
_CLOCK = re.compile(r"\d{1,2}:\d\d.*")
_DASHES = re.compile("[—―]{2,}")  # "Mr. B—— called"
# Anything but letters, white space and plain punctuation.
_LEFT = re.compile(r"[^\w\s.,;:!?'\"-]|[\d_⁄½-¾⅐-⅞]|[²³¹⁰-₉]")
_LEFTOVERS = {sign: _WORDS[sign] for sign in "&+=%@±×÷≤≥≈≠→°©§√∞$€£¥#"}
_GAPS = re.compile(r" +( |[.,;:!?](?!\w))")
_SOFT = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff\ufe00-\ufe0f]")
_OR_WORDS = word_set("or_words")
_BEFORE_STOP = re.compile(r"\s+(?=[.,;:!?])")
_NOTE_MARK = re.compile(r"\[\^\w{1,40}\]:?")  # of Markdown
_TYPE = re.compile(r"([\w:.]+)<(\w+)>(.*)")  # "List<T>"
_PERIODS = {"hr": "hour", "wk": "week", "mo": "month", "yr": "year"}
_TIMES = frozenset((*_PERIODS, *_PERIODS.values(), "day", "min", "minute"))
_STROKE = re.compile(r"[A-Za-z'’-]+(?:/[A-Za-z'’-]+)+")


def read_sign(reader: TokenReader, token: Token) -> Reading | None:
    """A sign between spaces: `*` is spoken in `2 * 3`, but not between words."""
    text = token.text
    if _FACE.fullmatch(text):
        is_inside = reader.before is not None and reader.before.is_open
        return Reading("", lead="," if is_inside and reader.token(1) else "", trail="")
    if text == "[x]" and reader.before is not None and reader.before.text in ("-", "*"):
        return Reading("", lead="", trail="")  # a task that is done
    if token.core == "<3" and (words := _read_heart(reader, token)) is not None:
        return Reading(words)
    if _ONLY_SIGNS.fullmatch(text) and text not in _OPERATORS_OF_SEVERAL:
        return Reading("", lead="", trail="")  # ">_<", "^^"
    if token.core in _CHANGES and (following := reader.token(1)) is not None:
        return Reading(_CHANGES[token.core]) if _SUM.match(following.core) else None  # "(▲ 2.1%)"
    if len(text) > 1 and text not in _OPERATORS_OF_SEVERAL:
        return read_key(reader, token)
    if (key := read_key(reader, token)) is not None:
        return key
    if text in ("->", "=>"):
        return Reading("to", trail="")
    if text == "+/-":
        return Reading("plus or minus", trail="")
    if sign_is_heading(reader, text):
        return Reading("", trail="")
    sign = {"<-": "←", "<=": "≤", ">=": "≥", "==": "=", "!=": "≠", "<>": "≠"}.get(text, text)
    before = reader.before
    is_quotient = sign == "/" and before is not None and before.trail.endswith(")")
    if is_quotient and _begins_operand(reader.token(1)):
        return Reading("divided by", trail="")
    if sign == "/" and before is not None and _is_stroke(before, reader.token(1)):
        return Reading("", lead=",", trail="")
    is_measure = sign == "/" and _has_unit(reader.token(1))  # "200C / 180C"
    if sign in ("-", "–", "/") and not is_measure and is_minus(reader, before):
        return Reading("divided by" if sign == "/" else "minus", trail="")
    following = reader.token(1)
    is_before_number = following is not None and following.core[:1].isdigit()
    if sign in _LIMITS and is_before_number and (before is None or not before.is_open):
        return Reading(_LIMITS[sign], trail="")  # "Noise: ≤ 45 dB"
    if sign in _COMPARISONS and is_before_number and before is not None and not before.is_open:
        return Reading(_COMPARISONS[sign], trail="")  # "Latency: < 45 ms"
    is_after_time = before is not None and _HALF_DAY.fullmatch(before.core) is not None
    if sign in ("-", "–") and is_after_time and is_before_number:  # "7 a.m. - 9 p.m."
        return Reading("to", trail="")
    if sign in ("·", "•") and following is not None and reader.is_after_word:
        is_product = _begins_operand(following) and _is_in_formula(reader)
        return Reading("times" if is_product else "", lead="" if is_product else ",", trail="")
    if sign in (">", "›") and is_menu_path(reader, before, following):
        return Reading("then", lead=",", trail="")
    if sign not in _WORDS or (sign in "$€£¥" and is_before_number):
        return None
    is_alone = before is None and following is None and not sign.isascii()  # ">" is markup
    if sign in _OPERATORS and not (is_alone or (before is not None and _is_operand(before, sign))):
        return Reading("", trail="")
    if text in ("==", "=") and following is None:
        return Reading("", trail="")  # the end of a heading
    if sign == "*" and before is not None and _is_word(before) and _is_word(following):
        return Reading("", trail="")  # "SELECT * FROM"
    words = _WORDS[sign]
    if following is None or following.core == "of":  # "the sum of", without what is added
        words = words.removesuffix(" of")
    return Reading(words, trail="")


def _read_heart(reader: TokenReader, token: Token) -> str | None:
    """`I <3 you`, and `<3` at the end of a sentence; None for `<3 days` and `x <3`."""
    before, following = reader.before, reader.token(1)
    if word_before(reader) in ("i", "we", "you", "they", "u") and token.is_open and following:
        return "love"
    is_variable = before is not None and (len(before.core) == 1 and before.core not in "uU")
    is_end = following is None or not token.is_open or following.core in ("<3", "")
    return "" if is_end and not is_variable else None


def sign_is_heading(reader: TokenReader, text: str) -> bool:
    """Whether `#` begins a heading: `# Introduction`, not `# 5` or `# of users`."""
    following = reader.token(1) if text == "#" and reader.before is None else None
    return following is not None and following.core[:1].isupper()


def _is_operand(token: Token, sign: str) -> bool:
    """Whether an operator may follow: a word or number, also in brackets."""
    if sign == "=":  # also after "ea." and "[H+]"
        return any(map(str.isalnum, token.text))
    if token.text == "%":
        return True  # "50 % > 1/3"
    text = token.text.rstrip(")]}|'’°%⁺⁻")
    return text.removesuffix("!")[-1:].isdigit() or text[-1:].isalnum()  # "5! = 120"


def _begins_operand(token: Token | None) -> bool:
    """Whether the word after a sign begins with a number or is a single letter."""
    return token is not None and (token.core[:1].isdigit() or len(token.core) == 1)


def _is_in_formula(reader: TokenReader) -> bool:
    """Whether a sign such as = is beside the words around the current sign."""
    return any(
        one is not None and one.text in _OPERATORS for one in (reader.earlier, reader.token(2))
    )


def _has_unit(token: Token | None) -> bool:
    return token is not None and _WITH_UNIT.fullmatch(token.core) is not None


def _is_stroke(before: Token, following: Token | None) -> bool:
    """Whether `/` is between two times or two measures: `07:42 / 18:05`, `4°C / 39°F`."""
    if following is None or not before.is_open:
        return False
    return any(
        pattern.fullmatch(before.core) and pattern.fullmatch(following.core)
        for pattern in (_WITH_UNIT, _CLOCK)
    )


def _is_word(token: Token | None) -> bool:
    return token is not None and len(token.core) > 1 and token.core.isalpha()


def read_tag(reader: TokenReader, token: Token) -> Reading | None:
    """Remove HTML tags and the marks of footnotes from a word."""
    if "[^" in token.text and (text := _NOTE_MARK.sub("", token.text)) != token.text:
        return Reading(reader.read_alone(text), lead="", trail="")
    if "<" not in token.text:
        return None
    if (text := TAG.sub(drop_tag, token.text)) != token.text:
        text = _BEFORE_STOP.sub("", text)
        return Reading(reader.read_alone(text), lead="", trail="")
    found = _TYPE.fullmatch(token.text)
    return Reading(f"{found[1].replace(':', ' ')} {found[2]}", trail=found[3]) if found else None


def read_stroke(reader: TokenReader, token: Token) -> Reading | None:
    """`his/her`, `client/server`, `red/green/blue`."""
    if _STROKE.fullmatch(token.core) is None:
        return None
    parts = token.core.split("/")
    if len(parts) == 2 and parts[1] in _PERIODS and parts[0].lower() not in _TIMES:
        return Reading(f"{_read_part(parts[0])} per {_PERIODS[parts[1]]}")  # "Price/mo"
    is_choice = not _OR_WORDS.isdisjoint(part.lower() for part in parts)
    is_spelled = all(len(part) == 1 for part in parts)
    if is_spelled and len(parts) == 2 and is_beside_operator(reader):
        return Reading(" over ".join(parts))  # "v = d/t"
    joint = " or " if is_choice else " " if len(parts) == 2 or is_spelled else ", "
    return Reading(joint.join(map(_read_part, parts)))


def _read_part(part: str) -> str:
    return read_word(part, is_loud=False) if part.isalpha() and part.isupper() else part


def plain_signs(text: str) -> str:
    """Replace accented letters and signs by ASCII."""
    text = text.replace("’", "'")  # first: most other text is ASCII
    if text.isascii() and not _MARKS.search(text):
        return text
    text = _BETWEEN_WORDS.sub(" ", _SOFT.sub("", unicodedata.normalize("NFC", text)))
    text = _GREEK.sub(_name_greek, text)
    text = _DASHES.sub("—", text).translate(_PLAIN).translate(_LETTERS)
    parts = (_fold(character) for character in text)
    return "".join(parts)


def read_leftovers(text: str) -> str:
    """Read digits and signs that no rule has read; drop repeated signs."""
    if not _LEFT.search(text):
        return text
    text = _ROW.sub(" ", unicodedata.normalize("NFKC", text))
    text = _DIGITS.sub(lambda found: f" {_number(found)} ", text)
    text = _LEFT.sub(lambda found: f" {_LEFTOVERS.get(found[0], '')} ", text)
    return _GAPS.sub(r"\1", text).strip()


def _number(found: re.Match[str]) -> str:
    whole, places = (
        "".join(str(unicodedata.digit(digit, 0)) for digit in digits or "")
        for digits in found.groups()
    )
    return f"{read_digits(whole)} point {spell_digits(places)}" if places else read_digits(whole)


def _fold(character: str) -> str:
    if character.isascii():
        return character
    folded = unicodedata.normalize("NFKD", character)
    if (words := _WORDS.get(character) or _WORDS.get(folded)) and not folded.isascii():
        return f" {words} "
    kept = "".join(part for part in folded if not unicodedata.combining(part))
    is_sign = unicodedata.category(character) in ("Sm", "Sc") and character != _FRACTION
    if is_sign and not (len(folded) == 1 and folded.isascii()):  # "＋" is "+"
        return f" {_sign_name(character)} "
    if kept and kept.isascii():
        return kept
    # Letters of other scripts stay; `vivace.text.letters` decides about them.
    return character


def _sign_name(sign: str) -> str:
    """The Unicode name of a mathematical or currency sign: `dot plus`, `indian rupee`."""
    name = unicodedata.name(sign, "").lower().replace("-", " ")
    return re.sub(r"\b(?:sign|symbol|operator|superscript|subscript)\b", "", name).strip()


def _name_greek(letters: re.Match[str]) -> str:
    if len(letters[0]) > _MAX_GREEK:
        return letters[0]
    return " ".join(["", *map(greek_name, letters[0]), ""])


def greek_name(letter: str) -> str:
    """The name of a Greek letter; "lambda" is "lamda" in Unicode."""
    words = unicodedata.name(letter, "").partition(" WITH ")[0].lower().split()
    return "lambda" if words[-1:] == ["lamda"] else words[-1] if words else letter
