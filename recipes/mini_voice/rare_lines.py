"""Write lines for the talker alone: rare words, names, conversation, layouts, paragraphs.

The words come from the teacher's lexicons. Ordinary sentences have too few different words to learn
English spelling from. All lines are normalized by the front end. Those of `benchmarks/texts` are
left out. `--codec-lines N` keeps N training lines in `lines` and moves the others to this file.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from recipes.mini_voice.hard_lines import HardLines
from recipes.mini_voice.layout_lines import LayoutLines
from recipes.mini_voice.lines import load_lines, save_lines
from recipes.mini_voice.reading import LETTER_NAMES
from recipes.mini_voice.settings import load_settings, parser
from recipes.mini_voice.talk_lines import TalkLines
from recipes.mini_voice.templates import JOINS, template_lines
from vivace.text.letter_names import LetterNames
from vivace.text.normalize import normalize_text

TEXTS = Path(__file__).parents[2] / "benchmarks" / "texts"
WORD = re.compile(r"[A-Za-z]{5,}")
LONGEST = 300  # characters of a paragraph
ENDS = (".", ".", ".", ".", "!", "?")


class WordShuffler:
    """Draws words in random order, all equally often."""

    def __init__(self, words: Sequence[str], rng: random.Random) -> None:
        self._words, self._rng = list(words), rng
        self._dealt = self._deal()

    def draw(self) -> str:
        return next(self._dealt)

    def _deal(self) -> Iterator[str]:
        while True:
            self._rng.shuffle(self._words)
            yield from self._words


class Writer:
    def __init__(self, teacher: Path, sentences: Sequence[str], seed: int) -> None:
        assets = teacher / "hibari" / "assets"
        gold, silver = (
            json.loads(gzip.decompress((assets / f"lexicon_us_{name}.json.gz").read_bytes()))
            for name in ("gold", "silver")
        )
        self._rng = rng = random.Random(seed)
        self._sentences = sentences
        names = [w for w in gold if w.isalpha() and w.istitle() and len(w) > 3]
        self._names = WordShuffler(names, rng)
        common = WordShuffler([w for w in gold if w.isalpha() and w.islower() and len(w) > 2], rng)
        rare = WordShuffler([w for w in silver if w.isalpha() and w.islower() and len(w) > 3], rng)
        self._word = lambda: (rare if rng.random() < 0.15 else common).draw()
        self._hard = HardLines([w for w in gold if w.isalpha() and w.islower()], rng)
        self._talk, self._layout = TalkLines(names, rng), LayoutLines(sentences, rng)

    def lines(self, count: int) -> list[str]:
        makers: list[tuple[Callable[[], str], int]] = [
            (self._sentence, 26), (self._list, 7), (self._few, 10), (self._named, 10),
            (self._paragraph, 15), (self._joined, 7), (self._hard.line, 25), (self._talk.line, 36),
            (self._layout.line, 18),
        ]  # fmt: skip
        functions, weights = zip(*makers, strict=True)
        found: dict[str, None] = {}
        while len(found) < count:
            line = normalize_text(self._rng.choices(functions, weights)[0]())
            if self._rng.random() < 0.5:  # the front end respells letters before the talker
                line = with_letter_names(line)
            if line.isascii() and any(letter.isalpha() for letter in line):
                found[line] = None
        return list(found)

    def _plain_or_other(self) -> str:
        return self._sentence() if self._rng.random() < 0.4 else self._rng.choice(self._sentences)

    def _paragraph(self) -> str:
        """Two to four sentences, with the pauses that the teacher makes between them."""
        text = self._plain_or_other()
        for _ in range(self._rng.choice((1, 1, 2, 2, 3))):
            sentence = self._plain_or_other()
            if len(text) + len(sentence) < LONGEST:
                text += " " + sentence
        return text

    def _joined(self) -> str:
        """One long sentence of two to four, up to about 60 words."""
        parts = [self._plain_or_other() for _ in range(self._rng.choice((2, 2, 3, 4)))]
        text = parts[0].rstrip('.!?"')
        for part in parts[1:]:
            if len(text) + len(part) < LONGEST:
                part = part.rstrip('.!?"')
                text += self._rng.choice(JOINS) + (part[:1].lower() + part[1:])
        return text + "."

    def _sentence(self) -> str:
        """A corpus sentence with its long words replaced."""

        def other(match: re.Match[str]) -> str:
            word = match.group()
            if self._rng.random() < 0.5:
                return word
            if word[0].isupper() and match.start() > 1:
                return self._names.draw()
            new = self._word()
            return new.capitalize() if word[0].isupper() else new

        return WORD.sub(other, self._rng.choice(self._sentences))

    def _list(self) -> str:
        words = [self._word() for _ in range(self._rng.randint(2, 5))]
        words[0] = words[0].capitalize()
        last = self._rng.choice((", ", " and ", ", and ", " or "))
        return ", ".join(words[:-1]) + last + words[-1] + self._rng.choice(ENDS)

    def _few(self) -> str:
        """One to three words."""
        count = self._rng.choice((1, 1, 1, 2, 2, 3))
        draw = self._names.draw if self._rng.random() < 0.3 else self._word
        words = [draw() for _ in range(count)]
        words[0] = words[0].capitalize()
        return " ".join(words) + self._rng.choice(ENDS)

    def _named(self) -> str:
        a, b, c = (self._names.draw() for _ in range(3))
        word, other = self._word(), self._word()
        return self._rng.choice(
            (
                f"{a} {b} lives in {c}.",
                f"We drove from {a} to {b} by way of {c}.",
                f"Professor {a} teaches {word} in {b}.",
                f"Have you ever been to {a}, or to {b}?",
                f"{a}, {b} and {c} came by on Tuesday.",
                f"My name is {a} {b}, and I work for {c}.",
                f"The {a} {word} is older than the {b} one.",
                f"Please call {a} {b} about the {word}.",
                f"Mount {a} is higher than {b}.",
                f"The train to {a} stops at {b} and at {c}.",
                f"She reads {a} and plays {b} on the {word}.",
                f"Doctor {a} wrote a book about {word} and {other}.",
            )
        )


def with_letter_names(line: str) -> str:
    """The line after the front end: letters are respelled in spelled words."""
    names = LetterNames(LETTER_NAMES)
    return names.feed(line) + names.finish()


def words_of(line: str) -> str:
    """The words of a line without case and punctuation."""
    return " ".join(re.findall(r"[a-z0-9']+", line.lower()))


def held_out_lines() -> set[str]:
    """The words of the lines in `benchmarks/texts`, as written and normalized."""
    lines = [line for path in sorted(TEXTS.glob("*.txt")) for line in load_lines(path)]
    return {words_of(one) for line in lines for one in (line, normalize_text(line))}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--codec-lines", type=int, metavar="N")
    args = options.parse_args()
    data = load_settings(args.smoke, args.set).data
    lines = load_lines(Path(data.lines))
    made = Writer(Path(data.teacher), lines[data.num_dev :], data.rare_seed).lines(data.num_rare)
    templates = template_lines(data.num_more_templates, seed=data.rare_seed + 4)
    made += [normalize_text(line) for line in templates]
    known = {words_of(line) for line in lines} | held_out_lines()
    rare = [line for line in made if words_of(line) not in known]
    if args.codec_lines:
        rare += lines[data.num_dev + args.codec_lines :]
        save_lines(Path(data.lines), lines[: data.num_dev + args.codec_lines])
    random.Random(19).shuffle(rare)
    save_lines(Path(data.rare), rare)
    print(len(rare), "lines")


if __name__ == "__main__":
    main()
