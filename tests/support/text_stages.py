"""Stages of the text pipeline for whole texts, without a checkpoint."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

from vivace.errors import RequestError
from vivace.script.parts import PartReader, SpokenText
from vivace.script.script import plan_parts
from vivace.text.breaks import BreakReader
from vivace.text.letters import Letters
from vivace.text.options import ScriptOptions
from vivace.text.pauses import Pause
from vivace.text.pipeline import Event, TextPipeline
from vivace.text.plain import PlainRules, PlainText
from vivace.text.trace import Trace, WrittenWord


def plan_texts(
    text: str, options: ScriptOptions, trace: Trace | None = None
) -> list[SpokenText | Pause]:
    """The parts of a known text in any script; a text without words is a list of pauses."""
    options = replace(options, packing="whole")
    reader = PartReader(options, Letters.of([]), RequestError, trace=trace)
    parts = plan_parts(text, reader)
    if reader.error is not None and "nothing to say" not in str(reader.error):
        raise reader.error
    return parts


def plan_utterances(text: str, options: ScriptOptions) -> list[str | Pause]:
    return [part if isinstance(part, Pause) else part.text for part in plan_texts(text, options)]


def spoken_words(
    trace: Trace, texts: Iterable[SpokenText | Pause]
) -> list[tuple[WrittenWord, str]]:
    """Each written word that is spoken, with its spoken letters and digits."""
    spoken: dict[int, str] = {}
    for text in texts:
        if isinstance(text, SpokenText):
            letters = filter(str.isalnum, text.text)
            for letter, owner in zip(letters, text.owners, strict=True):
                spoken[owner] = spoken.get(owner, "") + letter
    return [(trace.word(owner), letters) for owner, letters in sorted(spoken.items()) if owner >= 0]


def written_words(text: str, options: ScriptOptions) -> list[str]:
    """The words of a known text that are spoken, read at their places in the text."""
    trace = Trace()
    words = [word for word, _ in spoken_words(trace, plan_texts(text, options, trace))]
    assert [word.text for word in words] == [text[word.start : word.end] for word in words]
    return [word.text for word in words]


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


def read_events(pieces: Iterable[str], options: ScriptOptions) -> list[Event]:
    """All events of a text in pieces, with neighbouring texts joined."""
    pipeline = TextPipeline(options)
    joined: list[Event] = []
    for event in [e for piece in pieces for e in pipeline.feed(piece)] + pipeline.finish():
        if isinstance(event, str) and joined and isinstance(joined[-1], str):
            joined[-1] += event
        else:
            joined.append(event)
    return joined
