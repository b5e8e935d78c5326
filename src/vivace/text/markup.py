"""Removes markdown from a text."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Literal

from vivace.text.comments import drop_comments
from vivace.text.html_elements import TAG, drop_tag
from vivace.text.pauses import PAUSE_MARK
from vivace.text.spans import GROUP_1, join, split, substitute
from vivace.text.spelling import MARK_PATTERN

LineKind = Literal["item", "block", "text"]
MAX_PASSES = 4  # markup inside markup, such as an image in a link in a list

_ANY_MARK = re.compile(f"{PAUSE_MARK.pattern}|{MARK_PATTERN}", re.IGNORECASE)
LINE_SEPARATOR = "\u2028"  # stands for the end of a list item or a table row
_ITEM_END = re.compile(f"\n{LINE_SEPARATOR}\n")
_STANDS_FOR_MARK = "\ue000"  # a private-use character; removed from the text first
_STAND_IN = re.compile(_STANDS_FOR_MARK)


def remove_markup(text: str, *, item_end: str = "\n\n") -> str:
    """Remove markdown, HTML tags, comments and URLs.

    Headings become paragraphs; `item_end` separates list items and table rows. A link is replaced
    by its text, a bare URL by its host, code by its content. Pause and spelling marks stay.
    Cleaning a cleaned text does not change it, unless character references stood for markup.
    """
    text = _repeat(text, _clean_once)
    if "&" in text:
        text = _collapse_space(resolve_references(text))
    return substitute(_ITEM_END, item_end, text)


def remove_inline_markup(line: str) -> str:
    """Remove links, URLs and emphasis, but no sign at the start of the line."""
    return _repeat(line, _clean_inline).strip()


def resolve_references(text: str) -> str:
    """Replace character references such as `&amp;` or `&#233;`, also escaped twice.

    A reference to white space becomes one space between words, and else nothing.
    """
    return substitute(_REFERENCES, _resolve, substitute(_REFERENCES, _resolve, text))


def _resolve(run: re.Match[str]) -> str:
    signs = html.unescape(run[0])
    before = run.string[max(run.start() - 1, 0) : run.start()]
    after = run.string[run.end() : run.end() + 1]
    lead = " " if signs[0].isspace() and before.strip() else ""
    trail = " " if signs[-1].isspace() and after.strip() else ""
    words = " ".join(signs.split())
    return f"{lead}{words}{trail}" if words else lead and trail


def _repeat(text: str, clean: Callable[[str], str]) -> str:
    """Clean until nothing changes."""
    for _ in range(MAX_PASSES):
        cleaned = _outside_marks(drop_comments(text), clean)
        if cleaned == text:
            return text
        text = cleaned
    # Deeply nested: remove everything that could be markup.
    return _outside_marks(text, _strip_markup)


def line_kind(line: str) -> LineKind:
    """The kind of a line of markdown. "block" covers headings, rules and code fences."""
    cleaned = _clean_line(_ANY_MARK.sub(_STANDS_FOR_MARK, line))
    if cleaned.startswith(LINE_SEPARATOR):
        return "item"
    return "block" if cleaned.startswith("\n") else "text"


def is_row(line: str) -> bool:
    """Whether a line without white space around it is a row of a table."""
    return len(line) > 1 and line[0] == line[-1] == "|"


def join_row(line: str) -> str:
    """A row of a table, in which `<br>` ends no line."""
    return substitute(LINE_BREAK, " ", line)


def _outside_marks(text: str, clean: Callable[[str], str]) -> str:
    if _STANDS_FOR_MARK in text:
        text = substitute(_STAND_IN, "", text)
    if "[" not in text:
        return clean(text)
    marks = iter([text[mark.start() : mark.end()] for mark in _ANY_MARK.finditer(text)])
    cleaned = clean(substitute(_ANY_MARK, _STANDS_FOR_MARK, text))
    return substitute(_STAND_IN, lambda _: next(marks), cleaned)


# Whole lines.
LINE_BREAK = re.compile(r"<br\s{0,3}/?>", re.IGNORECASE)
_LINE_END = re.compile(r"\r\n?")
_FENCE = re.compile(  # with a language and attributes; other words are text
    r"(?:`{3,}|~{3,})[ \t]*[\w+#.-]{0,40}(?:[ \t]+(?:\{[^`{}]*\}|[\w-]+=[^\s`]+))*"
)
_RULE = re.compile(r"([-*_])(?:[ \t]*\1){2,}|={2,}")
_TABLE_RULE = re.compile(r"[|:\- \t]*")
_QUOTE = re.compile(r"(?:>[ \t]?)+")
_HEADING = re.compile(r"#{1,6}[ \t]+")
_BULLET = re.compile(r"[-*+•][ \t]+(?:\[[ xX]\][ \t]+)?")

# Inside lines.
_INLINE = re.compile(r"[\[\\*_~`&<]|://|www\.", re.IGNORECASE)  # may be one of the following
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
_AFTER_URL = ".,;:!?)]}*_~`"  # at the end of a URL, these belong to the sentence
_HOST = re.compile(r"(?:[^/?#@]*@)?(?:www\.)?([^/?#:@]*)", re.IGNORECASE)
_ESCAPE = re.compile(r"\\([\\`*_{}\[\]()#+.!|>~-])")
_REFERENCES = re.compile(r"(?:&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});)+")
_STARS = re.compile(r"\*+|_+|~~+|`+")
_MARKUP = re.compile(r"[\[\]*`~|#<>\\_=&]")
_URL_START = re.compile(r"(www)\.|(:)//", re.IGNORECASE)
_LINE_START = re.compile(r"[-+•\s]*")
_BLANKS = re.compile(rf"[^\S\n{LINE_SEPARATOR}]{{2,}}")
_AROUND_LINE_END = re.compile(
    rf"[^\S\n{LINE_SEPARATOR}]?([\n{LINE_SEPARATOR}])[^\S\n{LINE_SEPARATOR}]?"
)
_LINE_ENDS = re.compile(rf"[\n{LINE_SEPARATOR}]+")


def _clean_once(text: str) -> str:
    lines = split(substitute(_LINE_END, "\n", text), "\n")
    lines = [join_row(line) if is_row(line.strip()) else line for line in lines]
    text = substitute(LINE_BREAK, "\n", join(lines, "\n"))
    text = join([_clean_line(line) for line in split(text, "\n")], "\n")
    return _collapse_space(_clean_inline(text))


def _clean_inline(text: str) -> str:
    if not _INLINE.search(text):
        return text
    text = substitute(_FOOTNOTE, "", text)
    text = substitute(_LINK, GROUP_1, text)
    text = substitute(_URL, _speak_url, text)
    text = substitute(TAG, drop_tag, text)
    text = substitute(_ESCAPE, GROUP_1, text)
    return substitute(_STARS, _drop_emphasis, text)


def _clean_line(line: str) -> str:
    """The words of a line; a heading, rule or fence becomes a paragraph."""
    if line == LINE_SEPARATOR:
        return line
    line = line.strip()
    if quote := _QUOTE.match(line):
        line = line[quote.end() :].strip()
    if _FENCE.fullmatch(line) or _RULE.fullmatch(line):
        return "\n"
    if is_row(line):
        cells = [] if _TABLE_RULE.fullmatch(line) else [cell.strip() for cell in _cells(line)]
        return _as_item(join([cell for cell in cells if cell], ", "))
    if heading := _HEADING.match(line):
        return "\n" + line[heading.end() :].rstrip("# \t") + "\n"
    if bullet := _BULLET.match(line):
        return _as_item(line[bullet.end() :])
    return line


def _cells(row: str) -> list[str]:
    """The cells of a row; `\\|` ends no cell."""
    cells: list[str] = []
    for part in split(row[1:-1], "|"):
        is_same = cells and cells[-1].endswith("\\")
        cells.append(join([cells.pop(), part], "|") if is_same else part)
    return cells


def _as_item(line: str) -> str:
    return join([f"{LINE_SEPARATOR}\n", line, f"\n{LINE_SEPARATOR}"])


def _speak_url(url: re.Match[str]) -> str:
    address = url.string[url.start(2) : url.end(2)]
    end = len(address.rstrip(_AFTER_URL))
    host = _HOST.match(address, 0, end)
    assert host is not None
    # An IP address or a host name without a dot is not spoken.
    is_spoken = "." in host[1] and any(letter.isalpha() for letter in host[1])
    return (address[host.start(1) : host.end(1)] if is_spoken else "") + address[end:]


def _drop_emphasis(run: re.Match[str]) -> str:
    """Remove emphasis marks; keep "2*3", "snake_case", "~5" and a mark between spaces."""
    before = run.string[max(run.start() - 1, 0) : run.start()]
    after = run.string[run.end() : run.end() + 1]
    if run[0] == "~" and not before.strip() and (after.isdecimal() or after in tuple("$€£¥")):
        return run[0]  # "about"
    if run[0][0] in "~`":
        return ""
    is_alone = not before.strip() and not after.strip()
    fits = str.isalnum if run[0][0] == "_" else str.isdecimal
    return run[0] if is_alone or (fits(before) and fits(after)) else ""


def _strip_markup(text: str) -> str:
    """Remove every character that `_clean_once` could take for markup."""
    text = substitute(_MARKUP, "", text)
    text = substitute(_URL_START, r"\1\2 ", text)
    lines = [substitute(_LINE_START, "", line, 1) for line in split(text, "\n")]
    return _collapse_space(join(lines, "\n"))


def _collapse_space(text: str) -> str:
    text = substitute(_BLANKS, " ", text)
    text = substitute(_AROUND_LINE_END, GROUP_1, text)
    return substitute(_LINE_ENDS, _join_lines, text).strip()


def _join_lines(ends: re.Match[str]) -> str:
    """The separator of two lines: an item end, or a blank line beside a single item."""
    num_marks = ends[0].count(LINE_SEPARATOR)
    if num_marks > 1 or (num_marks and "\n\n" not in ends[0]):
        return f"\n{LINE_SEPARATOR}\n"
    return "\n\n" if num_marks else ends[0][:2]
