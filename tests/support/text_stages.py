"""Stages of the text pipeline for whole texts, without a checkpoint."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

from vivace.errors import RequestError
from vivace.script.parts import PartReader
from vivace.script.script import plan_parts
from vivace.text.breaks import BreakReader
from vivace.text.letters import Letters
from vivace.text.options import ScriptOptions
from vivace.text.pauses import Pause
from vivace.text.pipeline import Event, TextPipeline
from vivace.text.plain import PlainRules, PlainText
from vivace.text.written_words import NO_WORD, WrittenWord, WrittenWords


def plan_utterances(
    text: str, options: ScriptOptions, words: WrittenWords | None = None
) -> list[str | Pause]:
    """The parts of a known text in any script; a text without words is a list of pauses."""
    options = replace(options, packing="whole")
    reader = PartReader(options, Letters.of([]), RequestError, words=words)
    parts = plan_parts(text, reader)
    if reader.error is not None and "nothing to speak" not in str(reader.error):
        raise reader.error
    return parts


def spoken_words(
    words: WrittenWords, texts: Iterable[str | Pause]
) -> list[tuple[WrittenWord, str]]:
    """Each written word that is spoken, with its spoken letters and digits."""
    spoken: dict[int, str] = {}
    for text in texts:
        if isinstance(text, str):
            for character, number in zip(text, words.numbers(text), strict=True):
                if character.isalnum():
                    spoken[number] = spoken.get(number, "") + character
    assert NO_WORD not in spoken
    return [(words[number], letters) for number, letters in sorted(spoken.items())]


def written_words(text: str, options: ScriptOptions) -> list[str]:
    """The words of a known text that are spoken, read at their places in the text."""
    words = WrittenWords()
    spoken = [word for word, _ in spoken_words(words, plan_utterances(text, options, words))]
    assert [word.text for word in spoken] == [text[word.start : word.end] for word in spoken]
    return [word.text for word in spoken]


def read_breaks(text: str) -> str:
    reader = BreakReader()
    return reader.feed(text) + reader.finish()


def plain_text(text: str, rules: PlainRules) -> str:
    plain = PlainText(rules)
    return plain.feed(text) + plain.finish()


def cut(text: str, places: Iterable[int]) -> list[str]:
    """A text in pieces; places beyond its end wrap around."""
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def read_events(
    pieces: Iterable[str], options: ScriptOptions, words: WrittenWords | None = None
) -> list[Event]:
    """All events of a text in pieces, with neighbouring texts joined."""
    pipeline = TextPipeline(options, words)
    joined: list[Event] = []
    for event in [e for piece in pieces for e in pipeline.feed(piece)] + pipeline.finish():
        if isinstance(event, str) and joined and isinstance(joined[-1], str):
            joined[-1] += event
        else:
            joined.append(event)
    return joined
