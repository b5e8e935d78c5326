"""Utterances with line breaks, blank lines, tabs, lists and ellipses.

The talker learns to read on after them. The caller must normalize the lines.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from recipes.mini_voice.templates import FIRST, FOODS, OBJECTS, THINGS, VERBS

LONGEST = 260  # characters of an utterance
WIDTHS = range(42, 72)  # characters of a wrapped line
BREAKS = ("\n", "\n", "\n\n", "\n\n", "\n\n\n", " \n", "\n  ", "  ")
DOTS = ("... ", "... ", "... ", " ... ", "...", "... \n", "....", " . . . ")
MARKS = ("- ", "- ", "")
HEADINGS = ("Shopping", "To do", "Notes", "Today", "Summary", "Questions", "News", "Ingredients")
GREETINGS = ("Dear", "Hello", "Hi", "Good morning")
CLOSINGS = ("Best", "Thanks", "Yours", "Kind regards", "See you soon", "Love")


class LayoutLines:
    """Lays `sentences` out over several lines."""

    def __init__(self, sentences: Sequence[str], rng: random.Random) -> None:
        self._sentences, self._rng = sentences, rng
        makers: list[tuple[Callable[[], str], int]] = [
            (self._lines, 26), (self._wrapped, 20), (self._list, 16), (self._cells, 8),
            (self._dots, 20), (self._letter, 6), (self._heading, 4),
        ]  # fmt: skip
        self._makers, self._weights = zip(*makers, strict=True)

    def line(self) -> str:
        return self._rng.choices(self._makers, self._weights)[0]()

    def _some(self, most: int) -> list[str]:
        """One to `most` sentences that fit."""
        found = [self._rng.choice(self._sentences)]
        for _ in range(self._rng.randrange(most)):
            sentence = self._rng.choice(self._sentences)
            if sum(map(len, found)) + len(sentence) < LONGEST:
                found.append(sentence)
        return found

    def _lines(self) -> str:
        first, *others = [*self._some(3), self._rng.choice(self._sentences)]
        return first + "".join(self._rng.choice(BREAKS) + sentence for sentence in others)

    def _wrapped(self) -> str:
        """Lines of about equal width, broken before a word in lower case."""
        width, lines = self._rng.choice(WIDTHS), [""]
        for word in " ".join(self._some(3)).split():
            if len(lines[-1]) >= width and word[0].islower():
                lines.append(word)
            else:
                lines[-1] = f"{lines[-1]} {word}".strip()
        return "\n".join(lines)

    def _items(self) -> list[str]:
        rng = self._rng
        kind = rng.randrange(3)
        if kind == 0:
            return rng.sample(FOODS, rng.randint(2, 5))
        if kind == 1:
            return [f"{rng.randint(2, 90)} {thing}" for thing in rng.sample(THINGS, 3)]
        return [f"{verb} {rng.choice(OBJECTS)}" for verb in rng.sample(VERBS, rng.randint(2, 4))]

    def _list(self) -> str:
        rng, items = self._rng, self._items()
        if rng.random() < 0.5:
            items = [item[0].upper() + item[1:] for item in items]
        marks = [rng.choice(MARKS)] * len(items)
        if rng.random() < 0.3:
            marks = [f"{number}. " for number in range(1, len(items) + 1)]
        rows = [mark + item for mark, item in zip(marks, items, strict=True)]
        start = rng.choice(("We need:", "The list:", "Please:", "", "Three things:"))
        end = rng.choice(("", "", self._rng.choice(self._sentences)))
        return "\n".join(part for part in (start, *rows, end) if part)

    def _cells(self) -> str:
        rng, count = self._rng, self._rng.randint(1, 3)
        rows = [(rng.choice(FIRST), *self._items()[:2]) for _ in range(count)]
        table = "\n".join("\t".join(row) for row in rows)
        return table if rng.random() < 0.7 else "\t" + "\n\t".join(self._some(3))

    def _dots(self) -> str:
        """An ellipsis after a word in the middle, or at the end of a sentence."""
        rng, text = self._rng, " ".join(self._some(2))
        words = text.split()
        place = rng.randrange(1, len(words)) if len(words) > 1 else 1
        before = " ".join(words[:place]).rstrip(",.;:!?")
        dots, after = rng.choice(DOTS), " ".join(words[place:])
        return f"{before}{dots}{after}" if rng.random() < 0.75 else f"{text.rstrip('.!?')}..."

    def _letter(self) -> str:
        rng, gap = self._rng, self._rng.choice(("\n", "\n\n"))
        greeting = f"{rng.choice(GREETINGS)} {rng.choice(FIRST)},"
        closing = f"{rng.choice(CLOSINGS)},\n{rng.choice(FIRST)}"
        return gap.join((greeting, " ".join(self._some(2)), closing))

    def _heading(self) -> str:
        rng = self._rng
        return rng.choice(HEADINGS) + rng.choice(("\n", "\n\n", ":\n")) + " ".join(self._some(2))
