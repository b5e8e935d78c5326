"""Speaks texts to their end: once more after a runaway, and several together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from vivace.audio.clip import Audio, AudioChunk
from vivace.engine.pieces import Wait
from vivace.engine.stream import Stream, Wake
from vivace.errors import BatchError, RequestError, RunawayError, TTSError

log = logging.getLogger(__name__)

OpenStream = Callable[[], Stream]
Reading = Generator[Audio | Wait, None, None]
BatchReport = Callable[[int, int], None]
"""Called with the number of texts that are done, and of all."""
PINNED = {"seed", "max_frames"}  # whoever gives one of these gets what it makes


def attempts(open_stream: OpenStream, given: Collection[str]) -> Iterator[Stream]:
    """Streams to be read to their end: a second one if the first was a runaway.

    Two runaways are an error. A text of several utterances is not tried again, nor one whose
    `given` options pin the result.
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


def speak_once(
    open_stream: OpenStream,
    given: Collection[str],
    report: Callable[[Stream], None] | None = None,
) -> Audio:
    """The whole audio of a text, tried again after a runaway."""
    for stream in attempts(open_stream, given):
        audio = stream.collect(report)
    return audio


def speak_parts(
    open_stream: OpenStream, given: Collection[str], report: Callable[[Stream, AudioChunk], None]
) -> Iterator[NDArray[np.float32]]:
    """What `speak_once` gives, utterance by utterance; `report` gets every chunk.

    An interrupt is raised after what was made until then.
    """
    for stream in attempts(open_stream, given):
        held, num_given = [np.zeros(0, np.float32)], 1  # the first utterance may be tried again
        with stream:
            try:
                for chunk in stream:
                    report(stream, chunk)
                    if stream.num_utterances > num_given:
                        yield np.concatenate(held)
                        held, num_given = [], stream.num_utterances
                    held.append(chunk.samples)
            except KeyboardInterrupt:
                yield np.concatenate(held)
                raise
    yield stream.without_stall(np.concatenate(held))


def check_item(text: object) -> str:
    if isinstance(text, str):
        return text
    kind = type(text).__name__
    raise RequestError(f"the texts of a batch must be strings, not {kind}")


def speak_batch(
    open_streams: Sequence[Callable[[Wake], Stream]],
    given: Collection[str],
    num_together: int,
    report: BatchReport | None = None,
    name: Callable[[int], str] = "text {} of the batch".format,
) -> list[Audio]:
    """One audio for each, in order; a BatchError if some failed, when all others are done.

    A text that cannot be spoken at all is refused before anything runs. One thread reads
    `num_together` streams at a time, each as far as it goes without waiting.
    """
    bell: SimpleQueue[None] = SimpleQueue()
    openers = [partial(open_stream, lambda: bell.put(None)) for open_stream in open_streams]
    for index, open_stream in enumerate(openers):
        try:
            open_stream().close()
        except TTSError as error:
            error.args = (f"{name(index)}: {error}",)
            raise
    outcomes: dict[int, Audio | Exception] = {}
    waiting = [(number, _read(one, given)) for number, one in enumerate(openers)]
    reading: list[tuple[int, Reading]] = []
    try:
        while waiting or reading:
            num_free = max(1, num_together) - len(reading)
            reading, waiting = reading + waiting[:num_free], waiting[num_free:]
            num_before = len(outcomes)
            for number, steps in reading:
                if (outcome := _advance(steps)) is not None:
                    outcomes[number] = outcome
                    if report is not None:
                        report(len(outcomes), len(openers))
            reading = [one for one in reading if one[0] not in outcomes]
            if len(outcomes) == num_before:
                bell.get()
    finally:
        for _, steps in reading:
            steps.close()
    audios = [outcomes[number] for number in range(len(openers))]
    if errors := {n: one for n, one in enumerate(audios) if isinstance(one, Exception)}:
        raise BatchError([None if n in errors else one for n, one in enumerate(audios)], errors)
    return [one for one in audios if isinstance(one, Audio)]


def _read(open_stream: OpenStream, given: Collection[str]) -> Reading:
    """`Wait` where frames must come first, then the whole audio."""
    audio = None
    for stream in attempts(open_stream, given):
        with stream:
            for step in stream.collect_steps():
                if isinstance(step, Wait):
                    yield step
                elif isinstance(step, Audio):
                    audio = step
    assert audio is not None
    yield audio


def _advance(steps: Reading) -> Audio | Exception | None:
    """The audio or what went wrong; None if it waits for frames."""
    try:
        step = next(steps)
    except Exception as error:
        return error
    return step if isinstance(step, Audio) else None
