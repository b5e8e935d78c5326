"""Speech that does not end by itself, or is silent, is tried once more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator

from vivace.audio.clip import Audio
from vivace.engine.stream import Stream
from vivace.errors import RunawayError

log = logging.getLogger(__name__)

PINNED = {"seed", "max_frames"}  # who gives one of these wants what it makes, whatever it is


def speak_once(
    open_stream: Callable[[], Stream],
    given: Collection[str],
    report: Callable[[Stream], None] | None = None,
) -> Audio:
    """All of a stream; once more if it did not end by itself."""
    for stream in attempts(open_stream, given):
        audio = stream.collect(report)
    return audio


def attempts(open_stream: Callable[[], Stream], given: Collection[str]) -> Iterator[Stream]:
    """Streams to be read to their end, until one came to its own; two that did not are an error.

    A text of several utterances is not tried again, nor where `given` options pin the result.
    """
    for _ in range(2):
        stream = open_stream()
        yield stream
        if not stream.is_runaway or stream.num_utterances > 1 or PINNED & set(given):
            return
        log.warning("speech did not end by itself or was silent (%s)", stream.finish_reason)
    raise RunawayError(
        "speech did not end by itself or was silent, twice; change the text a little, "
        "or give a seed to get what there is"
    )
