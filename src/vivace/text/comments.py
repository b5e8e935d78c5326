"""Removes HTML comments from a text, also in pieces."""

from __future__ import annotations

import re

from vivace.text.spans import join

MAX_COMMENT = 10_000  # characters; a longer comment is text
_OPEN, _CLOSE = "<!--", "-->"
_REST = re.compile(r"(?:<(?:!-?)?)?\Z")  # may begin a comment


def drop_comments(text: str) -> str:
    """Remove `<!-- … -->`, also over several lines. A comment that is not closed is text."""
    if _OPEN not in text:
        return text
    dropper = CommentDropper()
    return dropper.feed(text) + dropper.finish()


class CommentDropper:
    """`drop_comments` for a text in pieces; holds back at most `MAX_COMMENT` characters."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._held = ""  # an open comment, or characters that may begin one
        self._num_read = 0  # characters of `_held` in which no comment ends
        self._last = ""  # the character before `_held`

    def feed(self, piece: str) -> str:
        if self._held or "<" in piece:
            return self._read(self._held + piece, is_final=False)
        self._last = piece[-1:] or self._last
        return piece

    def finish(self, piece: str = "") -> str:
        rest = self._read(self._held + piece, is_final=True)
        self._begin()
        return rest

    def __bool__(self) -> bool:
        """Whether a comment may be open."""
        return bool(self._held)

    def _read(self, text: str, *, is_final: bool) -> str:
        out: list[str] = []
        place = 0
        while (start := text.find(_OPEN, place)) >= 0:
            end = self._find_end(text, start)
            if end is None and not is_final:
                break
            out.append(text[place : start if end else start + len(_OPEN)])
            place = end or start + len(_OPEN)
        if start < 0:
            rest = _REST.search(text, place)
            start = rest.start() if rest and not is_final else len(text)
        self._last = text[start - 1 : start] or self._last
        self._held, self._num_read = text[start:], max(0, self._num_read - start)
        return join([*out, text[place:start]])

    def _find_end(self, text: str, start: int) -> int | None:
        """The end of the comment, 0 if it is text, or None if later text decides."""
        # After a backtick, the sign is code: "a comment begins with `<!--`".
        if (text[start - 1] if start else self._last) == "`":
            return 0
        limit = start + MAX_COMMENT
        # "<!-->" is a comment without a text.
        close = text.find(_CLOSE, max(start + 2, self._num_read), limit)
        if close >= 0:
            return close + len(_CLOSE)
        self._num_read = max(self._num_read, min(len(text), limit) - 2)
        return 0 if len(text) >= limit else None
