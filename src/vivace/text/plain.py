"""Simplifies the text of an utterance for checkpoints with `plain_breaks`.

Runs after normalization. Replaces the marks of `vivace.text.breaks` by a space, a comma or a full
stop, and an ellipsis by a comma or a full stop. The result does not depend on the pieces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vivace.text.breaks import CELL
from vivace.text.spans import join, substitute

_CLOSERS = "\"'”’»)]}"
_QUOTES = re.compile("[\"'“”„‘’‚«»]")
_SIGNS = rf"\s.…“„‘‚«{re.escape(_CLOSERS)}"
# White space and signs, except a single space between two words.
_RUN = re.compile(rf"[{_SIGNS}](?!(?<=[^{_SIGNS}] )[^{_SIGNS}])[{_SIGNS}]*")
_ELLIPSIS = re.compile(r"\s*(?:\.(?:\s?\.)+|\.*…[.…]*)")
_SPACES = re.compile(r"\s+")
_LETTER = re.compile(r"(?:\A|[^\w'’.-])[A-Z]\Z")
_TAIL = 8  # characters kept from the text before a place


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRules:
    """The simplifications of a text besides those of white space."""

    drops_ellipsis: bool = False  # an ellipsis becomes a comma or a full stop
    drops_quotes: bool = False  # quotation marks are removed
    end_stop: bool = False  # an utterance that ends with a word gets a full stop
    parts_letters: bool = False  # a full stop after a letter, as in "P M. Then", is a semicolon


class PlainText:
    """Simplifies utterances in pieces; `finish` ends an utterance."""

    def __init__(self, rules: PlainRules) -> None:
        self._rules = rules
        self._held = self._before = ""

    def feed(self, piece: str) -> str:
        """Return all text except white space and stops at its end."""
        return self._read(self._held + piece, is_final=False)

    def finish(self, piece: str = "", *, is_inside: bool = False) -> str:
        """Return the rest of the utterance. `is_inside`: the sentence continues in the next one."""
        rest = self._read(self._held + piece, is_final=True)
        if self._rules.end_stop and not is_inside and _is_open(self._before):
            rest += "."
        self._before = ""
        return rest

    def _read(self, text: str, *, is_final: bool) -> str:
        out: list[str] = []
        place, self._held = 0, ""
        for run in _RUN.finditer(text):
            self._give(text[place : run.start()], out)
            place = run.end()
            following = text[place : place + 1]
            if not following and not is_final:
                self._held = text[run.start() :]
                break
            self._give(self._render(text[run.start() : place], following), out)
        self._give(text[place:], out)
        return join(out)

    def _give(self, text: str, out: list[str]) -> None:
        self._before = (self._before + text)[-_TAIL:]
        out.append(text)

    def _render(self, run: str, following: str) -> str:
        if run == " " and following and self._before.strip():  # between two words
            return run
        if self._rules.drops_quotes:
            run = self._without_quotes(run, following)
        if self._rules.drops_ellipsis:
            run = substitute(_ELLIPSIS, lambda dots: self._stop(dots, following), run, 1)
        if self._rules.parts_letters and self._is_after_letter(run, following):
            run = ";" + run[1:]
        return substitute(_SPACES, lambda spaces: self._gap(spaces, following), run)

    def _is_after_letter(self, run: str, following: str) -> bool:
        is_stop = run[:1] == "." and run[1:].isspace() and following.isupper()
        return is_stop and _LETTER.search(self._before) is not None

    def _without_quotes(self, run: str, following: str) -> str:
        """Remove quotation marks; keep an apostrophe inside a word."""
        is_inside = self._before[-1:].isalnum() and following.isalnum()
        if is_inside and run in ("'", "’"):
            return run
        return substitute(_QUOTES, "", run) or (" " if is_inside else "")

    def _stop(self, dots: re.Match[str], following: str) -> str:
        """The replacement of an ellipsis; "" at the start and before other punctuation."""
        if not (self._before + dots.string[: dots.start()]).strip():
            return ""
        if following in tuple("?!,;:"):
            return ""
        is_end = not following.islower() or "\n" in dots.string
        is_glued = following.isalnum() and dots.end() == len(dots.string)
        return ("." if is_end else ",") + " " * is_glued

    def _gap(self, spaces: re.Match[str], following: str) -> str:
        before = self._before + spaces.string[: spaces.start()]
        is_last = not following and not spaces.string[spaces.end() :].strip()
        if not before.strip() or is_last:
            return ""
        sign = "." if "\n" in spaces[0] else "," if CELL in spaces[0] else ""
        return f"{sign * _is_open(before)} "


def _is_open(text: str) -> bool:
    """Whether a text ends with a word, not with punctuation."""
    return text.rstrip(_CLOSERS)[-1:].isalnum()
