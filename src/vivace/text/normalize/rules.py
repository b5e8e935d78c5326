"""The words of a text with the signs around them, and what a language provides to read them.

A rule receives the current word and may look at its neighbours. It returns a `Reading`, or None if
it does not apply.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vivace.text.breaks import skip_spaces

MAX_TOKEN = 200  # characters; longer runs are split
_MAX_GAP = 8  # white space between words of one paragraph
_LEADS = "([{<\"“”'‘’„‚«‹*_`~|¿¡"
_TRAILS = ".,;:!?…)]}>\"“”'‘’»›*_`~|"
ENDS = r".,;:!?…)\]”*_"  # signs after a number, for a set of a pattern
_OPERATORS = frozenset("+-−–=*×÷/<>≤≥≠≈±")
_QUOTES = re.compile('["“”]')
_KEPT = re.compile(r"[~<>](?=[\d$€£¥₹])|~(?=/)")  # "about", "less than", "more than"; a home folder
_SOLID = re.compile(rf"\S{{1,{MAX_TOKEN}}}")


@dataclass(frozen=True, slots=True)
class Token:
    """A word with the white space and signs before it and the signs after it."""

    space: str
    lead: str
    core: str
    trail: str
    written: str  # the white space and the text, with their spans

    @property
    def text(self) -> str:
        return self.lead + self.core + self.trail

    @property
    def is_open(self) -> bool:
        """Whether no sign separates the word from the next word."""
        return not self.trail

    @property
    def is_apart(self) -> bool:
        """Whether the word begins another paragraph."""
        return is_break(self.space)


def is_break(space: str) -> bool:
    return len(space) > _MAX_GAP or space.count("\n") > 1


def make_token(space: str, text: str, written: str) -> Token:
    start = len(text) - len(text.lstrip(_LEADS))
    if start and _KEPT.match(text, start - 1) and text[start - 2 : start - 1] != text[start - 1]:
        start -= 1
    core = text[start:].rstrip(_TRAILS)
    return Token(space, text[:start], core, text[start + len(core) :], written)


class NeedsMore(Exception):
    """More text must arrive before a token is complete."""


class TokenReader:
    """Returns complete tokens; raises NeedsMore for a token that has not arrived."""

    def __init__(self, read_alone: Callable[[str], str]) -> None:
        """`read_alone` returns the words of a part of a token."""
        self.read_alone = read_alone
        self._rest = ""  # text after the last token
        self._place = 0  # in `_rest`, after the tokens that were skipped
        self._end = 0  # in `_rest`, after `_tokens`
        self._tokens: deque[Token] = deque()  # from `_place` on, read in advance
        self._is_final = False
        self.before: Token | None = None  # previous word of the paragraph
        self.earlier: Token | None = None  # the word before `before`
        self.is_after_word = False  # whether the text before the current word ends with a word
        self.is_quoted = False  # whether a quotation mark of the paragraph is open

    def feed(self, piece: str) -> None:
        self._rest = self._rest[self._place :] + piece
        self._end -= self._place
        self._place = 0

    def end(self) -> None:
        self._is_final = True

    def token(self, index: int = 0) -> Token | None:
        """The token `index` places ahead; None after the end of the paragraph or text."""
        while len(self._tokens) <= index:
            if self._tokens and self._is_at_break():
                return None
            if not self._read():
                return None
        if index and any(self._tokens[n].is_apart for n in range(1, index + 1)):
            return None
        return self._tokens[index]

    def skip(self, num_tokens: int) -> list[Token]:
        """Move past `num_tokens` tokens and return them."""
        skipped = [self._tokens.popleft() for _ in range(num_tokens)]
        for token in skipped:
            self._place += len(token.written)
            self._pass(token)
            if token.is_apart or _QUOTES.search(token.trail):
                self.is_quoted = False
            if _QUOTES.search(token.lead) and not _QUOTES.search(token.trail):
                self.is_quoted = True
        return skipped

    def skip_unchanged(self, rules: LanguageRules) -> str:
        """Move past `plain_words`; return them with the white space before each."""
        start = self._place
        while self._skip_run(rules):
            pass
        return self._rest[start : self._place]

    def _skip_run(self, rules: LanguageRules) -> bool:
        """Move past a run of words that no rule changes; return whether there is one."""
        start = skip_spaces(self._rest, self._place)
        run = rules.plain_words.match(self._rest, start)
        if run is None:
            return False
        words = run[0].split()
        num_words = len(words) - (run.end() == len(self._rest) and not self._is_final)
        if not rules.exceptions.isdisjoint(words):
            num_words = next(n for n, word in enumerate(words) if word in rules.exceptions)
        if num_words < 1:
            return False
        if is_break(self._rest[self._place : start]):
            self.before, self.is_quoted = None, False
        for word in words[max(0, num_words - 2) : num_words]:
            self._pass(make_token(" ", word, word))
        self.is_after_word = words[num_words - 1][-1].isalnum()
        self._place = run.end() - sum([len(word) + 1 for word in words[num_words:]])
        for _ in range(min(num_words, len(self._tokens))):
            self._tokens.popleft()
        self._end = max(self._end, self._place)
        return True

    def _pass(self, token: Token) -> None:
        self.earlier, self.before = (None if token.is_apart else self.before), token

    def take_rest(self) -> str:
        """Return the white space after the last token."""
        rest, self._rest, self._place, self._end = self._rest[self._place :], "", 0, 0
        return rest

    def _is_at_break(self) -> bool:
        return is_break(self._rest[self._end : skip_spaces(self._rest, self._end)])

    def _read(self) -> bool:
        """Read another token; False at the end of the text."""
        start = skip_spaces(self._rest, self._end)
        solid = _SOLID.match(self._rest, start)
        if solid is None or solid.end() == len(self._rest):
            is_whole = solid is not None and len(solid[0]) == MAX_TOKEN
            if not self._is_final and not is_whole:
                raise NeedsMore
            if solid is None:
                return False
        written = self._rest[self._end : solid.end()]
        self._tokens.append(make_token(written[: start - self._end], solid[0], written))
        self._end = solid.end()
        return True


@dataclass(frozen=True, slots=True)
class Reading:
    """The words for `num_tokens` tokens; the signs around them stay unless given."""

    words: str
    num_tokens: int = 1
    trail: str | None = None  # None: the trail of the last token
    lead: str | None = None  # None: the lead of the first token


Rule = Callable[[TokenReader, Token], Reading | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRules:
    """The normalization of one language."""

    rules: Callable[[Token], Sequence[Rule]]  # the rules to try for a word, in order
    # Words, with one white space between them, in which only `plain_signs` may change signs.
    plain_words: re.Pattern[str]
    exceptions: frozenset[str]  # words of this form that a rule may change
    plain_signs: Callable[[str], str]  # rewrites signs that the voice does not know
    read_leftovers: Callable[[str], str]  # reads what no rule has read


def core_after(reader: TokenReader, index: int) -> str:
    """The word `index` places ahead; "" if a sign or the end of the paragraph separates it."""
    for place in range(index):
        token = reader.token(place)
        if token is None or not token.is_open:
            return ""
    token = reader.token(index)
    return "" if token is None or (index and token.lead) else token.core


def next_in_line(reader: TokenReader) -> Token | None:
    """The next word if neither a sign nor a line break separates it from the current word."""
    token, following = reader.token(), reader.token(1)
    if token is None or not token.is_open or following is None or "\n" in following.space:
        return None
    return following


def word_before(reader: TokenReader) -> str:
    """The previous word in lower case; "" if a sign separates it from the current word."""
    before = reader.before
    return before.core.lower() if before is not None and before.is_open else ""


def begins_sentence(reader: TokenReader) -> bool:
    before = reader.before
    return before is None or any(stop in before.trail for stop in ".!?…")


def is_capitalised(token: Token | None) -> bool:
    """Whether a word looks like a name: a capital, then a small letter, or `O'Neil`."""
    if token is None or not token.core[:1].isupper():
        return False
    second, third = token.core[1:2], token.core[2:3]
    return second.islower() or (second in ("'", "’") and third.isupper())


def is_after_name(reader: TokenReader) -> bool:
    """Whether a word that looks like a name directly precedes the current word."""
    return reader.before is not None and reader.before.is_open and is_capitalised(reader.before)


def is_beside_operator(reader: TokenReader) -> bool:
    """Whether a sign such as + or = stands between spaces before or after the current word.

    A dash is an operator between numbers and variables, not after a word or at the start.
    """
    return _is_operator(reader.before, reader.earlier) or _is_operator(
        *(None if one is None or one.is_apart else one for one in map(reader.token, (1, 2)))
    )


def _is_operator(sign: Token | None, beyond: Token | None) -> bool:
    """Whether a word is an operator; `beyond` is the word on its other side."""
    if sign is None or sign.text not in _OPERATORS:
        return False
    is_operand = beyond is not None and (beyond.core[-1:].isdigit() or len(beyond.core) == 1)
    return is_operand or sign.text not in ("-", "–")
