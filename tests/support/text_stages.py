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
from vivace.text.trace import Trace


def plan_utterances(
    text: str, options: ScriptOptions, trace: Trace | None = None
) -> list[str | Pause]:
    """The parts of a text in any script; a text without words is a list of pauses."""
    options = replace(options, packing="whole")
    reader = PartReader(options, Letters.of([]), RequestError, trace=trace)
    parts = plan_parts(text, reader)
    if reader.error is not None and "nothing to say" not in str(reader.error):
        raise reader.error
    return parts


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
