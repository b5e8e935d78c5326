"""Parses pause marks, removes markdown from a text, and says how a text is prepared."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from vivace.errors import RequestError, TextError
from vivace.text.options import TextOptions
from vivace.text.plain import NO_RULES, PlainRules
from vivace.text.spelling import MARK_PATTERN
from vivace.text.trie import Trie

MAX_PAUSE_S = 10.0
MAX_PASSES = 4  # markup inside markup, such as an image in a link in a list

# Only this is a pause; "[pause] button" and "[pause for effect]" are words.
PAUSE_MARK = re.compile(
    r"\[pause[ \t]{1,8}([0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})[ \t]{0,8}(ms|s)\]", re.IGNORECASE
)
# What may still become one.
OPEN_MARK = re.compile(
    r"\[(?:p(?:a(?:u(?:s(?:e(?:[ \t]{1,8}[0-9.]{0,19}[ \t]{0,8}(?:ms?|s)?)?)?)?)?)?)?\Z",
    re.IGNORECASE,
)
_ANY_MARK = re.compile(f"{PAUSE_MARK.pattern}|{MARK_PATTERN}", re.IGNORECASE)
LINE_SEPARATOR = "\u2028"  # stands for the end of a list item or a table row
_ITEM_END = f"\n{LINE_SEPARATOR}\n"
DEFAULTS = TextOptions()
_STANDS_FOR_MARK = "\ue000"  # a private-use character; removed from the text first


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence asked for in the text, written `[pause 0.5s]` or `[pause 500ms]`."""

    seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= MAX_PAUSE_S:
            raise TextError(
                f"a pause lasts more than 0 and at most {MAX_PAUSE_S:g} seconds, "
                f"not {self.seconds:g}; write [pause 0.5s] or [pause 500ms]"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions(TextOptions):
    """How a text is prepared for speaking."""

    max_chars: int | None = 300  # of an utterance; None leaves a text whole
    verbatim: bool = False  # every character is spoken as it is; only long texts are cut
    min_chars: int = 0  # a shorter utterance is not extended by the next sentence
    normalize: bool = False  # English numbers, dates, capitals and signs as words
    strip_end: bool = False  # white space at the end of an utterance is left out
    plain_breaks: bool = False  # line breaks end utterances, and only single spaces are left
    plain: PlainRules = NO_RULES  # of utterances, with `plain_breaks`
    lexicon: tuple[Trie, ...] = ()  # words that are read otherwise; the first has precedence
    seam_s: float = 0.15  # silence added between utterances
    paragraph_s: float | None = None  # silence between paragraphs; None: they do not end utterances
    by_sentence: bool = False  # a live text: nothing of a sentence is given before all of it

    @classmethod
    def of(cls, options: TextOptions, **own: Any) -> ScriptOptions:
        """Add the checkpoint's settings `own` to the options of a request."""
        shared = {field.name: getattr(options, field.name) for field in fields(TextOptions)}
        return cls(**shared, **own)


def item_end(options: ScriptOptions) -> str:
    """What separates the list items and table rows of a cleaned text."""
    return LINE_SEPARATOR if options.plain_breaks else "\n\n"


def parse_pauses(text: str, refused: list[RequestError] | None = None) -> list[str | Pause]:
    """The unchanged text around the pauses, and the pauses, in order; no string is empty.

    A pause that is too short or too long is a RequestError; with a list for those it is left out.
    """
    parts: list[str | Pause] = []
    end = 0
    for mark in PAUSE_MARK.finditer(text):
        parts.append(text[end : mark.start()])
        end = mark.end()
        try:
            parts.append(Pause(float(mark[1]) / (1000 if mark[2].lower() == "ms" else 1)))
        except RequestError as error:
            if refused is None:
                raise
            refused.append(error)
    parts.append(text[end:])
    return [part for part in parts if part != ""]


def has_pause(text: str) -> bool:
    return PAUSE_MARK.search(text) is not None


def clean_text(text: str, options: TextOptions = DEFAULTS, *, item_end: str = "\n\n") -> str:
    """Remove markup and URLs, and emoji unless the options keep them."""
    return remove_markup(options.remove_emoji(text), item_end=item_end)


def remove_markup(text: str, *, item_end: str = "\n\n") -> str:
    """The words of markdown, as a chat model writes it, without the markup and URLs.

    Headings become paragraphs of their own; list items and table rows are separated by `item_end`.
    A link leaves its text, a bare URL its host, code its content. Marks stay as they are. Cleaning
    twice is cleaning once.
    """
    return _clean_all(text).replace(_ITEM_END, item_end)


def _clean_all(text: str) -> str:
    for _ in range(MAX_PASSES):
        cleaned = _outside_marks(text, _clean_once)
        if cleaned == text:
            return text
        text = cleaned
    # Nested deeper than people write: remove everything that could be markup.
    return _outside_marks(text, _strip_markup)


def is_item(line: str) -> bool:
    """Whether a line of markdown is a list item or a table row."""
    line = line.strip()
    return _BULLET.match(line) is not None or _is_row(line)


def _is_row(line: str) -> bool:
    return len(line) > 1 and line[0] == line[-1] == "|"


def _outside_marks(text: str, clean: Callable[[str], str]) -> str:
    text = text.replace(_STANDS_FOR_MARK, "")
    marks = iter([mark[0] for mark in _ANY_MARK.finditer(text)])
    cleaned = clean(_ANY_MARK.sub(_STANDS_FOR_MARK, text))
    return re.sub(_STANDS_FOR_MARK, lambda _: next(marks), cleaned)


# Lines: what a whole line is.
_LINE_END = re.compile(r"\r\n?|<br\s{0,3}/?>", re.IGNORECASE)
_FENCE = re.compile(rf"(?:```|~~~)[^`{_STANDS_FOR_MARK}]*")
_RULE = re.compile(r"([-*_])(?:[ \t]*\1){2,}|={2,}")
_TABLE_RULE = re.compile(r"[|:\- \t]*")
_QUOTE = re.compile(r"(?:>[ \t]?)+")
_HEADING = re.compile(r"#{1,6}[ \t]+")
_BULLET = re.compile(r"[-*+•][ \t]+(?:\[[ xX]\][ \t]+)?")

# Inside lines.
_LINK = re.compile(
    rf"!?\[([^\[\]\n]*)\]"
    rf"(?:\((?:[^()\n{_STANDS_FOR_MARK}]|\([^()\n{_STANDS_FOR_MARK}]*\))*\)"
    rf"|\[[^\[\]\n{_STANDS_FOR_MARK}]*\])"
)
_FOOTNOTE = re.compile(r"\[\^\w{1,40}\]:?")
_URL = re.compile(
    rf"<?(?<![a-z0-9])((?:https?|ftp)://|www\.)([^\s<>\"'，。！？、；：（）【】「」『』{_STANDS_FOR_MARK}]*)>?",
    re.IGNORECASE,
)
_AFTER_URL = ".,;:!?)]}*_~`"  # belongs to the sentence
_HOST = re.compile(r"(?:[^/?#@]*@)?(?:www\.)?([^/?#:@]*)", re.IGNORECASE)
_ESCAPE = re.compile(r"\\([\\`*_{}\[\]()#+.!|>~-])")
_STARS = re.compile(r"\*+|_+|~~+|`+")
_MARKUP = re.compile(r"[\[\]*`~|#<>\\_=]")
_URL_START = re.compile(r"(www)\.|(:)//", re.IGNORECASE)
_LINE_START = re.compile(r"[-+•\s]*")
_BLANKS = re.compile(rf"[^\S\n{LINE_SEPARATOR}]{{2,}}")
_AROUND_LINE_END = re.compile(
    rf"[^\S\n{LINE_SEPARATOR}]?([\n{LINE_SEPARATOR}])[^\S\n{LINE_SEPARATOR}]?"
)
_LINE_ENDS = re.compile(rf"[\n{LINE_SEPARATOR}]+")


def _clean_once(text: str) -> str:
    text = _LINE_END.sub("\n", text)
    text = "\n".join(_clean_line(line) for line in text.split("\n"))
    text = _FOOTNOTE.sub("", text)
    text = _LINK.sub(r"\1", text)
    text = _URL.sub(_speak_url, text)
    text = _ESCAPE.sub(r"\1", text)
    text = _STARS.sub(_drop_emphasis, text)
    return _collapse_space(text)


def _clean_line(line: str) -> str:
    """What a line says; one that was set apart by markup becomes a paragraph."""
    if line == LINE_SEPARATOR:
        return line
    line = line.strip()
    if quote := _QUOTE.match(line):
        line = line[quote.end() :].strip()
    if _FENCE.fullmatch(line) or _RULE.fullmatch(line):
        return "\n"
    if _is_row(line):
        is_rule = _TABLE_RULE.fullmatch(line) is not None
        cells = [] if is_rule else [cell.strip() for cell in line.strip("|").split("|")]
        return _as_item(", ".join(cell for cell in cells if cell))
    if heading := _HEADING.match(line):
        return "\n" + line[heading.end() :].rstrip("# \t") + "\n"
    if bullet := _BULLET.match(line):
        return _as_item(line[bullet.end() :])
    return line


def _as_item(line: str) -> str:
    return f"{LINE_SEPARATOR}\n{line}\n{LINE_SEPARATOR}"


def _speak_url(url: re.Match[str]) -> str:
    address = url[2].rstrip(_AFTER_URL)
    after = url[2][len(address) :]
    host = _HOST.match(address)
    assert host is not None
    # An IP address or a host name without a dot means nothing to a listener.
    is_spoken = "." in host[1] and any(letter.isalpha() for letter in host[1])
    return (host[1] if is_spoken else "") + after


def _drop_emphasis(run: re.Match[str]) -> str:
    """Remove emphasis marks; keep "2*3", "snake_case" and a mark between spaces."""
    if run[0][0] in "~`":
        return ""
    before = run.string[max(run.start() - 1, 0) : run.start()]
    after = run.string[run.end() : run.end() + 1]
    is_alone = not before.strip() and not after.strip()
    fits = str.isalnum if run[0][0] == "_" else str.isdecimal
    return run[0] if is_alone or (fits(before) and fits(after)) else ""


def _strip_markup(text: str) -> str:
    """Leave nothing in which `_clean_once` would find anything."""
    text = _MARKUP.sub("", text)
    text = _URL_START.sub(r"\1\2 ", text)
    return _collapse_space("\n".join(_LINE_START.sub("", line, 1) for line in text.split("\n")))


def _collapse_space(text: str) -> str:
    text = _BLANKS.sub(" ", text)
    text = _AROUND_LINE_END.sub(r"\1", text)
    return _LINE_ENDS.sub(_join_lines, text).strip()


def _join_lines(ends: re.Match[str]) -> str:
    """What separates two lines: an item's end, but a blank line wins beside a single item."""
    num_marks = ends[0].count(LINE_SEPARATOR)
    if num_marks > 1 or (num_marks and "\n\n" not in ends[0]):
        return _ITEM_END
    return "\n\n" if num_marks else ends[0][:2]
