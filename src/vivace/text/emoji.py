"""The emoji table, and a stage that removes emoji from a text.

Digits, "#" and "*" under a keycap, "©", "®", "™" and arrows stay. Of the two spaces around a
removed emoji one stays.
"""

from __future__ import annotations

import re

from vivace.text.spans import join

# Emoji=Yes of Unicode 16, and the unassigned rest of the pictograph blocks.
_PICTURES = (
    "\U0001f000-\U0001f0ff\U0001f170-\U0001f1ff\U0001f201-\U0001faff"
    "\u231a\u231b\u2328\u23cf\u23e9-\u23f3\u23f8-\u23fa\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe"
    "\u2600-\u2604\u260e\u2611\u2614\u2615\u2618\u261d\u2620\u2622\u2623\u2626\u262a\u262e\u262f"
    "\u2638-\u263a\u2640\u2642\u2648-\u2653\u265f\u2660\u2663\u2665\u2666\u2668\u267b\u267e\u267f"
    "\u2692-\u2697\u2699\u269b\u269c\u26a0\u26a1\u26a7\u26aa\u26ab\u26b0\u26b1\u26bd\u26be\u26c4"
    "\u26c5\u26c8\u26ce\u26cf\u26d1\u26d3\u26d4\u26e9\u26ea\u26f0-\u26f5\u26f7-\u26fa\u26fd\u2702"
    "\u2705\u2708-\u270d\u270f\u2712\u2714\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c"
    "\u274e\u2753-\u2755\u2757\u2763\u2764\u2795-\u2797\u27a1\u27b0\u27bf\u2934\u2935\u2b05-\u2b07"
    "\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d"
)
_ALWAYS = "\ufe0e\ufe0f\u20e3\U000e0020-\U000e007f"  # selectors, keycap, flag tags
EMOJI = re.compile(f"[{_PICTURES}]")
# A joiner is part of an emoji only beside an emoji: some scripts join letters with it.
_RUN = re.compile(f"([{_PICTURES}]|[{_ALWAYS}])[{_PICTURES}{_ALWAYS}\u200d]*")
_CLOSERS = "\n.,;:!?…)]}»”’"
_JOINERS = re.compile(f"[{_ALWAYS}\u200d]*")


def drop_emoji(text: str) -> str:
    if text.isascii():
        return text
    return EmojiDropper().finish(text)


class EmojiDropper:
    """`drop_emoji` for a text in pieces; holds back at most one space."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._last = ""  # the last character returned
        self._space = ""  # held back: an emoji may follow and remove it
        self._is_after = False  # the last text read was an emoji
        self._is_joined = False  # the last character belonged to an emoji

    def feed(self, piece: str) -> str:
        out: list[str] = []
        place = 0
        if self._is_joined and (rest := _JOINERS.match(piece)):
            place = rest.end()
        while run := _RUN.search(piece, place):
            self._give(piece[place : run.start()], out)
            place, self._is_joined = run.end(), True
            # A variation selector or keycap alone does not remove its base character.
            self._is_after |= EMOJI.search(run[0]) is not None
        self._give(piece[place:], out)
        return join(out)

    def finish(self, piece: str = "") -> str:
        rest = self.feed(piece)
        rest += "" if self._is_after else self._space
        self._begin()
        return rest

    def _give(self, text: str, out: list[str]) -> None:
        if not text:
            return
        text = self._join(text) if self._is_after else self._space + text
        self._is_after = self._is_joined = False
        self._space = text[-1:] if _is_space(text[-1:]) else ""
        text = text[: len(text) - len(self._space)]
        self._last = text[-1:] or self._last
        out.append(text)

    def _join(self, text: str) -> str:
        """The text after a removed emoji, with at most one space before it."""
        if _is_space(text[0]):
            return text if self._last.strip() else text[1:]
        is_apart = bool(self._space) or (self._last.isalnum() and text[0].isalnum())
        return " " + text if is_apart and text[0] not in _CLOSERS and self._last.strip() else text


def _is_space(character: str) -> bool:
    return character.isspace() and character != "\n"
