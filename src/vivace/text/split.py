"""Splits a text into sentences.

One set of rules serves all ten languages, because a text may mix them. Each decision reads a
limited number of characters: time is linear, and the result does not depend on the pieces.
"""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

from vivace.errors import RequestError
from vivace.text.breaks import MAX_SPACES, skip_spaces
from vivace.text.scripts import HAN_AND_KANA, HANGUL

_TABLES = json.loads(Path(__file__).with_name("abbreviations.json").read_text("utf-8"))
# Abbreviations whose full stop never ends a sentence. After others (etc., usw., a.m.) the case of
# the next letter decides. Chinese, Japanese and Korean have none.
ABBREVIATIONS: dict[str, str] = _TABLES["abbreviations"]
# Abbreviations before a number: "No. 5", but not "He said no. Then".
BEFORE_NUMBERS: dict[str, str] = _TABLES["before_numbers"]
# Nouns after a German ordinal: "am 3. Mai" is one sentence.
_ORDINAL_NOUNS = frozenset(" ".join(_TABLES["german_ordinal_nouns"]).split())

_LOOK_BEHIND = 24  # characters searched before a full stop for its word
_LIST_MARK_CHARS = 8  # characters after a line end that show a list mark

_WIDE_STOPS = "。！？｡．"  # no space follows
_IS_CJK = re.compile(f"[{HAN_AND_KANA}{HANGUL}「『（《〈【]")
_WIDE = frozenset(_WIDE_STOPS)
_STOPS = f".!?…{_WIDE_STOPS}"
# Stops, a run of white space, a line end, or one space that may become a run. A single space
# between words is none.
_CANDIDATE = re.compile(
    rf"[\s{_STOPS}](?!(?<= )\S)"
    rf"(?:(?<=[{_STOPS}])[{_STOPS}]{{0,15}}|\s+|\Z|(?<=[\n\r\x85\u2028\u2029]))"
)
_AROUND_STOP = re.compile(
    rf"(?P<stops>[{_STOPS}]{{1,16}})"
    r"(?P<closers>(?:[\"'”’“‘)\]}»«›‹」』）】〉》〕*_]|[ \xa0\u202f][»›](?!\w)){0,8})"
    rf"(?P<space>\s{{0,{MAX_SPACES}}})"
    r"(?P<openers>(?:[\"'“”‘’„‚«»‹›(\[{¿¡「『（《〈【*_–—-]\s?){0,8})"
    r"(?P<next>.?)",
    re.DOTALL,
)
_SENTENCE_END = re.compile(r"[.!?…。！？｡．]+[\"'”’“‘)\]}»«›‹」』）】〉》〕*_\s]*\Z")
_ENOUGH, _NEXT = 200, "Next"  # characters that decide; start of a following sentence
_WIDE_CLOSERS = re.compile(r"[”’）」』】〉》〕)\]]{0,8}")
_WORD_BEFORE = re.compile(r"\b(?:\w\.[ \xa0\u202f]|\w{1,4}\.)*\w+\Z")
_NUMBER_BEFORE = re.compile(r"\d[ \xa0\u202f]?\Z")
_LINE_END = re.compile(r"[\n\r\x85\u2028]")
_LIST_NUMBER = re.compile(r"\(?(?:\d{1,3}|[a-z]|[IVXLC]{1,5}|[ivx]{1,5})")
_LIST_MARK = re.compile(
    r"[-*+•·▪◦‣●○■–—]\s|\(?\d{1,3}[.)]\s|\(?[A-Za-z][)]\s|\d{1,3}[、．]|（\d{1,3}）|[①-⑳]"
)
_CLAUSE_ENDS = (
    re.compile(r"[;:][\"'”’)\]»]?(?=\s)|[；：—]|\s[–-](?=\s)"),
    re.compile(r",[\"'”’)\]»]?(?=\s)|[，、]"),
    re.compile(r"\s"),
)


# A sentence is not cut after these words if it can be cut a few words before.
_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty "
    "ninety hundred thousand million billion trillion point minus"
)
_NUMBER_WORDS = frozenset(_NUMBERS.split())
_MAX_NUMBER = 12  # words that are searched for the start of a number
_LAST_WORD = re.compile(r"(?<![\w])(?:\w+-)?(\w+)\s\Z")


def _join(table: dict[str, str]) -> frozenset[str]:
    return frozenset(word for words in table.values() for word in words.split())


_ABBREVIATIONS = _join(ABBREVIATIONS)
_BEFORE_NUMBERS = _join(BEFORE_NUMBERS)


def split_sentences(text: str, max_chars: int = 300) -> list[str]:
    """Split a text into sentences; a sentence longer than `max_chars` into clauses or words.

    The parts are substrings of the text in order. Only white space lies before, between and after
    them. No part is empty, begins or ends with white space, or is longer than `max_chars`.
    """
    return SentenceSplitter(max_chars).finish(text)


class SentenceSplitter:
    """`split_sentences` for a text in pieces.

    A sentence is returned when the next sentence begins or its paragraph ends.
    """

    def __init__(self, max_chars: int = 300) -> None:
        if max_chars < 1:
            raise RequestError(f"max_chars must be 1 or more, not {max_chars}")
        self._max_chars = max_chars
        self._text = ""
        self._start = 0  # start of the current sentence
        self._scan = 0  # where the search for its end continues
        self.num_uncertain = 0  # characters at the end that may belong to the next sentence
        self._parts: list[str] = []  # complete, not yet returned

    def feed(self, piece: str) -> list[str]:
        """Return the sentences that later pieces cannot change."""
        self._text += piece
        self._search(is_final=False)
        self._text = self._text[self._start :]
        self._scan -= self._start
        self._start = 0
        return self._take()

    def finish(self, piece: str = "") -> list[str]:
        """Return the rest with its last piece. The next piece begins another text."""
        self._text += piece
        self._search(is_final=True)
        self._end_sentence(len(self._text), len(self._text))
        self._text, self._start, self._scan = "", 0, 0
        return self._take()

    def _take(self) -> list[str]:
        parts, self._parts = self._parts, []
        return parts

    def _search(self, *, is_final: bool) -> None:
        """Search for sentence ends as far as they are certain."""
        self._skip_space()
        while found := _CANDIDATE.search(self._text, self._scan):
            self._cut_long(found.start())
            is_stop = not found[0].isspace()
            end = self._end_at_stop(found, is_final) if is_stop else self._end_at_space(found)
            if end is None and not is_final:
                self.num_uncertain = len(self._text) - found.start()
                return
            if end:
                self._end_sentence(end if is_stop else found.start(), end)
            else:
                self._scan = found.end()
        self.num_uncertain = 0
        self._scan = len(self._text)
        self._cut_long(self._scan)

    def _end_at_stop(self, found: re.Match[str], is_final: bool) -> int | None:
        """The end of the sentence, 0 if it continues, None if more text must arrive."""
        around = _AROUND_STOP.match(self._text, found.start())
        assert around is not None
        if not _WIDE.isdisjoint(around["stops"]):
            return self._end_at_wide_stop(around)
        if not around["next"]:
            return 0 if _is_break(around["space"]) else None
        if not around["space"]:
            is_over: bool | None = self._is_over_without_space(around)
        elif around["next"].islower() or around["next"] in ".,;:!?…%":
            is_over = False
        elif around["stops"] == "." and not around["closers"]:
            is_over = self._is_over(around, is_final)
        else:
            is_over = True
        return None if is_over is None else is_over * around.end("closers")

    def _end_at_wide_stop(self, around: re.Match[str]) -> int | None:
        closers = _WIDE_CLOSERS.match(self._text, around.end("stops"))
        assert closers is not None
        end = closers.end()
        # A straight quotation mark closes only an open quotation.
        if self._text[end : end + 1] == '"' and self._text.count('"', self._start, end) % 2:
            end += 1
        if end == len(self._text):
            return None
        is_quoted = end > around.end("stops") and self._text[end] in "とって、，,"
        is_decimal = around["stops"] == "．" and self._text[end].isdigit()
        return 0 if is_quoted or is_decimal else end

    def _is_over_without_space(self, around: re.Match[str]) -> bool:
        """Chinese, Japanese and Korean need no space; a domain or "3.14" continues."""
        if around["closers"] or not _IS_CJK.match(around["openers"] + around["next"]):
            return False
        before = self._text[max(around.start() - 1, self._start)]
        return around["stops"][-1] in "!?" or (
            around["stops"] == "." and _IS_CJK.match(before) is not None
        )

    def _is_over(self, around: re.Match[str], is_final: bool) -> bool | None:
        """Whether a single full stop ends the sentence; None if more text must arrive."""
        stop = around.start()
        if _LIST_NUMBER.fullmatch(self._text, self._start, stop):
            return False
        behind = self._text[max(self._start, stop - _LOOK_BEHIND) : stop]
        # Only an abbreviation with a full stop inside has spaces.
        word = _WORD_BEFORE.search(behind, 0 if "." in behind else behind.rfind(" ") + 1)
        if word is None:
            return True
        if word[0].isdecimal():
            return self._is_no_ordinal(word[0], around.start("next"), is_final)
        key = "".join(word[0].split()).casefold()
        if around["next"].isdecimal() and key in _BEFORE_NUMBERS:
            return False
        if _NUMBER_BEFORE.search(behind, 0, word.start()):
            return True  # a unit: "10 min.", "1869 г."
        last = word[0].rpartition(".")[2].strip()
        is_initial = len(last) == 1 and last.isupper()
        return not (is_initial or key in _ABBREVIATIONS)

    def _is_no_ordinal(self, number: str, place: int, is_final: bool) -> bool | None:
        if len(number) > 2:
            return True
        noun = re.compile(r"\w{0,16}").match(self._text, place)
        assert noun is not None
        if noun.end() == len(self._text) and not is_final:
            return None
        return noun[0] not in _ORDINAL_NOUNS

    def _end_at_space(self, found: re.Match[str]) -> int | None:
        """The start of the next sentence, 0 if this one continues, None if undecided."""
        if _is_break(found[0]):
            return found.end()
        if found.end() == len(self._text):
            return None
        if not _LINE_END.search(found[0]):
            return 0
        if _LIST_MARK.match(self._text, found.end()):
            return found.end()
        return 0 if len(self._text) - found.end() >= _LIST_MARK_CHARS else None

    def _end_sentence(self, end: int, next_start: int) -> None:
        while len(self._text[self._start : end].rstrip()) > self._max_chars:
            self._cut_clause()
        if sentence := self._text[self._start : end].strip():
            self._parts.append(sentence)
        self._start = next_start
        self._skip_space()

    def _cut_long(self, end: int) -> None:
        """Cut a sentence that exceeds the limit before `end`."""
        while (limit := self._start + self._max_chars) < end:
            # A longer run of white space would have ended the sentence.
            if self._text[limit : min(end, limit + MAX_SPACES)].isspace():
                break
            self._cut_clause()

    def _cut_clause(self) -> None:
        """Move the longest clause within the limit to the results."""
        limit = self._start + self._max_chars
        cut = _find_clause_end(self._text, self._start, limit)
        self._parts.append(self._text[self._start : cut].rstrip())
        self._start = cut
        self._skip_space()

    def _skip_space(self) -> None:
        self._start = skip_spaces(self._text, self._start)
        self._scan = max(self._scan, self._start)


def goes_on(sentence: str, gap: str) -> bool:
    """Whether a sentence continues after this part and the white space after it."""
    return "\n" not in gap and _SENTENCE_END.search(sentence) is None


def ends_sentence(text: str) -> bool:
    """Whether a text has certainly ended a sentence: not after "3." or "Dr."."""
    text = text[-_ENOUGH:].rstrip()
    if (stops := _SENTENCE_END.search(text)) is None or text[: stops.start()][-1:].isdigit():
        return False
    return split_sentences(f"{text} {_NEXT}", 2 * _ENOUGH)[-1] == _NEXT


def _is_break(spaces: str) -> bool:
    """Whether white space ends a sentence: an empty line, or `MAX_SPACES` characters."""
    num_lines = max(spaces.count("\n"), spaces.count("\r"), 2 * spaces.count("\u2029"))
    return len(spaces) >= MAX_SPACES or num_lines >= 2


def _find_clause_end(text: str, start: int, limit: int) -> int:
    """The last clause end in the later half, else the last space, else any character."""
    lowest = (start + (limit - start) // 2, start + (limit - start) // 3, start)
    for pattern, low in zip(_CLAUSE_ENDS, lowest, strict=True):
        ends = [found.end() for found in pattern.finditer(text, start, limit + 1)]
        fitting = [end for end in ends if low < end <= limit + text[end - 1].isspace()]
        if fitting:
            whole = (end for end in fitting[: -_MAX_NUMBER - 1 : -1] if not _cuts_number(text, end))
            return next(whole, fitting[-1])
    places = range(limit, max(start, limit - 16), -1)
    return next((cut for cut in places if not _are_joined(text[cut - 1], text[cut])), limit)


def _cuts_number(text: str, end: int) -> bool:
    """Whether a spoken number ends before `end`: "two thousand | five hundred dollars"."""
    word = _LAST_WORD.search(text, max(0, end - _LOOK_BEHIND), end)
    return word is not None and word[1] in _NUMBER_WORDS


def _are_joined(before: str, after: str) -> bool:
    """Whether two code points belong to one visible character."""
    return before == "\u200d" or after == "\u200d" or unicodedata.category(after)[0] == "M"
